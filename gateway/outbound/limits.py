"""The numbers that bound what goes out and what comes back, each with its reason."""

from __future__ import annotations

MAX_JSON_DEPTH = 200  # deeper, and what we parsed could not be written again inside a result
MAX_REMEMBERED = 1024  # names, addresses, media types: more than any gateway meets in an hour
STEP_BYTES = 65_536  # of a body at a time: a millisecond's work
WORKER_BYTES = 262_144  # of JSON: below, parsing takes no longer than asking a worker process
