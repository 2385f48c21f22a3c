"""The numbers that bound something, room by room, each with its reason.

What users may want to change is in config.toml; these are the rest, and they are few: a bound is
here because something would otherwise grow, wait or repeat without end.
"""

from __future__ import annotations

# --- all rooms ------------------------------------------------------------------------------------

MAX_REMEMBERED = 8192  # names, tokens, views, sessions in a cache: each is found out again
SETTLE_SECONDS = 0.2  # saves, requests, changes and rows that come together are taken together
MOMENT_SECONDS = 2.0  # a wait nobody minds; and between two looks, where a signal may be lost
REST_SECONDS = 1.0  # between looks, reports, records of reads; after a failure; for a child to end
DOUBT_SECONDS = 5.0  # for an upstream to show that it is alive; between two looks at what fails
LONGEST_PAUSE_SECONDS = 300.0  # between two tries of what keeps failing, as we or others ask for
FETCH_SECONDS = 5.0  # for something small that a caller waits for: a name, keys, a link, a document
KEEP_SECONDS = 60.0  # what others said is believed: Azure's listings, a JWT, that a key is unknown
CHARS_A_TOKEN = 4.6  # on average, as far as anybody can tell without the model's own counting
LARGE_BYTES = 256 * 1024  # of an answer: a larger one waits for room, and for a worker to read it
MAX_ANSWER_BYTES = 16 * 1024 * 1024  # of an API, unless max_output_bytes is more; of a whole list
STEP_BYTES = 65_536  # at a time, of a body or an answer: a millisecond's work
NAME_CHARS = 128  # of a name, a title, a client, a value on one line
MAX_QUOTE_CHARS = 500  # of somebody else's text inside a sentence of ours, of a question
PREVIEW_CHARS = 2_000  # of a large answer or a long description, some 430 tokens
PAGE_ENTRIES = 100  # of a list or an array, where the caller does not say how many
MAX_LIST_PAGES = 50  # of Azure: a list without end has to end somewhere
DECODINGS = 6  # of a path that is encoded over and over; one that is not plain by then is refused

# --- outbound -------------------------------------------------------------------------------------

MAX_EXCHANGES = 1024  # at a time, more wait: calls are bounded below, upstreams' streams are not
IDLE_SECONDS = 4.0  # of a kept connection: Node and uvicorn close theirs after five
REMEMBER_SECONDS = 10.0  # what a name means, and whether TLS files are as they were
MAX_JSON_DEPTH = 200  # deeper, and what we parsed could not be written again inside a result

# --- openapi --------------------------------------------------------------------------------------
# How much a definition may cost is bounded where it is read: READER_BYTES and READ_CPU_SECONDS.

MAX_OPERATIONS = 10_000  # of one definition: a snapshot holds each, listed or not
MAX_YAML_NODES = 1_000_000  # with each alias written out: Stripe's have 165,000
MAX_HOPS = 50  # references that lead to references: then they go round in a circle
MAX_LEVELS = 6  # of allOf, of defaults, of XML: real ones have three
MAX_WIDTH = 1_000  # inputs of one operation; schemas that one value meets on one level
MAX_WIRE_NAME = 500  # characters of an operation id, a parameter's name or a media type
MAX_TOOL_NAME = 64  # characters: what every client takes, of tools and of their arguments
MAX_PROPERTY_WORDS = 256  # characters of an input's description
REPEATED_OPERATIONS = 8  # of fewer, nobody can tell what is repeated in all from what is alike
REPEATED_CHARS = 40  # of words that are worth saying once instead: with less goes sense, not cost
MAX_PROBLEMS = 200  # of one kind that a person is told of a connection
PATTERN_BYTES = 256 * 1024  # of a compiled pattern; what needs more is not checked
INPUT_BYTES = 16 * 1024  # of a tool's input as it is listed, where there is room; of one value
LISTED_BYTES = 1536 * 1024  # of the inputs of all tools of a definition, where they are few
MAX_SCHEMA_BYTES = 64 * 1024  # of an input that no pruning brings below, an answer, look-ups
MAX_TOOL_BYTES = 512 * 1024  # of the schema of one tool, whole

# --- plain ----------------------------------------------------------------------------------------

PLAIN_STEP_BYTES = 24  # that a property takes at least: as many are looked at as there is room for
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
HELD_SECONDS = 10.0  # a session that lived so long was no crash; and for an upstream to take a word
LISTEN_SECONDS = 600.0  # then a stream of notices is opened anew: it may have gone deaf
UNUSED_SECONDS = 1800.0  # then a principal's own session is ended
LAST_BYTES_SECONDS = 0.02  # for the end of an answer, so that its connection can be used again
MAX_PENDING = 128  # calls on a session, messages that wait for one of them, lines of a child's log
MAX_MESSAGE_BYTES = 8 * 1024 * 1024  # of a server, or of a client on standard input
MAX_CONTAINERS = 250_000  # of a message: read in some 30 ms; 8 MB of them would take half a second
MAX_ROUNDS = 10  # of questions before an answer, of streams for one answer

# --- azure ----------------------------------------------------------------------------------------

AZURE_BYTES = 32 * 1024 * 1024  # of one answer: the list of all connectors is one page
AZURE_TRIES = 3  # of a request that Azure throttles
AZURE_PAUSE_SECONDS = 10.0  # that Azure may ask for; a longer one is told instead of waited for
LOOKED_UP_DEPTH = 20  # of a schema that was looked up; what lies deeper is left open

# --- catalog --------------------------------------------------------------------------------------

DEFINITION_SECONDS = 4.5  # for one to be fetched, where the connection says nothing
DEFINITION_CACHE_BYTES = 8 * 1024 * 1024  # of definitions that a put after a preview finds again
DEFINITION_REDIRECTS = 5  # on the way to one, on the same host
PARALLEL_REFRESHES = 8
COMPARED_NODES = 20_000  # of two schemas; what lies beyond counts as changed
FORMER_NAME_SECONDS = 30 * 86_400.0  # a tool that was renamed answers to the name it had
SEARCH_COMPLETIONS = 12  # of a last word that is not finished

# --- calls ----------------------------------------------------------------------------------------

CALLS_PER_CONNECTION = 32  # at the same time: a slow API must not take all of max_concurrent_calls
CALLS_PER_PRINCIPAL = 16  # that go on without a request: undecided, in the background, or held
MAX_WAITING_CALLS = 256  # for a slot or for an answer of their client: beyond, `busy` is kinder

FAILURES_TO_OPEN = 5  # in a row, then the API is left alone for a while
OPEN_SECONDS = 10.0  # after which one call tries again

LARGE_ANSWERS = 4  # that are held at the same time: each may take MAX_ANSWER_BYTES
RESULT_SECONDS = 3600.0  # a model that works with a large answer reads it within the hour
MAX_RECORDED_BYTES = 16 * 1024  # of arguments or output in the ledger: a history, no archive
MAX_TOLD_ITEMS = 20  # problems or names that are listed one by one

CHECK_STEPS = 10_000  # of checking and filling in, before a schema counts as endless
LOOKUP_BYTES = 2 * 1024 * 1024  # of one answer: parsing it holds up others for a hundredth second
LOOKUP_VALUES = 1000  # more than a person or a model chooses from
LOOKUP_PAGES = 5  # of a list that comes in pages

SHORTEST_SECRET = 6  # characters: shorter ones would tear holes into innocent text
TOKEN_SECONDS = 10.0  # for a token endpoint's answer, and between two tries to renew
AZURE_SECONDS = 20.0  # for an answer of Azure itself, which is slow to list
TOKEN_LIFE_SECONDS = 300.0  # of a token that does not say

# --- oauth ----------------------------------------------------------------------------------------

CODE_SECONDS = 60.0  # a code is used at once, by a program
REFRESH_GRACE_SECONDS = 10.0  # a refresh whose answer was lost, or that two processes made
SIGN_IN_SECONDS = 600.0  # for a person to sign in at a provider, or to decide on a client
CLIENT_DOCUMENT_BYTES = 16 * 1024  # of a client's document, registration or form
CLIENT_KEPT_SECONDS = 300.0  # a client's document is believed at least, and at most:
CLIENT_LONGEST_KEPT_SECONDS = 24 * 3600.0
DISCOVERY_SECONDS = 3600.0  # a provider's own document is believed
MAX_OAUTH_CLIENTS = 20_000  # that registered themselves; the oldest unused give way
REGISTRATIONS_A_MINUTE = 60  # from one address
AUTHORIZATIONS_A_MINUTE = 600

# --- store ----------------------------------------------------------------------------------------

# Reads, and writes, that may wait for the store at once; one more is told `busy`.
STORE_QUEUE = 1024
# Connections that read at once, beside the one that writes.
STORE_READERS = 4
# One statement, or one batch of writes; a write waits for the batch before its own, too.
STORE_STATEMENT_SECONDS = 5.0
STORE_WRITE_SECONDS = 2 * STORE_STATEMENT_SECONDS
# Bytes that a burst may take: rows that wait in memory while the store is away, and the write-ahead
# log that SQLite keeps afterwards.
STORE_BURST_BYTES = 32 * 2**20
# Between two looks at what other processes told, where nothing wakes a reader (SQLite).
STORE_LOOK_SECONDS = 0.1
# A process says that it is alive this often, and is taken for dead after five beats that failed.
HEARTBEAT_SECONDS = 3.0
SILENT_SECONDS = 5 * HEARTBEAT_SECONDS
# Rows that one statement gives, or removes: a page, a list for people, a step of a sweep.
STORE_ROWS = 500
# Rows of what is counted for a chart, or taken up at a start.
STORE_MANY_ROWS = 10_000
# Large answers kept for one principal; the oldest goes first.
RESULTS_BYTES = 256 * 2**20
# A key for sealing that is no Fernet key is a passphrase of at least this length.
PASSPHRASE_CHARS = 16

# --- mcp ------------------------------------------------------------------------------------------

SESSION_SECONDS = 7 * 24 * 3600.0  # a session of the 2025 era; and "always allow" in one
MAX_BATCH = 50  # requests in one body (2025-03-26): each takes a place among the calls
MAX_QUEUED = 256  # messages that wait for one slow reader; what is beyond is dropped
MAX_STREAMS_PER_PRINCIPAL = 1024
ATTEND_AFTER_SECONDS = 0.5  # most calls end before anybody has to watch their connection
MAX_INSTRUCTIONS_CHARS = 8192  # of all servers together: every client's model reads them
MAX_WATCHED = 500  # resources that one principal watches
MAX_TOLD_NAMES = 1000  # of tools that came, went or changed: some 35 KB of each, in every result
LINGER_SECONDS = 60.0  # for a client to open its stream again, and a server to take note of a wish

# --- web ------------------------------------------------------------------------------------------

MAX_BODY_BYTES = 4 * 1024 * 1024  # of a request; larger things are not said in one call
REQUEST_SECONDS = 30.0  # for a body to arrive, where no configuration says otherwise
SEND_SECONDS = 10.0  # a reader of a stream that takes nothing for so long is let go
PING_SECONDS = 15.0  # proxies end streams that are silent for longer
STREAMS_A_PRINCIPAL = 32  # of the live feed and of console pages, in one process
FAILURES_A_MINUTE = 8  # of one address or principal: nobody guesses tokens or names by trying
ALL_FAILURES_A_MINUTE = 60
SIGNING_KEYS_KEPT_SECONDS = 600.0  # a key that its issuer took back is good no longer than this
PATH_CHARS = 4096  # of a raw request: every way to read it is looked at
SEARCH_ENTRIES = 10  # of a search by words: a model reads them all
SUMMARY_CHARS = 200  # of a text in a list that is read to choose from

# --- console --------------------------------------------------------------------------------------

SIGNED_IN_SECONDS = 12 * 3600.0  # a working day
LINK_SECONDS = 15 * 60.0  # the link that is printed at start signs in once, for so long
FORM_BYTES = 12 * 1024 * 1024  # a pasted definition of 4 MB, encoded for a form
TABLE_ROWS = 5000  # of one table that is not read in pages, or one file
FORM_FIELDS = 80  # to fill in for one tool; what is beyond is written as JSON
CODE_CHARS = 20_000  # of JSON: arguments, answers, schemas
HOUR_SECONDS = 1.0  # the figures of the last hour are counted again after so long
FIGURES_SECONDS = 5.0  # and those of charts, which are of longer times
LIVE_SECONDS = 0.25  # between two looks at an open page: a burst is one step

# --- server ---------------------------------------------------------------------------------------

KEEP_ALIVE_SECONDS = 75  # longer than balancers keep an idle connection, which is 60
# New requests are still taken after /readyz went 503, so that balancers can turn away.
TURN_AWAY_SECONDS = 0.5
LONGEST_RESTART_SECONDS = 30.0  # between two starts of a worker that keeps dying
COLLECT_AFTER = 20_000  # objects more than before; Python's own is 700, a sixth of a call

# --- cli ------------------------------------------------------------------------------------------

ID_CHARS = 12  # of an id that is shown: the time in it, to the millisecond
COMMAND_SECONDS = 150.0  # for an answer of the gateway: longer than a call waits for a person
CHECK_SECONDS = 20.0  # for definitions that `gateway check` reads, and for a look of `doctor`
BRIDGE_CALL_SECONDS = 600.0  # for an answer, progress included
EXPECTED_CLIENTS = 500  # below that many, the limit on open files is worth a warning
FREE_BYTES = 1_000_000_000  # on the store's disk: the ledger of a busy day
CERTIFICATE_DAYS = 21  # before its end: renewal by itself would have come at 30
