"""Children read definitions: warm, replaced when they fail, and never a danger to the gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import orjson
import psutil
import pytest

from gateway.calls.answer import read_part
from gateway.errors import Broken, DefinitionUnreadable
from gateway.limits import MAX_OPERATIONS
from gateway.model import Build, Problem, pack
from gateway.openapi.build import build_openapi
from gateway.workers import Workers
from tests.definitions import SOURCE, like_github, like_stripe, openapi, operation
from tests.peers import until
from tests.raising import raises
from tests.slow.hostile import FAMILY

SMALL = orjson.dumps(openapi({"/a": {"get": operation()}}))
MB = 1024 * 1024
COSTS = "needs more (processor time|memory) than a reader may have|more than 1,000,000 nodes"


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    async with Workers() as running:
        yield running


def _children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if _is_reader(child)]


def _is_reader(child: psutil.Process) -> bool:
    try:
        return "gateway.reader" in child.cmdline()
    except psutil.Error:  # gone, or a zombie until it is waited for
        return False


async def test_a_child_builds_what_we_would_and_is_kept_for_the_next(workers: Workers) -> None:
    expected = build_openapi(SMALL, SOURCE)
    assert await workers.build(pack(SMALL), SOURCE) == expected
    (child,) = _children()
    builds = await asyncio.gather(*(workers.build(pack(SMALL), SOURCE) for _ in range(6)))

    assert builds == [expected] * 6
    assert _children() == [child]


async def test_an_unreadable_definition_is_refused_in_the_readers_words(workers: Workers) -> None:
    with raises(
        DefinitionUnreadable,
        message="Not valid JSON or YAML: did not find expected ',' or '}' (line 1, column 11).",
    ):
        await workers.build(pack(b'{"a": "b" "c"}'), SOURCE)

    assert len(_children()) == 1


async def test_a_child_that_misses_its_deadline_is_replaced(workers: Workers) -> None:
    await workers.build(pack(SMALL), SOURCE)
    (child,) = _children()

    with pytest.raises(DefinitionUnreadable, match=r"took longer than 0\.05 s"):
        await workers.build(pack(orjson.dumps(like_stripe())), SOURCE, deadline=0.05)

    assert not child.is_running()
    assert len((await workers.build(pack(SMALL), SOURCE)).tools) == 1


async def test_a_child_ended_from_outside_while_idle_is_replaced(workers: Workers) -> None:
    await workers.build(pack(SMALL), SOURCE)
    (child,) = _children()
    child.kill()

    assert len((await workers.build(pack(SMALL), SOURCE)).tools) == 1


async def test_a_child_ended_from_outside_at_its_start_costs_no_document() -> None:
    async with Workers() as workers:
        for _ in range(5):
            building = asyncio.ensure_future(workers.build(pack(SMALL), SOURCE))
            await until(lambda: bool(_children()))
            _children()[0].kill()

            assert len((await building).tools) == 1


async def test_a_crash_over_a_document_is_a_clear_error(workers: Workers) -> None:
    building = asyncio.ensure_future(workers.build(pack(like_github()), SOURCE))
    await until(lambda: bool(_children()))
    os.kill(_children()[0].pid, signal.SIGSEGV)

    with pytest.raises(DefinitionUnreadable, match="run out of memory or crash"):
        await building


async def test_a_cancelled_build_leaves_no_child_at_work(workers: Workers) -> None:
    building = asyncio.ensure_future(workers.build(pack(like_github()), SOURCE))
    await until(lambda: bool(_children()))
    (child,) = _children()
    building.cancel()

    with pytest.raises(asyncio.CancelledError):
        await building
    assert not child.is_running()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (b"bytes(3)", bytes(3)),
        (b"bytes(3_000_000)", bytes(3_000_000)),
        (b"bytes(10**9)", None),
        (b"1 / 0", None),
        (b"__import__('os').abort()", None),
        (b"all(iter(lambda: 1, 0))", None),
    ],
    ids=["small", "large", "too much memory", "failed", "crashed", "endless"],
)
async def test_other_work_is_done_or_given_up(
    workers: Workers, source: bytes, found: bytes | None
) -> None:
    assert await workers.work(eval, source, deadline=20 if found else 1) == found
    assert await workers.work(eval, b"b'next'") == b"next"


async def test_one_child_reads_a_large_answer_part_by_part(workers: Workers) -> None:
    answer = orjson.dumps([{"id": number} for number in range(90_000)])
    children = set()
    for number in (0, 89_999):
        part = await read_part(workers.work, answer, "", pointer="", offset=number, limit=1)
        assert part["value"] == [{"id": number}]
        children |= {*_children()}
    assert len(children) == 1


async def test_a_crowd_of_endless_work_stands_in_no_builds_way(workers: Workers) -> None:
    endless = b"all(iter(lambda: 1, 0))"
    crowd = [asyncio.create_task(workers.work(eval, endless)) for _ in range(600)]
    await until(lambda: bool(_children()))

    builds = await asyncio.gather(*(workers.build(pack(SMALL), SOURCE) for _ in range(6)))

    assert builds == [build_openapi(SMALL, SOURCE)] * 6
    for task in crowd:
        task.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)


async def test_closing_leaves_nothing_behind() -> None:
    tasks_before = asyncio.all_tasks()
    large = orjson.dumps(like_stripe())
    async with Workers() as workers:
        await workers.build(pack(SMALL), SOURCE)
        unfinished = [asyncio.ensure_future(workers.build(pack(large), SOURCE)) for _ in range(5)]
        await until(lambda: len(_children()) == 2)

    assert _children() == []
    for outcome in await asyncio.gather(*unfinished, return_exceptions=True):
        assert isinstance(outcome, Broken | Build)  # one may have been done just before
    assert asyncio.all_tasks() == tasks_before
    with pytest.raises(Broken):
        await workers.build(pack(SMALL), SOURCE)


async def test_a_child_has_its_own_pipes_and_neither_secrets_nor_the_gateways_files(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_SECRET_KEY", "very secret")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        os.set_inheritable(listening.fileno(), True)
        await workers.build(pack(SMALL), SOURCE)
        (child,) = _children()

    assert "GATEWAY_SECRET_KEY" not in child.environ()
    assert sorted(os.listdir(f"/proc/{child.pid}/fd"), key=int) == ["0", "1", "2", "3"]
    assert child.net_connections() == []


async def test_a_validator_gives_advice_beside_the_builds(workers: Workers) -> None:
    definition = openapi(
        {"/a/{id}": {"get": operation(parameters=[{"$ref": "http://127.0.0.1:9"}])}}
    )

    good = await workers.advise(pack(SMALL))
    (kept,) = _children()
    bad = await workers.advise(pack(orjson.dumps({**definition, "info": {}})))

    assert good == ()
    assert bad and {problem.severity for problem in bad} == {"info"}
    assert _children() == [kept]
    await until(lambda: not _children(), 30)


async def test_advice_on_what_is_too_large_is_skipped(workers: Workers) -> None:
    assert await workers.advise(pack(b" " * 5 * MB)) == (
        Problem("info", "", "validation skipped: larger than 4 MB"),
    )
    (slow,) = await workers.advise(pack(orjson.dumps(like_stripe(100))), deadline=0.05)
    assert slow.message.startswith("validation skipped: ")
    assert slow.message.endswith("took longer than 0.05 s.")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: b"[" * 30_000_000, "nested too deeply"),
        (lambda: b'{"a":' * 90 + b"[" * 150_000 + b"]" * 150_000 + b"}" * 90, "nested too deeply"),
        (lambda: b"[" + b"1," * 15_000_000 + b"1]", COSTS),
        (FAMILY["yaml-aliases"], "more than 1,000,000 nodes, aliases written out"),
        (FAMILY["operations-50k"], f"more operations than {MAX_OPERATIONS:,}"),
    ],
    ids=["brackets", "depth", "numbers", "aliases", "operations"],
)
async def test_hostile_definitions_are_refused_in_bounded_memory(
    workers: Workers, make: Callable[[], bytes], words: str
) -> None:
    raw = make()
    await workers.build(pack(SMALL), SOURCE)
    (child,) = _children()
    own, packed = psutil.Process().memory_info().rss, pack(raw)

    refused = pytest.raises(DefinitionUnreadable, match=words)
    with Peak(lambda: int(child.memory_info().rss)) as peak, refused:
        await workers.build(packed, SOURCE)

    assert peak.bytes < 180 * MB
    assert psutil.Process().memory_info().rss - own < 50 * MB
    assert len((await workers.build(pack(SMALL), SOURCE)).tools) == 1


class Peak:
    """The most that is taken while the block lasts, as often as it can be looked at."""

    def __init__(self, taken: Callable[[], int]) -> None:
        self._taken = taken
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.bytes = 0

    def _watch(self) -> None:
        with suppress(psutil.Error):
            while not self._done.wait(0.005):
                self.bytes = max(self.bytes, self._taken())

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


async def test_one_like_stripes_lists_in_two_megabytes(workers: Workers) -> None:
    build = await workers.build(pack(orjson.dumps(like_stripe())), SOURCE)

    assert len(build.tools) == 450
    assert sum(len(tool.entry) for tool in build.tools) < 2_000_000
