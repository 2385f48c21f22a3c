"""The parts that carry a call out, put together: asking, sending, recording, telling.

They belong to one process and one store. `started` is the order in which they begin and end: the
heartbeat before anything can be executing here, what still runs recorded before the store closes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gateway.catalog.snapshot import Snapshot
from gateway.edge.events import Feed
from gateway.invoke.approvals import Approvals
from gateway.invoke.approved_runs import ApprovedRuns, Resume
from gateway.invoke.background import CANCEL
from gateway.invoke.call import Invoker, Senders
from gateway.invoke.housekeeping import Housekeeping, this_replica
from gateway.invoke.prepared import PreparedConnections
from gateway.invoke.signals import Signals
from gateway.store.database import Database
from gateway.store.secrets import Seal


class Line:
    """One call's way through this process."""

    def __init__(
        self, db: Database, seal: Seal, senders: Senders, current: Callable[[], Snapshot]
    ) -> None:
        self._db = db
        self._seal = seal
        replica, prepared = this_replica(), PreparedConnections()
        self.signals = Signals()
        self.feed = Feed(db, self.signals)
        self.approvals = Approvals(
            db,
            seal,
            prepared,
            self.signals,
            current,
            replica=replica.id,
            told=self.feed.confirmation,
            ended=self.feed.result,
        )
        self.invoker = Invoker(
            db,
            prepared,
            senders,
            replica=replica.id,
            seal=seal,
            signals=self.signals,
            approver=self.approvals,
        )
        self.invoker.on_finished(self.feed.result)
        self.signals.on(CANCEL, self.invoker.running.cancel)
        self._keeping = Housekeeping(
            db, replica, current, expire=self.approvals.expire, ended=self.feed.result
        )

    @asynccontextmanager
    async def started(self, resume: Resume) -> AsyncIterator[None]:
        """Calls may be made within; `resume` makes those that were approved meanwhile."""
        await self._keeping.start()
        runs = ApprovedRuns(self._db, self._seal, self.signals, resume)
        tasks = [asyncio.create_task(work) for work in (self._keeping.run(), runs.run())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await runs.close()
            await self.invoker.running.close()
            await self._keeping.close()
