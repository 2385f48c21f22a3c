"""A few plain tools in the gateway's place: per-principal views, and gates that hold a call still.

What is tested with them is the protocol: everything else of an endpoint is the real thing.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import orjson

from gateway.calls.admission import Admission
from gateway.calls.credentials import Credentials
from gateway.calls.record import Caller
from gateway.calls.send import UpstreamRequests
from gateway.catalog.snapshot import Snapshot
from gateway.config.profiles import Serving, find_serving
from gateway.config.settings import Settings
from gateway.errors import Fixable, UnknownTool
from gateway.limits import MAX_STREAMS_PER_PRINCIPAL
from gateway.mcp.endpoint import McpEndpoint
from gateway.model import Principal, Tool, ViewAddress, digest
from gateway.outbound.client import Egress
from gateway.policy.view import View
from gateway.store.cluster import Signals
from gateway.store.database import Database
from gateway.store.secrets import Seal
from gateway.web.gateway import Gateway, Inquiry
from gateway.web.guard import host_rules
from gateway.web.identity import Identity
from tests.databases import empty_store
from tests.definitions import an_object
from tests.upstream.upstream_doors import upstreams

SNAPSHOT = Snapshot(0, Settings())

ANY_OBJECT = {"type": "object", "additionalProperties": True}


def tool(name: str, schema: dict[str, Any] | None = None, description: str = "") -> dict[str, Any]:
    """A listing entry."""
    return {
        "name": name,
        "description": description or f"The tool {name}",
        "inputSchema": schema or ANY_OBJECT,
    }


REGION = {"type": "string", "x-mcp-header": "Region"}
BASIC = (*map(tool, ("echo", "wait", "fail")), tool("routed", an_object({"region": REGION})))


@dataclass(frozen=True)
class Listing:
    """One view."""

    entries: tuple[bytes, ...]
    digest: str
    page_size: int
    bundle_ids: tuple[str, ...] = ()
    connections: tuple[str, ...] = ()
    tools: Mapping[str, Tool] = field(default_factory=dict)
    own_names: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(orjson.loads(entry)["name"] for entry in self.entries)

    @property
    def digests(self) -> tuple[bytes, ...]:
        return tuple(digest(entry).encode() for entry in self.entries)

    def page(self, cursor: str | None, size: int = 0) -> bytes | None:
        if cursor is not None and not cursor.isdigit():
            return None
        start = int(cursor or 0)
        shown = b'"tools":[' + b",".join(self.entries[start : start + self.page_size]) + b"]"
        if start + self.page_size < len(self.entries):
            shown += b',"nextCursor":"%d"' % (start + self.page_size)
        return shown


@dataclass
class Toolbox:
    """What is served: the same tools for everyone, and more for some."""

    tools: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {entry["name"]: entry for entry in BASIC}
    )
    extra: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)  # by principal
    page_size: int = 500
    calls: list[tuple[str, dict[str, Any], Caller]] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: int = 0
    snapshot: Snapshot = SNAPSHOT
    _listeners: list[Callable[[], None]] = field(default_factory=list)

    def _tools(self, principal: Principal, address: ViewAddress) -> dict[str, dict[str, Any]]:
        if address.kind != "own":
            return {}
        return {**self.tools, **self.extra.get(principal.name, {})}

    def view(self, principal: Principal, address: ViewAddress) -> Listing:
        entries = tuple(orjson.dumps(one) for one in self._tools(principal, address).values())
        return Listing(entries, digest(b"\n".join(entries)), self.page_size)

    def serving(self, snapshot: Snapshot, client: str) -> Serving:
        return find_serving({}, client)

    def look(
        self, principal: Principal, address: ViewAddress, client: str
    ) -> tuple[Snapshot, Listing, Serving]:
        return self.snapshot, self.view(principal, address), self.serving(self.snapshot, client)

    def inquiry(self, caller: Caller) -> Inquiry:
        view = self.view(caller.principal, caller.view_address)
        return Inquiry(cast(Gateway, self), caller, self.snapshot, cast(View, view))

    def input_schema(self, inquiry: Inquiry, name: str) -> bytes | None:
        found = self._tools(inquiry.principal, inquiry.caller.view_address).get(name)
        return None if found is None else orjson.dumps(found["inputSchema"])

    async def call(self, inquiry: Inquiry, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        context = inquiry.caller
        if name not in self._tools(context.principal, context.view_address):
            raise UnknownTool(name)
        self.calls.append((name, arguments, context))
        match name:
            case "wait":
                await self._wait()
            case "fail":
                raise _failure(arguments.get("how"))
            case "report" if context.progress is not None:
                for step in range(3):
                    await context.progress(step + 1, 3, f"step {step + 1}")
            case "grow":  # in the journey of the TypeScript clients
                self.put(arguments["name"])
            case "ask" if context.ask is not None:
                answer = await context.ask(
                    "elicitation/create",
                    {"message": "Go on?", "requestedSchema": {"type": "object", "properties": {}}},
                )
                return {"content": [], "structuredContent": answer}
        text = orjson.dumps(arguments).decode()
        return {"content": [{"type": "text", "text": text}], "structuredContent": arguments}

    async def _wait(self) -> None:
        self.started.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.ended.set()

    @property
    def catalog(self) -> Toolbox:
        return self

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def put(self, name: str, principal: str | None = None, description: str = "") -> None:
        """Add or change a tool, for everyone or for one principal, and say so."""
        place = self.tools if principal is None else self.extra.setdefault(principal, {})
        place[name] = tool(name, description=description)
        self.changed()

    def changed(self) -> None:
        """Say that something may have changed."""
        for listener in list(self._listeners):
            listener()


def _failure(how: object) -> Exception:
    if how == "fixable":
        return Fixable("invalid_arguments", "id is missing", "Give an id.", where="id")
    return RuntimeError("the password is hunter2")


@asynccontextmanager
async def endpoint_over(
    tools: object,
    identity: Identity,
    seal: Seal,
    *,
    store: Path | None = None,  # shared with another endpoint, as replicas do
    public_url: str = "http://127.0.0.1:8080",
    allowed_origins: tuple[str, ...] = (),
    max_streams: int = MAX_STREAMS_PER_PRINCIPAL,
) -> AsyncIterator[McpEndpoint]:
    """The real endpoint over these tools, with a store and no servers behind it."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file = store or shutil.copy(empty_store(), folder / "gateway.db")
        db = await stack.enter_async_context(Database(f"sqlite:///{file}"))
        ups = await stack.enter_async_context(upstreams())
        requests = UpstreamRequests(ups, Admission(8), Credentials(Egress([])))
        gateway, signals = cast(Gateway, tools), Signals()
        rules = host_rules(public_url, (), allowed_origins)
        endpoint = McpEndpoint(gateway, identity, requests, seal, db, rules)
        endpoint.streams.most_of_a_principal = max_streams
        endpoint.listen_to(signals)
        if store is not None:
            await signals.start(db)
            stack.push_async_callback(signals.close)
        yield endpoint
        endpoint.streams.close()
