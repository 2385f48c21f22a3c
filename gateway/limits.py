"""The numbers that bound something, room by room, each with its reason.

Numbers that users may want to change are in config.toml. The others are here, and they are few: a
bound exists because something would otherwise grow, wait or repeat without end.
"""

from __future__ import annotations

# --- all rooms ------------------------------------------------------------------------------------

MAX_REMEMBERED = 8192  # entries of a cache (names, tokens, views): each can be made again
SETTLE_SECONDS = 0.2  # events that come this close together are handled at once: saves, rows
MOMENT_SECONDS = 2.0  # a short wait for people; between two polls, if a signal may be lost
REST_SECONDS = 1.0  # between two polls or reports; after a failure; for a child process to end
DOUBT_SECONDS = 5.0  # for an upstream to show that it is alive; between two checks if it failed
LONGEST_PAUSE_SECONDS = 300.0  # the longest, between two tries of a request that keeps failing
FETCH_SECONDS = 5.0  # for something small that a caller waits for: a name, keys, a link, a document
KEEP_SECONDS = 60.0  # that an answer is cached: Azure's listings, a JWT, that a key is unknown
CHARS_A_TOKEN = 4.6  # on average; the exact number would need the model's own tokenizer
LARGE_BYTES = 256 * 1024  # of an answer: larger ones wait for room, and for a worker to read them
MAX_ANSWER_BYTES = 16 * 1024 * 1024  # of an API, unless max_output_bytes is more; of a whole list
STEP_BYTES = 65_536  # processed at a time, a millisecond's work; and of the head of a request
NAME_CHARS = 128  # of a name, a title, a client, a value on one line
MAX_QUOTE_CHARS = 500  # of a foreign text inside a sentence of ours, of a question
PREVIEW_CHARS = 2_000  # of a large answer or a long description, some 430 tokens
PAGE_ENTRIES = 100  # of a list or an array, where the caller does not say how many
MAX_LIST_PAGES = 50  # of Azure: a list without end has to end somewhere
DECODINGS = 6  # of a path that is encoded repeatedly; a path that needs more is refused

# --- outbound -------------------------------------------------------------------------------------

MAX_EXCHANGES = 1024  # at once, others wait: calls are bounded below, upstreams' streams are not
IDLE_SECONDS = 4.0  # of a kept connection: Node and uvicorn close idle ones after five
REMEMBER_SECONDS = 10.0  # that a resolved host name, and TLS files as read, are believed
MAX_JSON_DEPTH = 200  # a deeper value could not be written again inside a result

# --- openapi --------------------------------------------------------------------------------------
# How much a definition may cost is bounded where it is read: READER_BYTES and READ_CPU_SECONDS.

MAX_OPERATIONS = 10_000  # of one definition: a snapshot holds each, listed or not
MAX_YAML_NODES = 1_000_000  # with each alias written out: Stripe's definition has 165,000
MAX_HOPS = 50  # of references that lead to references: more than that is a circle
MAX_LEVELS = 6  # of allOf, of defaults, of XML: real definitions have three
MAX_WIDTH = 1_000  # inputs of one operation; schemas that one value meets on one level
MAX_WIRE_NAME = 500  # characters of an operation id, a parameter's name or a media type
MAX_TOOL_NAME = 64  # characters that every client accepts, of tools and of their arguments
MAX_PROPERTY_WORDS = 256  # characters of an input's description
REPEATED_OPERATIONS = 8  # with fewer, words in all of them may just be alike by chance
REPEATED_CHARS = 40  # of words to be said once for all: shorter ones cost little where they stand
MAX_PROBLEMS = 200  # of one kind that a person is shown of a connection
PATTERN_BYTES = 256 * 1024  # of a compiled pattern; a pattern that needs more is not checked
INPUT_BYTES = 16 * 1024  # of a tool's input as it is listed, where there is room; of one value
LISTED_BYTES = 1536 * 1024  # of the inputs of all tools of a definition, where they are few
MAX_SCHEMA_BYTES = 64 * 1024  # of an input after pruning, of an answer's schema, of look-ups
MAX_TOOL_BYTES = 512 * 1024  # of the schema of one tool, whole

# --- plain ----------------------------------------------------------------------------------------

PLAIN_STEP_BYTES = 24  # the least that a property takes: so the room bounds the steps of writing
PLAIN_LEVELS = 8  # of objects and arrays inside one another: models' providers take five to ten

# --- connectors -----------------------------------------------------------------------------------

MAX_EXTRAS_BYTES = 32_768  # of its icons, and of its `_meta`: pictures may be part of the list

# --- workers --------------------------------------------------------------------------------------

READ_SECONDS = 30.0  # for one job, on a machine that is busy
QUEUE_SECONDS = 120.0  # that a job waits for a reader
READ_CPU_SECONDS = 5.0  # of one job: a definition like GitHub's takes two
ADVICE_CPU_SECONDS = 20.0  # the validator takes seconds a megabyte
MAX_ADVISED_BYTES = 4 * 1024 * 1024
READER_BYTES = 160 * 1024 * 1024  # of a reader's memory; a definition like GitHub's needs 100

# --- upstream -------------------------------------------------------------------------------------

LONGEST_REST_SECONDS = 60.0  # after many failures, between two looks, for a child to come up
# A session that lived so long was no crash. For an upstream to take a message or answer a small
# one, and the longest pause that it may ask for on a stream; the span in which a child's lines are
# counted. For a sign-in to be there once a client of 2026 says that its user signed in: its call
# waits no longer, and asks again.
HELD_SECONDS = 10.0
LISTEN_SECONDS = 600.0  # then a stream of notices is opened anew: it may be broken unnoticed
UNUSED_SECONDS = 1800.0  # then a principal's own session is ended
LAST_BYTES_SECONDS = 0.02  # for the end of an answer, so that its connection can be used again
MAX_PENDING = 128  # calls on a session, messages that wait for one of them, lines of a child's log
MAX_MESSAGE_BYTES = 8 * 1024 * 1024  # of a server, or of a client on standard input
MAX_CONTAINERS = 250_000  # of a message: read in some 30 ms; 8 MB of them would take half a second
MAX_ROUNDS = 10  # of questions before an answer, of streams for one answer

# --- azure ----------------------------------------------------------------------------------------

AZURE_BYTES = 32 * 1024 * 1024  # of one answer: the list of all connectors is one page
AZURE_TRIES = 3  # of a request that Azure throttles
AZURE_PAUSE_SECONDS = 10.0  # that Azure may ask for; for a longer one the caller gets an error
LOOKED_UP_DEPTH = 20  # of a schema that was looked up; deeper parts are left open

# --- catalog --------------------------------------------------------------------------------------

DEFINITION_SECONDS = 4.5  # for a definition to be fetched, if the connection does not set it
DEFINITION_CACHE_BYTES = 8 * 1024 * 1024  # of definitions cached from a preview to its put
DEFINITION_REDIRECTS = 5  # on the way to a definition, on the same host
PARALLEL_REFRESHES = 8
COMPARED_NODES = 20_000  # of two schemas; parts beyond that count as changed
FORMER_NAME_SECONDS = 30 * 86_400.0  # a tool that was renamed answers to the name it had
SEARCH_COMPLETIONS = 12  # of the last word of a search, which may be unfinished

# --- calls ----------------------------------------------------------------------------------------

CALLS_PER_CONNECTION = 32  # at the same time: a slow API must not take all of max_concurrent_calls
CALLS_PER_PRINCIPAL = 16  # that go on without a request: undecided, in the background, or held
MAX_WAITING_CALLS = 256  # for a slot or for an answer of their client: a further call gets `busy`

FAILURES_TO_OPEN = 5  # in a row, then calls to the API are refused for a while
OPEN_SECONDS = 10.0  # then one call tries again

LARGE_ANSWERS = 4  # in memory at the same time: each may take MAX_ANSWER_BYTES
RESULT_SECONDS = 3600.0  # a model that works with a large answer reads it within the hour
MAX_RECORDED_BYTES = 16 * 1024  # of arguments or output in the ledger: a history, no archive
MAX_TOLD_ITEMS = 20  # problems or names that are listed one by one

CHECK_STEPS = 10_000  # of checking and filling in, before a schema counts as endless
LOOKUP_BYTES = 2 * 1024 * 1024  # of one answer: parsing it delays other calls for 10 ms
LOOKUP_VALUES = 1000  # more than a person or a model chooses from
LOOKUP_PAGES = 5  # of a list that comes in pages

SHORTEST_SECRET = 6  # characters: shorter ones would tear holes into innocent text
TOKEN_SECONDS = 10.0  # for a token endpoint's answer, and between two tries to renew
AZURE_SECONDS = 20.0  # for an answer of Azure itself, which is slow to list
TOKEN_LIFE_SECONDS = 300.0  # of a token whose answer names no end

# --- oauth ----------------------------------------------------------------------------------------

CODE_SECONDS = 60.0  # a code is used at once, by a program
REFRESH_GRACE_SECONDS = 10.0  # to repeat a refresh: its answer was lost, or two processes made it
SIGN_IN_SECONDS = 600.0  # for a person to sign in at a provider, or to decide on a client
CLIENT_DOCUMENT_BYTES = 16 * 1024  # of a client's document, registration or form
CLIENT_KEPT_SECONDS = 300.0  # a client's document is cached at least this long, and at most:
CLIENT_LONGEST_KEPT_SECONDS = 24 * 3600.0
DISCOVERY_SECONDS = 3600.0  # that a provider's own document is cached
MAX_OAUTH_CLIENTS = 20_000  # that registered themselves; the oldest unused ones are deleted
REGISTRATIONS_A_MINUTE = 60  # from one address
AUTHORIZATIONS_A_MINUTE = 600

# --- store ----------------------------------------------------------------------------------------

# Reads, and writes, that may wait for the store at once; a further one gets `busy`.
STORE_QUEUE = 1024
# Database connections that read at once, beside the connection that writes.
STORE_READERS = 4
# One statement, or one batch of writes; a write waits for the batch before its own, too.
STORE_STATEMENT_SECONDS = 5.0
STORE_WRITE_SECONDS = 2 * STORE_STATEMENT_SECONDS
# Bytes that a burst may take: rows that wait in memory while the store is away, and the write-ahead
# log that SQLite keeps afterwards.
STORE_BURST_BYTES = 32 * 2**20
# Between two polls for signals of other processes, where the database sends none (SQLite).
STORE_LOOK_SECONDS = 0.1
# A process says that it is alive this often, and counts as dead after five missing heartbeats.
HEARTBEAT_SECONDS = 3.0
SILENT_SECONDS = 5 * HEARTBEAT_SECONDS
# Rows that one statement reads or deletes: a page, a list for people, a step of a sweep.
STORE_ROWS = 500
# Rows that are counted for a chart, or loaded at a start.
STORE_MANY_ROWS = 10_000
# Large answers kept for one principal; the oldest goes first.
RESULTS_BYTES = 256 * 2**20
# A key for sealing that is no Fernet key is a passphrase of at least this length.
PASSPHRASE_CHARS = 16

# --- mcp ------------------------------------------------------------------------------------------

SESSION_SECONDS = 7 * 24 * 3600.0  # a session of the 2025 era; and "always allow" in one
MAX_BATCH = 50  # requests in one body (2025-03-26): each takes a place among the calls
MAX_QUEUED = 256  # messages that wait for one slow reader; further ones are dropped
MAX_STREAMS_PER_PRINCIPAL = 1024
WATCH_AFTER_SECONDS = 0.5  # most calls end before the gateway has to watch their connection
MAX_INSTRUCTIONS_CHARS = 8192  # of all servers together: every client's model reads them
MAX_WATCHED = 500  # resources that one principal watches
MAX_TOLD_NAMES = 1000  # of tools that came, went or changed: some 35 KB of each, in every result
LINGER_SECONDS = 60.0  # for a client to open its stream again, and a server to take note of a wish

# --- web ------------------------------------------------------------------------------------------

MAX_BODY_BYTES = 4 * 1024 * 1024  # of a request; no call needs more
REQUEST_SECONDS = 30.0  # for a body to arrive, where no configuration says otherwise
SEND_SECONDS = 10.0  # a stream whose reader takes nothing for so long is closed
PING_SECONDS = 15.0  # proxies end streams that are silent for longer
STREAMS_A_PRINCIPAL = 32  # of the live feed and of console pages, in one process
FAILURES_A_MINUTE = 8  # of one address or principal, so that nobody can guess tokens or names
ALL_FAILURES_A_MINUTE = 60
SIGNING_KEYS_KEPT_SECONDS = 600.0  # a key that its issuer revoked is accepted no longer than this
PATH_CHARS = 4096  # of a raw request: every way to read the path is checked
SEARCH_ENTRIES = 10  # of a search by words: a model reads them all
SUMMARY_CHARS = 200  # of a text in a list that is read to choose from

# --- console --------------------------------------------------------------------------------------

SIGNED_IN_SECONDS = 12 * 3600.0  # a working day
LINK_SECONDS = 15 * 60.0  # the link that is printed at start signs in once, for so long
FORM_BYTES = 12 * 1024 * 1024  # a pasted definition of 4 MB, encoded for a form
TABLE_ROWS = 5000  # of a table without pages, or of one file
FORM_FIELDS = 80  # to fill in for one tool; further inputs are written as JSON
CODE_CHARS = 20_000  # of JSON: arguments, answers, schemas
HOUR_SECONDS = 1.0  # the figures of the last hour are counted again after so long
FIGURES_SECONDS = 5.0  # the figures of charts, which cover longer times
LIVE_SECONDS = 0.25  # between two updates of an open page: a burst of events is one update

# --- server ---------------------------------------------------------------------------------------

KEEP_ALIVE_SECONDS = 75  # longer than balancers keep an idle connection, which is 60
# New requests are still accepted after /readyz says 503, so that balancers can turn away.
TURN_AWAY_SECONDS = 0.5
LONGEST_RESTART_SECONDS = 30.0  # between two starts of a worker that keeps dying
COLLECT_AFTER = 20_000  # new objects; Python's own number, 700, costs a sixth of a call

# --- cli ------------------------------------------------------------------------------------------

ID_CHARS = 12  # of an id that is shown: the time in it, to the millisecond
COMMAND_SECONDS = 150.0  # for an answer of the gateway: longer than a call waits for a person
CHECK_SECONDS = 20.0  # for definitions that `gateway check` reads, and for a check of `doctor`
BRIDGE_CALL_SECONDS = 600.0  # for an answer, progress included
EXPECTED_CLIENTS = 500  # a limit on open files that allows fewer is worth a warning
FREE_BYTES = 1_000_000_000  # on the store's disk: the ledger of a busy day
CERTIFICATE_DAYS = 21  # before its end: automatic renewal comes at 30
