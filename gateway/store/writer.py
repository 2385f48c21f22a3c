"""Group commit: one task a process writes for everyone, and the disk is waited for once a batch.

A unit of work is a plain function of the transaction. Whatever units wait when the writer is free
run one after the other in one transaction and are answered after its commit, so an answer means
"on disk". If one of them fails, or the connection breaks before the commit, the batch is run again
with a savepoint around each: a failing unit fails only itself, and the usual case pays for no
savepoints. A unit may so run twice; it must do nothing but talk to the transaction it is given.

Rows that need not be on disk first (`write_soon`) ride along with the next batch, at the latest
after 200 ms. They stay in memory while the store is down; beyond a bound they are refused and
counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from gateway.errors import GatewayError
from gateway.store.statements import FAILURES, busy, translated, unavailable

T = TypeVar("T")
Unit = Callable[[Connection], Any]
Row = Mapping[str, Any]
RowWriter = Callable[[Connection, Sequence[Row]], None]

MAX_BATCH = 256
MAX_WAITING = 1024
MAX_SOON_ROWS = 10_000
MAX_SOON_BYTES = 32 * 2**20
SOON_SECONDS = 0.2  # every batch writes the same pages again; who reads the ledger settles it first
RETRY_SECONDS = 1.0
ANSWER_SECONDS = 10.0  # waiting for its turn and for the commit
CLOSE_SECONDS = 10.0

log = structlog.get_logger()


class Transact(Protocol):
    """Runs a function in one transaction and commits it."""

    def __call__(self, batch: Callable[[Connection], T], /) -> Awaitable[T]: ...


@dataclass(slots=True)
class Work:
    """A unit, who waits for it, and which shared row it will lock."""

    unit: Unit
    answer: asyncio.Future[Any]
    locks: str


@dataclass(frozen=True, slots=True)
class SoonRow:
    """A row that need not be on disk first, and what writes it."""

    writer: RowWriter
    row: Row
    size: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What the writer has done so far, for metrics."""

    units: int
    commits: int
    waiting: int
    soon: int
    dropped: int


class GroupCommit:
    """The queue and the one task that empties it."""

    def __init__(self, transact: Transact) -> None:
        self._transact = transact
        self._waiting: deque[Work] = deque()
        self._soon: deque[SoonRow] = deque()
        self._soon_bytes = 0
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = self._down = self._writing = False
        self._units = self._commits = self._dropped = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="store-writer")

    async def write(self, unit: Callable[[Connection], T], locks: str = "") -> T:
        """What the unit returned, once it is committed.

        `locks` names the row that units of several processes fight for. A batch takes them in
        order, so that two batches can't hold what the other one wants.
        """
        if self._closing or self._task is None:
            raise unavailable("The store is closed.")
        if len(self._waiting) >= MAX_WAITING:
            raise busy("writes")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(Work(unit, answer, locks))
        self._wake.set()
        with translated():
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer

    def write_soon(self, writer: RowWriter, row: Row, size: int = 0) -> bool:
        """Keeps a row for the next batch; False (and counted) where there is no room left."""
        full = len(self._soon) >= MAX_SOON_ROWS or self._soon_bytes + size > MAX_SOON_BYTES
        if self._closing or full:
            self._dropped += 1
            return False
        self._soon.append(SoonRow(writer, row, size))
        self._soon_bytes += size
        self._wake_within(SOON_SECONDS)
        return True

    async def settle(self) -> None:
        """Returns once the rows that were kept for the next batch are on disk."""
        if self._soon or self._writing:
            await self.write(lambda tx: None)  # rides in, or behind, the batch that holds them

    def figures(self) -> Figures:
        return Figures(
            self._units, self._commits, len(self._waiting), len(self._soon), self._dropped
        )

    async def close(self) -> None:
        """Writes what waits, then stops. What can't be written in time is failed and counted."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._give_up()

    async def _run(self) -> None:
        while not (self._closing and not self._waiting and not self._soon):
            await self._wake.wait()
            self._wake.clear()
            self._writing = True
            stored = await self._commit(self._take_units(), self._take_soon())
            self._writing = False
            if self._closing and not stored:
                return
            if self._waiting:
                self._wake.set()
            elif self._soon:
                self._wake_within(SOON_SECONDS if stored else RETRY_SECONDS)
            elif self._closing:
                return

    def _wake_within(self, seconds: float) -> None:
        if self._timer is None and not self._closing:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._wake.set)
        elif self._closing:
            self._wake.set()

    def _take_units(self) -> list[Work]:
        batch: list[Work] = []
        while self._waiting and len(batch) < MAX_BATCH:
            work = self._waiting.popleft()
            if not work.answer.done():  # given up meanwhile: then it must not happen either
                batch.append(work)
        batch.sort(key=lambda work: work.locks)
        return batch

    def _take_soon(self) -> list[SoonRow]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        rows = list(self._soon)
        self._soon.clear()
        self._soon_bytes = 0
        return rows

    async def _commit(self, batch: list[Work], soon: list[SoonRow]) -> bool:
        """Whether the store took the batch; each unit of it has its answer either way."""
        if not batch and not soon:
            return True
        units = [*_grouped(soon), *(work.unit for work in batch)]
        try:
            outcomes = await self._outcomes(units, batch, soon)
        except Exception as error:  # the task must live on, whatever the driver thought of
            self._failed(error, batch, soon)
            return False
        self._took(len(batch))
        for work, outcome in zip(batch, outcomes, strict=True):
            _settle(work.answer, outcome)
        return True

    def _took(self, units: int) -> None:
        self._commits += 1
        self._units += units
        if self._down:
            log.warning("store_recovered")
            self._down = False

    async def _outcomes(
        self, units: list[Unit], batch: list[Work], soon: list[SoonRow]
    ) -> list[Any]:
        try:
            results = await self._transact(lambda tx: _run_all(tx, units))
        except _UnitFailed as failed:
            if len(batch) == 1 and not soon and not _cut_off(failed.error):
                return [_Failure(failed.error)]
            return await self._carefully(batch, soon)
        return results[len(units) - len(batch) :]

    async def _carefully(self, batch: list[Work], soon: list[SoonRow]) -> list[Any]:
        units = [*(_single(each) for each in soon), *(work.unit for work in batch)]
        outcomes = await self._transact(lambda tx: _run_each(tx, units))
        refused = sum(isinstance(outcome, _Failure) for outcome in outcomes[: len(soon)])
        if refused:
            self._dropped += refused
            log.warning("store_rows_refused", rows=refused)
        return outcomes[len(soon) :]

    def _failed(self, error: Exception, batch: list[Work], soon: list[SoonRow]) -> None:
        if not self._down:  # said once, not for every batch of an outage
            log.error("store_write_failed", error=type(error).__name__, units=len(batch))
            self._down = True
        for work in batch:
            _settle(work.answer, _Failure(error))
        self._soon.extendleft(reversed(soon))
        self._soon_bytes += sum(each.size for each in soon)

    def _give_up(self) -> None:
        for work in self._waiting:
            _settle(work.answer, _Failure(unavailable("The store is closed.")))
        self._dropped += len(self._soon)
        if self._soon:
            log.error("store_rows_lost", rows=len(self._soon))


class _UnitFailed(Exception):
    """One of the units failed, so nothing was committed: run them again, each on its own."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


@dataclass(frozen=True, slots=True)
class _Failure:
    error: BaseException


def _cut_off(error: Exception) -> bool:
    return isinstance(error, DBAPIError) and error.connection_invalidated


def _run_all(tx: Connection, units: Sequence[Unit]) -> list[Any]:
    try:
        return [unit(tx) for unit in units]
    except Exception as error:
        raise _UnitFailed(error) from error


def _run_each(tx: Connection, units: Sequence[Unit]) -> list[Any]:
    return [_run_one(tx, unit) for unit in units]


def _run_one(tx: Connection, unit: Unit) -> Any:
    tx.exec_driver_sql("SAVEPOINT unit")
    try:
        result = unit(tx)
    except Exception as error:
        # Where this fails too, the connection is gone and the whole batch with it.
        tx.exec_driver_sql("ROLLBACK TO SAVEPOINT unit")
        result = _Failure(error)
    tx.exec_driver_sql("RELEASE SAVEPOINT unit")
    return result


def _grouped(soon: Sequence[SoonRow]) -> list[Unit]:
    groups: dict[RowWriter, list[Row]] = {}
    for each in soon:
        groups.setdefault(each.writer, []).append(each.row)
    return [_rows(writer, rows) for writer, rows in groups.items()]


def _rows(writer: RowWriter, rows: Sequence[Row]) -> Unit:
    return lambda tx: writer(tx, rows)


def _single(each: SoonRow) -> Unit:
    return _rows(each.writer, [each.row])


def _settle(answer: asyncio.Future[Any], outcome: Any) -> None:
    if answer.done():
        return
    if isinstance(outcome, _Failure):
        answer.set_exception(_told(outcome.error))
    else:
        answer.set_result(outcome)


def _told(error: BaseException) -> BaseException:
    if isinstance(error, GatewayError) or not isinstance(error, FAILURES):
        return error
    told = unavailable()
    told.__cause__ = error
    return told
