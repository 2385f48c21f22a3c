"""The SDK's own checks, without the clients and servers that come with them.

`mcp/__init__` imports the SDK's clients, servers and their HTTP library: a third of the time that
the gateway takes to start, and nothing of it is used here. These three modules say of themselves
that they are pure (they import `mcp_types` at most), so they are loaded from their files alone.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp.shared import inbound as inbound
    from mcp.shared import subscriptions as subscriptions
    from mcp.shared import uri_template as uri_template
else:

    def _alone(name: str) -> ModuleType:
        found = importlib.util.find_spec("mcp")  # finds the package and does not import it
        path = Path(found.submodule_search_locations[0], "shared", f"{name}.py")
        spec = importlib.util.spec_from_file_location(f"{__name__}.{name}", path)
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    inbound = _alone("inbound")
    subscriptions = _alone("subscriptions")
    uri_template = _alone("uri_template")
