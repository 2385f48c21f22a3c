"""What the catalog keeps in the store: put connections, definitions with their builds, choices.

The settings of a put connection are sealed: they may hold credentials. The bytes of a definition
are only read when a build has to be made again, so that idle definitions cost no memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.catalog.adopt import Adoption
from gateway.catalog.discover import Found
from gateway.config.connection import Connection
from gateway.config.settings import Permissions
from gateway.model import Level, Problem


@dataclass(frozen=True, slots=True)
class StoredConnection:
    name: str
    settings: Connection
    revision: int


@dataclass(frozen=True, slots=True)
class Stored:
    """Everything the first snapshot needs."""

    revision: int
    connections: Sequence[StoredConnection]
    found: Mapping[str, Found]
    choices: Mapping[tuple[str, str], Level]
    permissions: Permissions | None


class Persistence(Protocol):
    """The store, as far as the catalog needs it."""

    async def load(self) -> Stored: ...

    async def raw(self, connection: str) -> bytes: ...

    async def put(
        self, name: str, settings: Connection, new: Adoption, expected: int | None, by: str
    ) -> int: ...

    async def delete(self, name: str, expected: int | None) -> int: ...

    async def save(self, name: str, new: Adoption, by: str) -> int: ...

    async def advice(self, sha256: str) -> tuple[Problem, ...] | None: ...

    async def keep_advice(self, sha256: str, problems: Sequence[Problem]) -> None: ...
