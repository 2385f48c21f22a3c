"""An upstream's question reaches every client that can answer it, whatever stands in between.

Clients of both eras, servers of both eras over HTTP and stdio, and every way in which a call comes
to be allowed: the question is asked once, the answer arrives, the effect happens once, and the
ledger has one row for it.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from mcp.client.client import Client
from mcp.client.context import ClientRequestContext
from mcp_types import (
    CallToolResult,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    ListRootsResult,
    Root,
    TextContent,
)
from pydantic import FileUrl

from tests.asking_peer import PAGE, TO_MODEL, TOOLS, asking_peer
from tests.conftest import gateway_on
from tests.peers import until

CLIENTS = ("legacy", "2026-07-28")
SERVERS = ("http 2025", "http 2026", "stdio 2025", "stdio 2026")
CONFIG = """
[auth]
mode = "none"
[network]
allow = ["127.0.0.1/32"]
[demo]
enabled = false
[permissions]
level = "execute_with_confirm"
timeout_seconds = 30
"""
CONNECTION = """
[connections.{name}]
kind = "mcp"
operations = {{ look = {{ access = "read" }} }}
wrap = [{{ tool = "hold", as = "{name}_held", idempotency_field = "token" }}]
"""


@dataclass
class Shops:
    """A gateway with a server of each kind behind it, and what happened there."""

    url: str
    http: aiohttp.ClientSession
    effects: Path

    def happened(self, title: str) -> list[str]:
        lines = self.effects.read_text("utf-8").splitlines() if self.effects.exists() else []
        return [line for line in lines if line.startswith(title)]

    async def rows(self, title: str) -> list[tuple[str, str]]:
        async with self.http.get(f"{self.url}/api/v1/executions?limit=500") as answer:
            found = (await answer.json())["executions"]
        mine = [row for row in found if row["arguments"].get("title") == title]
        return [(row["tool"], row["status"]) for row in mine]


@pytest.fixture(scope="module")
async def shops(tmp_path_factory: Any) -> AsyncIterator[Shops]:
    folder, text = tmp_path_factory.mktemp("shops"), CONFIG
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        for kind in SERVERS:
            peer = asking_peer(kind, folder / "effects")
            connection = await stack.enter_async_context(peer)
            text += CONNECTION.format(name=name_of(kind)) + connection
        gateway = await stack.enter_async_context(gateway_on(folder / "config.toml", text))
        every = len(SERVERS) * len(TOOLS)
        await until(lambda: len(gateway.app.gateway.snapshot.tools) == every, 60)
        yield Shops(gateway.url, http, folder / "effects")


def name_of(server: str) -> str:
    return server.replace(" ", "")


@dataclass
class Person:
    """Who sits at the client: decides on calls, says who they are, and remembers the questions."""

    shops: Shops
    decision: str = "approve"
    action: Any = "accept"
    in_console: bool = False
    asked: list[str] = field(default_factory=list)

    async def __call__(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult:
        if not params.message.startswith("Allow this call?"):
            is_form = hasattr(params, "requested_schema")
            self.asked.append(params.message if is_form else getattr(params, "url", ""))
            accepts = is_form and self.action == "accept"
            return ElicitResult(action=self.action, content={"name": "Ann"} if accepts else None)
        self.asked.append("approval")
        if not self.in_console:
            return ElicitResult(action="accept", content={"decision": self.decision})
        approvals, http = f"{self.shops.url}/api/v1/approvals", self.shops.http
        async with http.get(approvals) as answer:
            id = (await answer.json())["approvals"][0]["id"]
        async with http.post(f"{approvals}/{id}", json={"decision": "approve"}) as answer:
            assert answer.status == 200
        return ElicitResult(action="cancel")


def said(result: CallToolResult) -> str:
    return str(getattr(result.content[0], "text", ""))


every_client = pytest.mark.parametrize("client", CLIENTS)
every_server = pytest.mark.parametrize("server", SERVERS)
# Every server, and every client with servers of both eras.
each_pair = pytest.mark.parametrize(
    ("client", "server"), list(zip((*CLIENTS, *reversed(CLIENTS)), SERVERS, strict=True))
)


@every_client
@every_server
@pytest.mark.parametrize(
    ("tool", "asked"),
    [
        pytest.param("look", [], id="read"),
        pytest.param("book", ["approval"], id="approved in band"),
        pytest.param("buy", ["approval"], id="approved in the console"),
        pytest.param("held", ["approval"], id="wrapped with a token"),
    ],
)
async def test_a_question_is_asked_and_answered_once(
    shops: Shops, client: str, server: str, tool: str, asked: list[str]
) -> None:
    name, title = f"{name_of(server)}_{tool}", uuid.uuid4().hex
    person = Person(shops, in_console=tool == "buy")
    async with Client(f"{shops.url}/mcp", mode=client, elicitation_callback=person) as made:
        result = await made.call_tool(name, {"title": title})
    assert said(result) == "accept Ann"
    assert person.asked == [*asked, "Who are you?"]
    assert shops.happened(title) == [f"{title} Ann {tool == 'held'}"]
    assert await shops.rows(title) == [(name, "completed")]


@each_pair
async def test_what_is_always_allowed_still_asks_its_own_questions(
    shops: Shops, client: str, server: str
) -> None:
    name = f"{name_of(server)}_{'keep' if client == 'legacy' else 'keep_too'}"
    person, titles = Person(shops, decision="always_allow"), [uuid.uuid4().hex, uuid.uuid4().hex]
    async with Client(f"{shops.url}/mcp", mode=client, elicitation_callback=person) as made:
        results = [await made.call_tool(name, {"title": title}) for title in titles]
    assert [said(result) for result in results] == ["accept Ann", "accept Ann"]
    assert person.asked == ["approval", "Who are you?", "Who are you?"]
    for title in titles:
        assert shops.happened(title) == [f"{title} Ann False"]
        assert await shops.rows(title) == [(name, "completed")]


@each_pair
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_no_is_passed_on_as_what_it_is(
    shops: Shops, client: str, server: str, action: str
) -> None:
    name, title = f"{name_of(server)}_book", uuid.uuid4().hex
    person = Person(shops, action=action)
    async with Client(f"{shops.url}/mcp", mode=client, elicitation_callback=person) as made:
        result = await made.call_tool(name, {"title": title})
    assert (said(result), shops.happened(title)) == (f"{action} None", [])
    assert await shops.rows(title) == [(name, "completed")]


@each_pair
async def test_for_a_client_that_can_not_be_asked_a_question_is_declined(
    shops: Shops, client: str, server: str
) -> None:
    name, title = f"{name_of(server)}_look", uuid.uuid4().hex
    async with Client(f"{shops.url}/mcp", mode=client) as made:
        result = await made.call_tool(name, {"title": title})
    assert (said(result), shops.happened(title)) == ("decline None", [])
    assert await shops.rows(title) == [(name, "completed")]


@each_pair
async def test_a_page_is_opened_by_a_client_that_opens_pages(
    shops: Shops, client: str, server: str
) -> None:
    person, name = Person(shops), f"{name_of(server)}_look"
    async with Client(f"{shops.url}/mcp", mode=client, elicitation_callback=person) as made:
        result = await made.call_tool(name, {"title": uuid.uuid4().hex, "page": True})
    assert (said(result), person.asked) == ("accept None", [PAGE])


LONG = 4_000


@each_pair
async def test_a_server_is_told_what_the_clients_model_says(
    shops: Shops, client: str, server: str
) -> None:
    asked: list[CreateMessageRequestParams] = []

    async def say(context: Any, params: CreateMessageRequestParams) -> CreateMessageResult:
        asked.append(params)
        content = TextContent(text="brief" * LONG)
        return CreateMessageResult(role="assistant", content=content, model="m1")

    arguments = {"title": uuid.uuid4().hex, "want": "sampling"}
    async with Client(f"{shops.url}/mcp", mode=client, sampling_callback=say) as made:
        result = await made.call_tool(f"{name_of(server)}_look", arguments)
    assert said(result) == "m1: " + "brief" * LONG
    told = [(one.messages, one.max_tokens, one.system_prompt) for one in asked]
    assert told == [(TO_MODEL["messages"], 100, "Be brief")]


@each_pair
async def test_a_server_is_told_where_the_client_works(
    shops: Shops, client: str, server: str
) -> None:
    async def roots(context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=FileUrl("file:///home/ann"))])

    arguments = {"title": uuid.uuid4().hex, "want": "roots"}
    async with Client(f"{shops.url}/mcp", mode=client, list_roots_callback=roots) as made:
        result = await made.call_tool(f"{name_of(server)}_look", arguments)
    assert said(result) == "file:///home/ann"


@each_pair
@pytest.mark.parametrize("want", ["sampling", "roots"])
async def test_a_server_learns_that_a_client_offers_neither(
    shops: Shops, client: str, server: str, want: str
) -> None:
    arguments = {"title": uuid.uuid4().hex, "want": want}
    async with Client(f"{shops.url}/mcp", mode=client, elicitation_callback=Person(shops)) as made:
        result = await made.call_tool(f"{name_of(server)}_look", arguments)
    assert "asks for something that this client does not offer" in said(result)
    assert result.is_error == (server.endswith("2026"))


@every_server
async def test_a_server_learns_that_the_clients_user_said_no(shops: Shops, server: str) -> None:
    async def refuse(context: Any, params: CreateMessageRequestParams) -> ErrorData:
        return ErrorData(code=-1, message="User rejected sampling request")

    arguments = {"title": uuid.uuid4().hex, "want": "sampling"}
    async with Client(f"{shops.url}/mcp", mode="legacy", sampling_callback=refuse) as made:
        result = await made.call_tool(f"{name_of(server)}_look", arguments)
    assert "User rejected sampling request" in said(result)
    assert result.is_error == (server.endswith("2026"))
