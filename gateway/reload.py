"""config.toml, watched: a good edit is applied live, a bad one is reported once.

The folder is watched, not the file, since editors replace a file by renaming another one over it.
What counts is the parsed value: the same settings in another spelling are no change, and the same
mistake is not told twice. Keys that need a restart are named instead of applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
from watchfiles import awatch

from gateway.config.reading import parse_settings
from gateway.config.settings import RESTART_TABLES, Settings
from gateway.errors import ConfigInvalid, GatewayError
from gateway.limits import MOMENT_SECONDS

log = structlog.get_logger("gateway.reload")

Apply = Callable[[Settings], Awaitable[None]]
Report = Callable[[str | None], None]


async def watch(config: Path, first: Settings, apply: Apply, report: Report) -> None:
    """Applies each good edit of the file, for ever; `report` gets what is wrong, or None."""
    live = Watched(config, first, apply, report)
    await live.look()
    async for _ in awatch(
        config.parent,
        watch_filter=lambda _, path: Path(path).name == config.name,
        recursive=False,
        rust_timeout=round(MOMENT_SECONDS * 1000),
        yield_on_timeout=True,  # some file systems tell nothing: look from time to time
    ):
        await live.look()


class Watched:
    """The configuration that is in force, and the last text that was looked at."""

    def __init__(self, config: Path, first: Settings, apply: Apply, report: Report) -> None:
        self._config = config
        self._current = first
        self._apply = apply
        self._report = report
        self._at_start: Settings | None = None  # as in the file; options may stand over it
        self._seen: bytes | None = None
        self._waiting: tuple[str, ...] = ()

    async def look(self) -> None:
        """Reads the file and applies what is new in it."""
        try:
            text = await asyncio.to_thread(self._config.read_bytes)
        except OSError:
            return  # between two renames of an editor there may be no file
        if text == self._seen:
            return
        self._seen = text
        try:
            await self._take(parse_settings(text, str(self._config)))
        except ConfigInvalid as error:
            log.error("configuration not applied", problems=list(error.problems))
            self._report(str(error))

    async def _take(self, settings: Settings) -> None:
        self._at_start = self._at_start or settings
        waiting = restart_keys(self._at_start, settings)
        live = settings.model_copy(
            update={table: getattr(self._current, table) for table in RESTART_TABLES}
        )
        if live != self._current:
            try:
                await self._apply(live)
            except GatewayError as error:
                log.error("configuration not applied", error=error.message)
                self._report(error.message)
                self._seen = None
                return
            self._current = live
            log.info("configuration applied")
        self._report(f"needs a restart: {', '.join(waiting)}" if waiting else None)
        if waiting and waiting != self._waiting:
            log.warning("configuration needs a restart", keys=list(waiting))
        self._waiting = waiting


def restart_keys(old: Settings, new: Settings) -> tuple[str, ...]:
    """The keys that differ and are read at start only."""
    return tuple(
        f"{table}.{key}"
        for table in RESTART_TABLES
        for key, value in getattr(new, table)
        if getattr(getattr(old, table), key) != value
    )
