"""Names that outlive a provider: what `greenhouse_list_candidates` does, as `ats_list_candidates`.

A manifest says which of its operations is which capability. An agent that was written against the
portable names goes on working when another provider takes over, since they are made anew from that
one's tools. What is behind a name, and with it access, limits and the rules of bundles, stays the
provider's own: only the name is another.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.connectors.tools import renamed
from gateway.model import Tool


def portable_tools(capability_prefix: str, tools: Sequence[Tool]) -> list[Tool]:
    """The tools that have a capability, once more under `PREFIX_capability`."""
    return [
        renamed(tool, f"{capability_prefix}_{tool.capability}")
        for tool in tools
        if tool.capability is not None
    ]
