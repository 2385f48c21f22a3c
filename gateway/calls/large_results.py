"""Reading a large answer in parts: the other half of `output`'s preview.

A JSON pointer leads to a part of the answer. Where it leads to an array, offset and limit count
items; elsewhere they count characters of the text, which for a part of a JSON document is its JSON.
Each part is itself bounded, so that reading can't bring back what was too large to show.

An answer is laid out once, when it is kept (see `outline`); then a part is read with the few pieces
of text that lead to it, however large the rest. One that was cut, or whose JSON takes too much to
be laid out, is kept as the text that it is.

A large answer laid out so that any part of it can be read without the rest.

Everything goes into one text: the JSON as orjson writes it, in which each value's own JSON is a
slice; then an index for each weighty value in it; then what is shown of the answer as a whole.
An index of an array or object knows where runs of its members begin. An object's also has buckets,
by hash of the name, that say in which run a member is; a string with escapes is there once more
without them. Lighter values need none: they are read with the run they are in.

Positions are in characters, as callers count. Pure, and heavy: for another process (`elsewhere`),
but for `plain`, which does without JSON and holds up nobody in a thread.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Any

import msgspec
import orjson

from gateway.calls.answer import (
    ELSEWHERE_BYTES,
    NOT_JSON,
    Elsewhere,
    as_json,
    decoded,
    is_text,
    may_be_json,
    shown,
)
from gateway.calls.arguments import problem
from gateway.errors import Fixable
from gateway.store.database import Database
from gateway.store.results import Fetch, LargeResult, Place, Span, Tape, read_kept, save_result

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


RESULT_SECONDS = 3600.0
DEFAULT_ITEMS = 100
DEFAULT_CHARS = 20_000
MAX_SLICE_BYTES = 65_536
MAX_DIGITS = 100  # of a position: Python refuses to read numbers of thousands

Index = dict[str, Any]  # see `outline`


async def keep_result(
    db: Database,
    elsewhere: Elsewhere,
    id: str,
    principal: str,
    media_type: str,
    body: bytes,
    *,
    cut: bool = False,
) -> None:
    """Keeps an answer for its principal to read in parts; one that was cut is text only."""
    until = time.time() + RESULT_SECONDS
    out = await _laid_out(elsewhere, id, media_type, body, cut)
    result = LargeResult(id, principal, len(body), out.shown, out.root, until)
    await save_result(db, result, out.parts)


async def _laid_out(
    elsewhere: Elsewhere, id: str, media_type: str, body: bytes, cut: bool
) -> LaidOut:
    if not may_be_json(body, media_type):
        return await asyncio.to_thread(plain, body, media_type)
    if len(body) <= ELSEWHERE_BYTES and not cut:
        return await asyncio.to_thread(laid_out, body, media_type, seed_of(id))
    # Half a document is no JSON: finding that out by parsing it takes ten times its memory.
    data = None if cut else await elsewhere(packed, body, media_type, id)
    if data is None:
        return await asyncio.to_thread(plain, body, media_type, root=())
    return unpacked(data)


async def read_result(
    db: Database, id: str, principal: str, *, pointer: str, offset: int, limit: int | None
) -> dict[str, Any] | None:
    """The part of an answer that its owner asks for; None if it isn't there or not theirs."""
    read = partial(read_slice, pointer=pointer, offset=offset, limit=limit)
    return await read_kept(db, id, principal, time.time(), read)


async def read_json(db: Database, id: str, principal: str, *, most: int) -> bytes | None:
    """All of an answer that is JSON, even after its time; None if it has more bytes than that."""

    def whole(result: LargeResult, fetch: Fetch) -> bytes | None:
        if not result.root or result.bytes > most:
            return None
        return fetch(*result.root[:2]).encode()

    return await read_kept(db, id, principal, 0.0, whole)


def read_slice(
    result: LargeResult,
    fetch: Fetch,
    *,
    pointer: str = "",
    offset: int = 0,
    limit: int | None = None,
    max_bytes: int = MAX_SLICE_BYTES,
) -> dict[str, Any]:
    """`{bytes, total, offset, value, next_offset?}` of the part that the pointer leads to."""
    if offset < 0:
        raise problem("offset", "can't be negative")
    if limit is not None and limit < 1:
        raise problem("limit", "must be at least 1")
    found: Any
    if result.shown is not None and not pointer:
        found = _Text(fetch, *result.shown)
    elif result.root is None:
        raise problem("pointer", "leads nowhere: this result is not JSON")
    elif not result.root:
        why = "this result is cut or too intricate; read its text"
        raise problem("pointer", f"can't be followed: {why}")
    else:
        found = _found(seed_of(result.id), result.root, fetch, pointer)
    if isinstance(found, (list, _Array)):
        part = _items(found, pointer, offset, limit, max_bytes)
    else:
        part = _characters(_text(found), offset, limit, max_bytes)
    return {"bytes": result.bytes, **part}


@dataclass(frozen=True, slots=True)
class _Text:
    """A text that is still in the store."""

    fetch: Fetch
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def __getitem__(self, part: slice) -> str:
        start, stop, _ = part.indices(len(self))
        return self.fetch(self.start + start, self.start + stop)


@dataclass(frozen=True, slots=True)
class _Array:
    """An array that is still in the store."""

    fetch: Fetch
    index: Index
    end: int

    def __len__(self) -> int:
        count: int = self.index["count"]
        return count

    def since(self, offset: int, max_bytes: int) -> Iterator[Any]:
        """The items from there on, up to one that is too large."""
        for run in range(_run_at(self.index, offset), len(self.index["runs"])):
            start, end = _run_span(self.index, run, self.end)
            if str(run) in self.index["inner"] and end - start > max_bytes:
                return
            items = orjson.loads(f"[{self.fetch(start, end)}]")
            yield from items[max(0, offset - self.index["runs"][run][0]) :]


def _text(found: Any) -> str | _Text:
    return found if isinstance(found, (str, _Text)) else orjson.dumps(found).decode()


def _characters(
    text: str | _Text, offset: int, limit: int | None, max_bytes: int
) -> dict[str, Any]:
    end = offset + (DEFAULT_CHARS if limit is None else limit)
    value = text[offset : min(end, offset + max_bytes)]
    if len(value.encode("utf-8", "replace")) > max_bytes:
        value = value.encode("utf-8", "replace")[:max_bytes].decode("utf-8", "ignore")
    return _part(len(text), offset, value, len(value))


def _items(
    items: list[Any] | _Array, pointer: str, offset: int, limit: int | None, max_bytes: int
) -> dict[str, Any]:
    value: list[Any] = []
    size = 0
    since = items[offset:] if isinstance(items, list) else items.since(offset, max_bytes)
    most = min(DEFAULT_ITEMS if limit is None else limit, max_bytes)  # none is smaller than a byte
    for item in islice(since, most):
        size += len(orjson.dumps(item)) + 1
        if size > max_bytes:
            break
        value.append(item)
    if not value and offset < len(items):
        raise Fixable(
            "invalid_arguments",
            f"Item {offset} alone is larger than {max_bytes} bytes.",
            f"Read it with the pointer {pointer}/{offset}.",
        )
    return _part(len(items), offset, value, len(value))


def _part(total: int, offset: int, value: Any, length: int) -> dict[str, Any]:
    part = {"total": total, "offset": offset, "value": value}
    if length and offset + length < total:
        part["next_offset"] = offset + length
    return part


# --- following a pointer --------------------------------------------------------------------------


def _found(seed: bytes, place: Place, fetch: Fetch, pointer: str) -> Any:
    """What the pointer leads to: in the store still if it is weighty, otherwise as it is."""
    steps = _steps(pointer)
    for number, name in enumerate(steps):
        start, end, *indexed = place
        if not indexed:
            return _inside(orjson.loads(fetch(start, end)), steps[number:], pointer)
        index = orjson.loads(fetch(*indexed))
        run = _run_with(name, index, end, fetch, seed)
        if run is None:
            raise _nowhere(pointer, name, _there(index))
        if str(run) not in index["inner"]:
            text = fetch(*_run_span(index, run, end))
            if "names" in index:
                return _inside(orjson.loads(f"{{{text}}}"), steps[number:], pointer)
            item = orjson.loads(f"[{text}]")[int(name) - index["runs"][run][0]]
            return _inside(item, steps[number + 1 :], pointer)
        place = index["inner"][str(run)]
    return _at(place, fetch)


def _steps(pointer: str) -> list[str]:
    """The names in a JSON pointer (RFC 6901); `items/0` is taken for `/items/0`."""
    if pointer in ("", "#"):
        return []
    steps = pointer.removeprefix("#").removeprefix("/").split("/")
    return [step.replace("~1", "/").replace("~0", "~") for step in steps]


def _at(place: Place, fetch: Fetch) -> Any:
    start, end, *indexed = place
    if not indexed:
        return orjson.loads(fetch(start, end))
    index = orjson.loads(fetch(*indexed))
    if "string" in index:
        return _Text(fetch, *index["string"])
    return _Text(fetch, start, end) if "names" in index else _Array(fetch, index, end)


def _run_with(name: str, index: Index, end: int, fetch: Fetch, seed: bytes) -> int | None:
    """The run of members that has the one of this name."""
    if "string" in index:
        return None
    if "names" not in index:
        return _run_at(index, int(name)) if _is_position(name, index["count"]) else None
    return next(
        (run for run in _likely(name, index, fetch, seed) if _has(name, index, run, end, fetch)),
        None,
    )


def _likely(name: str, index: Index, fetch: Fetch, seed: bytes) -> list[int]:
    """One run, or none; more, or a wrong one, once in millions of names."""
    hashed, buckets = name_hash(name, seed), index["buckets"]
    at = hashed % (len(buckets) - 1)
    listed = orjson.loads(fetch(buckets[at], buckets[at + 1]))
    return [run for its, run in zip(listed[::2], listed[1::2], strict=True) if its == hashed]


def _has(name: str, index: Index, run: int, end: int, fetch: Fetch) -> bool:
    start, stop = _run_span(index, run, end)
    if str(run) in index["inner"]:
        begin = member_start(name)
        return fetch(start, min(stop, start + len(begin))) == begin
    return name in orjson.loads(f"{{{fetch(start, stop)}}}")


def _run_at(index: Index, position: int) -> int:
    return bisect_right(index["runs"], position, key=lambda run: run[0]) - 1


def _run_span(index: Index, run: int, end: int) -> tuple[int, int]:
    runs = index["runs"]
    return runs[run][1], (runs[run + 1][1] if run + 1 < len(runs) else end) - 1


def _inside(value: Any, steps: list[str], pointer: str) -> Any:
    for name in steps:
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and _is_position(name, len(value)):
            value = value[int(name)]
        else:
            raise _nowhere(pointer, name, _there(_index_of(value)))
    return value


def _is_position(name: str, count: int) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= MAX_DIGITS and int(name) < count


def _nowhere(pointer: str, name: str, there: str) -> Fixable:
    return problem("pointer", f"{pointer[:100]!r} leads nowhere: at {name[:50]!r} {there}")


def _index_of(value: Any) -> Index:
    """As much of an index as it takes to say what is there."""
    if isinstance(value, dict):
        return {"names": first_names(value)}
    return {"count": len(value)} if isinstance(value, list) else {"string": ()}


def _there(index: Index) -> str:
    if "names" in index:
        keys = ", ".join(map(repr, index["names"]))
        return f"there are the keys {keys}" if keys else "there is an empty object"
    if "count" in index:
        return f"there is an array of {index['count']}"
    return "there is nothing further inside"
