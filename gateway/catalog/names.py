"""Whom a tool's name belongs to, by settings alone.

What an upstream lists must never take a name that leads elsewhere: not today, and not on the day
when the other connection is slow to start or drops a tool. So a name that is given (`as`), or that
starts with a connection's prefix, is that connection's whether it has such a tool now or not; of
two prefixes the longer one counts. Only what was configured later gives way: a put takes nothing
from config.toml.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gateway.catalog.sources import prefix_of
from gateway.config.connection import Connection, McpConnection

Owner = Callable[[str], str | None]  # who else a name belongs to
Ranks = Mapping[str, int]  # connections, with the order in which they come


@dataclass(frozen=True, slots=True)
class NameSpaces:
    """The names and prefixes that connections have by their settings."""

    names: Mapping[str, Ranks]
    prefixes: Mapping[str, Ranks]
    lengths: tuple[int, ...]  # of the prefixes, longest first: no search through all of them

    def owner(self, name: str, connection: str, rank: int) -> str | None:
        """The other connection that a tool's name belongs to, if there is one."""
        holders = self._holders(name)
        if connection in holders:
            return None
        return next((other for other, first in holders.items() if first <= rank), None)

    def _holders(self, name: str) -> Ranks:
        if name in self.names:
            return self.names[name]
        found = (self.prefixes.get(name[:length]) for length in self.lengths)
        return next((holders for holders in found if holders), {})


def name_spaces(
    connections: Iterable[tuple[str, Connection, int]], capabilities: Mapping[str, str]
) -> NameSpaces:
    """What belongs to whom; each connection comes with its rank, a capability is its provider's."""
    names: defaultdict[str, dict[str, int]] = defaultdict(dict)
    prefixes: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for name, settings, rank in connections:
        own = [prefix_of(name, settings), *(f"{k}_" for k, v in capabilities.items() if v == name)]
        for prefix in filter(None, own):
            prefixes[prefix][name] = rank
        for rule in settings.wrap if isinstance(settings, McpConnection) else ():
            if rule.as_:
                names[rule.as_][name] = rank
    return NameSpaces(names, prefixes, tuple(sorted({len(p) for p in prefixes}, reverse=True)))
