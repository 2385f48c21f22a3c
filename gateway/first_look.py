"""What happens to connections when the gateway starts, before it says that it is ready."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.catalog.azure_watch import AzureWatch
from gateway.catalog.refresh import Catalog
from gateway.catalog.sources import is_lazy
from gateway.progress import Loading

FIRST_LOOK_SECONDS = 2.0


async def first_look(
    catalog: Catalog, azure: AzureWatch, loading: Loading
) -> list[asyncio.Task[Any]]:
    """Starts the first refresh, and gives what was never read before a moment.

    So the first client finds tools: what lies on this machine is waited for, a network only so
    long. What is cached is refreshed behind, without anyone waiting.
    """
    unread, in_azure = catalog.unread(), azure.connections()
    local = [name for name, near in unread.items() if near]
    far = [name for name, near in unread.items() if not near and name not in in_azure]
    known = {*unread, *in_azure}
    cached = [
        name
        for name, state in catalog.current.connections.items()
        if name not in known and not is_lazy(state.settings)
    ]
    looks, told = (local, far, cached), loading(len(local) + len(far) + len(cached))
    tasks = [asyncio.create_task(catalog.refresh(n, by="start", told=told)) for n in looks]
    tasks.append(asyncio.create_task(azure.refresh(by="start")))
    await asyncio.wait([tasks[0]])
    await asyncio.wait([tasks[1]] if in_azure else tasks[1::2], timeout=FIRST_LOOK_SECONDS)
    return tasks
