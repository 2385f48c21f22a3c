"""The numbers that bound a call, each with its reason."""

from __future__ import annotations

# --- large answers --------------------------------------------------------------------------------

HEAVY_BYTES = 65_536  # of an answer: more is shaped in a thread, since it takes a millisecond
RESULT_SECONDS = 3600.0  # a model that works with a large answer reads it within the hour
DEFAULT_ITEMS = 100  # of a large array that are read at once
DEFAULT_CHARS = 20_000  # of a large text that are read at once, some 4,300 tokens
MAX_PART_BYTES = 65_536  # of a large answer in one part, however much is asked for
MAX_NAMES_TOLD = 20  # in an error that says what is there instead
