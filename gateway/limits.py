"""The numbers that bound something, room by room, each with its reason.

What users may want to change is in config.toml; these are the rest, and they are few: a bound is
here because something would otherwise grow, wait or repeat without end.
"""

from __future__ import annotations

# --- outbound -------------------------------------------------------------------------------------

MAX_EXCHANGES = 1024  # at a time: calls are bounded far below, the streams of upstreams are not
IDLE_SECONDS = 4.0  # of a kept connection: Node and uvicorn close theirs after five
LOOKUP_SECONDS = 3.0  # for a name to be resolved where nothing is dialled yet
REMEMBER_SECONDS = 10.0  # what a name means, and whether TLS files are as they were
MAX_REMEMBERED = 1024  # names, addresses, media types: more than any gateway meets in an hour
STEP_BYTES = 65_536  # of a body at a time: a millisecond's work
WORKER_BYTES = 262_144  # of JSON: below, parsing takes no longer than asking a worker process
MAX_JSON_DEPTH = 200  # deeper, and what we parsed could not be written again inside a result

# --- openapi --------------------------------------------------------------------------------------

# --- connectors -----------------------------------------------------------------------------------

# --- workers --------------------------------------------------------------------------------------

# --- upstream -------------------------------------------------------------------------------------

# --- azure ----------------------------------------------------------------------------------------

# --- catalog --------------------------------------------------------------------------------------

# --- policy ---------------------------------------------------------------------------------------

# --- calls ----------------------------------------------------------------------------------------

# --- store ----------------------------------------------------------------------------------------

# --- mcp ------------------------------------------------------------------------------------------

# --- web ------------------------------------------------------------------------------------------

MAX_BODY_BYTES = 4 * 1024 * 1024  # of a request; larger things are not said in one call
REQUEST_SECONDS = 30.0  # for a body to arrive, where no configuration says otherwise
SEND_SECONDS = 10.0  # a reader of a stream that takes nothing for so long is let go
PING_SECONDS = 15.0  # proxies end streams that are silent for longer
STREAM_CHECK_SECONDS = 2.0  # streams look again by themselves: a wake-up may be lost
FAILURES_A_MINUTE = 8  # of one address or principal: nobody guesses tokens or names by trying
ALL_FAILURES_A_MINUTE = 60
MAX_REMEMBERED = 4096  # sources of failures, verified tokens, views: each is found out again

# --- console --------------------------------------------------------------------------------------

# --- server ---------------------------------------------------------------------------------------

# What was never read before is waited for this long at start, so that a first client finds tools.
FIRST_LOOK_SECONDS = 2.0
# For the issuer's signing keys; a caller waits meanwhile.
SIGNING_KEYS_SECONDS = 5.0
KEEP_ALIVE_SECONDS = 75  # longer than balancers keep an idle connection, which is 60
# New requests are still taken after /readyz went 503, so that balancers can turn away.
TURN_AWAY_SECONDS = 0.5
CLOSING_SECONDS = 2.0  # for a client that reads slowly while the gateway ends
LONGEST_RESTART_SECONDS = 30.0  # between two starts of a worker that keeps dying
COLLECT_AFTER = 20_000  # objects more than before; Python's own is 700, a sixth of a call
CONFIG_POLL_SECONDS = 2.0  # some file systems tell nothing of an edit

# --- cli ------------------------------------------------------------------------------------------
