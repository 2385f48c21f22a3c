from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack, suppress
from datetime import UTC, datetime

import pytest

from gateway.calls.admission import Admission, Slots, retry_after_seconds
from gateway.errors import Overloaded
from gateway.limits import CALLS_PER_CONNECTION, LARGE_ANSWERS, LARGE_BYTES, MAX_WAITING_CALLS
from gateway.model import RateLimit
from gateway.outbound.client import NoAnswer
from gateway.outbound.content import collect
from tests.clock import Clock
from tests.peers import soon
from tests.raising import raises


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limits(clock: Clock) -> Admission:
    return Admission(clock=clock)


def refusal(error: Overloaded) -> tuple[str, int]:
    return error.code, error.details["retry_after"]


# --- rate -----------------------------------------------------------------------------------------


async def test_no_window_holds_more_requests_than_the_limit(
    clock: Clock, limits: Admission
) -> None:
    sent: list[float] = []
    for _ in range(400):
        clock.now += 0.1
        try:
            await limits.admit("c", "p", RateLimit(5, 2.0))
            sent.append(clock.now)
        except Overloaded:
            continue
    assert max(sum(t < s <= t + 1.9999 for s in sent) for t in [0.0, *sent]) <= 5
    assert len(sent) > 90


async def test_rate_limit_says_when_to_try_again_and_holds_per_connection_and_principal(
    clock: Clock, limits: Admission
) -> None:
    limit = RateLimit(2, 10.0)
    await limits.admit("c", "p", limit)
    clock.now += 4
    await limits.admit("c", "p", limit)
    with pytest.raises(Overloaded) as error:
        await limits.admit("c", "p", limit)
    assert refusal(error.value) == ("rate_limited", 6)
    await limits.admit("c", "q", limit)
    await limits.admit("d", "p", limit)
    clock.now += 6
    await limits.admit("c", "p", limit)


async def test_smaller_limit_counts_what_was_sent_before(limits: Admission) -> None:
    for _ in range(5):
        await limits.admit("c", "p", RateLimit(5, 10.0))
    with pytest.raises(Overloaded):
        await limits.admit("c", "p", RateLimit(1, 10.0))


# --- slots ----------------------------------------------------------------------------------------


async def test_call_over_the_bound_waits_its_turn_and_then_runs() -> None:
    limits = Admission(1)
    order: list[str] = []
    async with asyncio.timeout(60):
        async with limits.health_of("a"):
            waiting = asyncio.create_task(_run(limits, "b", order))
            await asyncio.sleep(0)
            order.append("a")
        await waiting
    assert order == ["a", "b"]


async def _run(limits: Admission, connection: str, order: list[str]) -> None:
    async with limits.health_of(connection):
        order.append(connection)


async def test_call_that_waits_too_long_is_told_busy() -> None:
    limits = Admission(1)
    async with limits.health_of("a"):
        with pytest.raises(Overloaded) as error:
            async with limits.health_of("b"):
                pass
        assert refusal(error.value) == ("busy", 1)
    async with limits.health_of("b"):
        pass


async def test_queue_is_bounded_and_the_rest_is_busy_at_once() -> None:
    limits = Admission(1000)
    async with AsyncExitStack() as stack:
        for _ in range(CALLS_PER_CONNECTION):
            await stack.enter_async_context(limits.health_of("a"))
        order: list[str] = []
        waiting = [asyncio.create_task(_run(limits, "a", order)) for _ in range(MAX_WAITING_CALLS)]
        await asyncio.sleep(0)
        with raises(Overloaded, code="busy"):
            async with limits.health_of("a"):
                pass
        async with limits.health_of("b"):  # another connection has slots of its own
            pass
    await soon(asyncio.gather(*waiting))
    assert len(order) == MAX_WAITING_CALLS


async def test_waiters_that_give_up_lose_no_slot() -> None:
    slots = Slots(1, "It")
    async with asyncio.timeout(60):
        await slots.take()
        tasks = [asyncio.create_task(_hold(slots)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        slots.free()
        tasks[1].cancel()  # just when its turn has come
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [task.cancelled() for task in tasks] == [True, True, False]
        await _hold(slots)


async def _hold(slots: Slots) -> None:
    await slots.take()
    slots.free()


async def test_a_new_bound_holds_for_calls_to_come() -> None:
    limits = Admission(1)
    async with limits.health_of("a"):
        limits.resize(2)
        async with limits.health_of("b"):
            limits.resize(1)
    async with limits.health_of("a"):
        with raises(Overloaded, code="busy"):
            async with limits.health_of("b"):
                pass


# --- circuit --------------------------------------------------------------------------------------


async def fail(limits: Admission, times: int = 1) -> None:
    for _ in range(times):
        with suppress(NoAnswer):
            async with limits.health_of("c"):
                raise lost()


async def refused(limits: Admission) -> tuple[str, int] | None:
    try:
        async with limits.health_of("c") as outcome:
            outcome.note_answer(200)
    except Overloaded as error:
        return refusal(error)
    return None


async def test_circuit_opens_after_failures_in_a_row_and_closes_after_a_good_probe(
    clock: Clock, limits: Admission
) -> None:
    await fail(limits, 4)
    assert await refused(limits) is None
    await fail(limits, 5)
    assert await refused(limits) == ("circuit_open", 10)
    clock.now += 9.5
    assert await refused(limits) == ("circuit_open", 1)
    clock.now += 0.5
    assert await refused(limits) is None
    await fail(limits, 4)
    assert await refused(limits) is None


async def test_only_one_call_probes_an_open_circuit(clock: Clock, limits: Admission) -> None:
    await fail(limits, 5)
    clock.now += 10
    async with limits.health_of("c") as probe:
        assert await refused(limits) == ("circuit_open", 10)
        probe.note_failure()
    assert await refused(limits) == ("circuit_open", 10)


async def test_probe_that_is_given_up_makes_room_for_the_next(
    clock: Clock, limits: Admission
) -> None:
    await fail(limits, 5)
    clock.now += 10
    async with limits.health_of("c"):
        pass
    assert await refused(limits) == ("circuit_open", 10)
    clock.now += 10
    assert await refused(limits) is None


@pytest.mark.parametrize(
    ("status", "opens"), [(500, True), (502, True), (504, True), (501, False), (404, False)]
)
async def test_answers_of_a_broken_api_open_the_circuit(
    limits: Admission, status: int, opens: bool
) -> None:
    for _ in range(5):
        async with limits.health_of("c") as outcome:
            outcome.note_answer(status)
    assert (await refused(limits) is not None) is opens


# --- pause and retries ----------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_of_the_api_is_kept_to(
    clock: Clock, limits: Admission, status: int
) -> None:
    async with limits.health_of("c") as outcome:
        outcome.note_answer(status, "7")
    assert await refused(limits) == ("rate_limited", 7)
    clock.now += 7
    assert await refused(limits) is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("0", 0.0),
        ("12", 12.0),
        (" 12 ", 12.0),
        ("999999999999999999", 300.0),
        ("-1", None),
        ("soon", None),
        ("Wed, 01 Jan 2025 00:00:30 GMT", 30.0),
        ("Wed, 01 Jan 2020 00:00:00 GMT", 0.0),
        ("Fri, 01 Jan 2100 00:00:00 GMT", 300.0),
    ],
)
def test_retry_after_is_read_in_both_forms_within_reason(
    value: str | None, seconds: float | None
) -> None:
    assert retry_after_seconds(value, datetime(2025, 1, 1, tzinfo=UTC)) == seconds


def lost(code: str = "upstream_unreachable", sent: bool = False) -> NoAnswer:
    return NoAnswer(code, "lost", sent=sent)


@pytest.mark.parametrize(
    ("method", "error", "may"),
    [
        ("GET", lost(), True),
        ("HEAD", lost(), True),
        ("POST", lost(), False),
        ("DELETE", lost(), False),
        ("GET", lost(sent=True), False),
        ("GET", lost("upstream_timeout"), False),
    ],
)
async def test_only_a_read_that_never_left_may_be_repeated(
    method: str, error: NoAnswer, may: bool
) -> None:
    async with Admission().health_of("c") as outcome:
        assert outcome.may_retry(method, error) is may


async def test_an_api_that_fails_is_not_asked_twice_as_often() -> None:
    limits = Admission()
    await fail(limits)
    async with limits.health_of("c") as passage:
        assert not passage.may_retry("GET", lost())
        passage.note_answer(200)
    async with limits.health_of("c") as passage:
        assert passage.may_retry("GET", lost())


async def held(limits: Admission, connection: str, size: int, seconds: float = 0.0) -> int:
    """How much is held of an answer of this size that comes in pieces."""
    pieces = [bytes(size % LARGE_BYTES)] + [bytes(LARGE_BYTES)] * (size // LARGE_BYTES)

    async def read() -> bytes:
        return pieces.pop() if pieces else b""

    until = asyncio.get_running_loop().time() + seconds
    with limits.room_for_large(connection) as room:
        body, cut = await collect(read, 8 * LARGE_BYTES, room, until)
    assert cut == (len(body) < size)
    return len(body)


async def test_few_large_answers_are_held_at_a_time_and_the_others_are_cut() -> None:
    limits, large = Admission(), 3 * LARGE_BYTES
    async with asyncio.timeout(60):
        with ExitStack() as stack:
            for number in range(LARGE_ANSWERS):
                assert await held(limits, "other", large, 1) == large
                room = stack.enter_context(limits.room_for_large(str(number)))
                assert await room.take(asyncio.get_running_loop().time() + 1)
                assert await held(limits, str(number), large) == LARGE_BYTES  # one a connection
            assert await held(limits, "other", large) == LARGE_BYTES
            assert await held(limits, "other", LARGE_BYTES) == LARGE_BYTES
            waiting = asyncio.create_task(held(limits, "other", large, 5))
            await asyncio.sleep(0)
        assert await waiting == large
        assert await held(limits, "other", 9 * LARGE_BYTES, 1) == 8 * LARGE_BYTES
