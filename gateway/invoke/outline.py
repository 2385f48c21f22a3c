"""A large answer laid out so that any part of it can be read without the rest.

Everything goes into one text: the JSON as orjson writes it, in which each value's own JSON is a
slice; then an index for each weighty value in it; then what is shown of the answer as a whole.
An index of an array or object knows where runs of its members begin. An object's also has buckets,
by hash of the name, that say in which run a member is; a string with escapes is there once more
without them. Lighter values need none: they are read with the run they are in.

Positions are in characters, as callers count. Pure, and heavy: for another process (`elsewhere`),
but for `plain`, which does without JSON and holds up nobody in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any

import msgspec
import orjson

from gateway.invoke.media import NOT_JSON, as_json, decoded, is_text, shown
from gateway.store.parts import Place, Span, Tape

WEIGHTY_CHARS = 16_384
NAMES_A_BUCKET = 512
MAX_NAMED_KEYS = 20
MAX_NAME_CHARS = 50
MAX_SEED_BYTES = 64  # the hash takes no more
MAX_BYTES = 64 * 1024 * 1024  # with indexes and all; sixteen megabytes of usual JSON come to forty

Run = tuple[int, int, int]  # its first member, and its span


@dataclass(frozen=True, slots=True)
class LaidOut:
    """The text, and where reading it begins."""

    parts: Sequence[bytes | memoryview]
    shown: Span | None  # the answer as a whole, where that is read by characters
    root: Place | None  # the JSON value, if it is one; see LargeResult


def packed(body: bytes, media_type: str, id: str) -> bytes:
    """As `laid_out`, from and to another process."""
    out = laid_out(body, media_type, seed_of(id))
    if sum(map(len, out.parts)) > MAX_BYTES:
        raise ValueError("its index is too large")
    return msgspec.msgpack.encode((out.shown, out.root, out.parts))


def unpacked(data: bytes | bytearray) -> LaidOut:
    """What was packed; the parts are views, not copies."""
    shown, root, parts = msgspec.msgpack.decode(data, type=_Packed)
    return LaidOut(parts, shown, root)


_Packed = tuple[list[int] | None, list[int] | None, list[memoryview]]


def plain(body: bytes, media_type: str, root: Place | None = None) -> LaidOut:
    """The answer as text only."""
    tape = Tape()
    span = tape.add_all(shown(body, media_type))
    return LaidOut(tape.parts(), span, root)


def laid_out(body: bytes, media_type: str, seed: bytes, *, weighty: int = WEIGHTY_CHARS) -> LaidOut:
    """The answer as one text with its indexes. The seed keeps names from being made to collide."""
    value = as_json(body, media_type, _read_frugally)
    if value is NOT_JSON:
        return plain(body, media_type)
    tape = _Tape(seed, weighty)
    json = orjson.dumps(value)
    root = _placed(tape, value, tape.add_all(decoded(json, "utf-8")))
    if isinstance(value, (list, str)):
        return LaidOut(tape.parts(), None, root)
    same = json == body or not is_text(body, media_type)
    whole = root[:2] if same else tape.add_all(shown(body, media_type))
    return LaidOut(tape.parts(), whole, root)


def _read_frugally(data: bytes | str) -> Any:
    """As orjson reads, which has it all twice meanwhile; what it can't write it has to read."""
    try:
        value = msgspec.json.decode(data)
        orjson.dumps(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError):
        return orjson.loads(data)
    return value


def seed_of(id: str) -> bytes:
    """What nobody knows who makes up an answer before it is given its id."""
    return id.encode()[:MAX_SEED_BYTES]


def name_hash(name: str, seed: bytes) -> int:
    """A number that nobody can choose names for who does not know the seed."""
    data = name.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=4, key=seed).digest())


def member_start(name: str) -> str:
    """What the JSON of an object's member begins with."""
    return orjson.dumps(name).decode() + ":"


def first_names(value: dict[str, Any]) -> list[str]:
    """Some names to show who asks for one that isn't there."""
    return [name[:MAX_NAME_CHARS] for name in islice(value, MAX_NAMED_KEYS)]


class _Tape(Tape):
    """The text so far, and how it is indexed."""

    def __init__(self, seed: bytes, weighty: int) -> None:
        super().__init__()
        self.seed = seed
        self.weighty = weighty


def _placed(tape: _Tape, value: Any, span: Span) -> Place:
    start, end = span
    if end - start <= tape.weighty or not isinstance(value, (dict, list, str)):
        return span
    if isinstance(value, dict):
        index = _object(tape, value, span)
    elif isinstance(value, list):
        index = _container(tape, value, value, span, _items_width)
    else:
        escaped = end - start - 2 > len(value)
        index = {"string": tape.add(value) if escaped else (start + 1, end - 1)}
    return start, end, *tape.add(orjson.dumps(index).decode())


def _object(tape: _Tape, value: dict[str, Any], span: Span) -> dict[str, Any]:
    members = list(value.items())
    index = _container(tape, value, members, span, _members_width)
    buckets: list[list[int]] = [[] for _ in range(1 + len(members) // NAMES_A_BUCKET)]
    firsts = [first for first, _ in index["runs"]][1:]
    run = 0
    for number, name in enumerate(value):
        if run < len(firsts) and firsts[run] == number:
            run += 1
        hashed = name_hash(name, tape.seed)
        buckets[hashed % len(buckets)] += (hashed, run)
    spans = [tape.add(orjson.dumps(bucket).decode()) for bucket in buckets]
    index["names"] = first_names(value)
    index["buckets"] = [start for start, _ in spans] + [spans[-1][1]]
    return index


Width = Callable[[list[Any]], int]


def _container(
    tape: _Tape, value: Any, members: list[Any], span: Span, width: Width
) -> dict[str, Any]:
    runs = list(_runs(members, span, width, tape.weighty))
    inner = {
        str(number): _placed(tape, *_only(value, members[first], start, end))
        for number, (first, start, end) in enumerate(runs)
        if end - start > tape.weighty
    }
    starts = [(first, start) for first, start, _ in runs]
    return {"count": len(members), "runs": starts, "inner": inner}


def _only(value: Any, member: Any, start: int, end: int) -> tuple[Any, Span]:
    if isinstance(value, list):
        return member, (start, end)
    name, inside = member
    return inside, (start + len(member_start(name)), end)


def _runs(members: list[Any], span: Span, width: Width, weighty: int) -> Iterator[Run]:
    """The members in runs that are not weighty, or have only one member."""
    aim = max(1, len(members) * weighty // 2 // (span[1] - span[0]))
    first = number = 0
    start = end = span[0] + 1
    for at in range(0, len(members), aim):
        run = members[at : at + aim]
        whole = width(run) if at + aim < len(members) else span[1] - 1 - end
        for count, size in _split(run, whole, width, weighty):
            if number > first and end + size - start > weighty:
                yield first, start, end - 1
                first, start = number, end
            number, end = number + count, end + size + 1
    yield first, start, end - 1


def _split(run: list[Any], size: int, width: Width, weighty: int) -> Iterator[tuple[int, int]]:
    if size <= weighty or len(run) == 1:
        yield len(run), size
        return
    half = len(run) // 2
    left = width(run[:half])
    yield from _split(run[:half], left, width, weighty)
    yield from _split(run[half:], size - 1 - left, width, weighty)


def _items_width(items: list[Any]) -> int:
    return len(orjson.dumps(items).decode()) - 2


def _members_width(members: list[tuple[str, Any]]) -> int:
    return len(orjson.dumps(dict(members)).decode()) - 2
