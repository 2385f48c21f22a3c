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
from tests.callers import Api, api
from tests.conftest import OPEN, gateway_on
from tests.peers import until

CLIENTS = ("legacy", "2026-07-28")
SERVERS = ("http 2025", "http 2026", "stdio 2025", "stdio 2026")
CONFIG = OPEN.replace("full_access", "execute_with_confirm") + "timeout_seconds = 30\n"
CONNECTION = """
[connections.{name}]
kind = "mcp"
operations = {{ look = {{ access = "read" }} }}
wrap = [{{ tool = "hold", as = "{name}_held", idempotency_field = "token" }}]
"""


@dataclass
class Shops:
    """A gateway with a server of each kind behind it, and what happened there."""

    rest: Api
    effects: Path

    @property
    def url(self) -> str:
        return self.rest.base

    def happened(self, title: str) -> list[str]:
        lines = self.effects.read_text("utf-8").splitlines() if self.effects.exists() else []
        return [line for line in lines if line.startswith(title)]

    async def rows(self, title: str) -> list[tuple[str, str]]:
        found = (await self.rest("GET", "/executions?limit=500"))[1]["executions"]
        mine = [row for row in found if row["arguments"].get("title") == title]
        return [(row["tool"], row["status"]) for row in mine]


@pytest.fixture(scope="module")
async def shops(tmp_path_factory: Any) -> AsyncIterator[Shops]:
    folder, text = tmp_path_factory.mktemp("shops"), CONFIG
    async with AsyncExitStack() as stack:
        for kind in SERVERS:
            peer = asking_peer(kind, folder / "effects")
            connection = await stack.enter_async_context(peer)
            text += CONNECTION.format(name=name_of(kind)) + connection
        gateway = await stack.enter_async_context(gateway_on(folder / "config.toml", text))
        every = len(SERVERS) * len(TOOLS)
        await until(lambda: len(gateway.app.gateway.snapshot.tools) == every, 60)
        rest = await stack.enter_async_context(api(gateway.url))
        yield Shops(rest, folder / "effects")


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
        assert (await self.shops.rest.decide("approve"))[0] == 200
        return ElicitResult(action="cancel")


async def called(
    shops: Shops, client: str, server: str, tool: str, title: str = "", **how: Any
) -> tuple[str, CallToolResult]:
    """What a call ends with, in words and as a whole; `want` and `page` are arguments of it."""
    more: dict[str, Any] = {key: how.pop(key) for key in ("want", "page") if key in how}
    async with Client(f"{shops.url}/mcp", mode=client, **how) as made:
        arguments = {"title": title or uuid.uuid4().hex, **more}
        result = await made.call_tool(f"{name_of(server)}_{tool}", arguments)
    return str(getattr(result.content[0], "text", "")), result


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
    person, title = Person(shops, in_console=tool == "buy"), uuid.uuid4().hex
    said, _ = await called(shops, client, server, tool, title, elicitation_callback=person)
    assert (said, person.asked) == ("accept Ann", [*asked, "Who are you?"])
    assert shops.happened(title) == [f"{title} Ann {tool == 'held'}"]
    assert await shops.rows(title) == [(f"{name_of(server)}_{tool}", "completed")]


@each_pair
async def test_what_is_always_allowed_still_asks_its_own_questions(
    shops: Shops, client: str, server: str
) -> None:
    name = f"{name_of(server)}_{'keep' if client == 'legacy' else 'keep_too'}"
    person, titles = Person(shops, decision="always_allow"), [uuid.uuid4().hex, uuid.uuid4().hex]
    async with Client(f"{shops.url}/mcp", mode=client, elicitation_callback=person) as made:
        for title in titles:
            await made.call_tool(name, {"title": title})
    assert person.asked == ["approval", "Who are you?", "Who are you?"]
    for title in titles:
        assert shops.happened(title) == [f"{title} Ann False"]
        assert await shops.rows(title) == [(name, "completed")]


@each_pair
@pytest.mark.parametrize("action", ["decline", "cancel", "none to ask"])
async def test_a_no_is_passed_on_as_what_it_is(
    shops: Shops, client: str, server: str, action: str
) -> None:
    title = uuid.uuid4().hex
    how: dict[str, Any] = {}
    if action == "none to ask":  # a client that can't be asked declines
        action = "decline"
    else:
        how["elicitation_callback"] = Person(shops, action=action)
    said, _ = await called(shops, client, server, "look", title, **how)
    assert (said, shops.happened(title)) == (f"{action} None", [])
    assert await shops.rows(title) == [(f"{name_of(server)}_look", "completed")]


@each_pair
async def test_a_page_is_opened_by_a_client_that_opens_pages(
    shops: Shops, client: str, server: str
) -> None:
    person = Person(shops)
    said, _ = await called(shops, client, server, "look", page=True, elicitation_callback=person)
    assert (said, person.asked) == ("accept None", [PAGE])


LONG = 4_000


@each_pair
async def test_a_server_is_told_what_the_clients_model_says_and_where_it_works(
    shops: Shops, client: str, server: str
) -> None:
    asked: list[CreateMessageRequestParams] = []

    async def say(context: Any, params: CreateMessageRequestParams) -> CreateMessageResult:
        asked.append(params)
        content = TextContent(text="brief" * LONG)
        return CreateMessageResult(role="assistant", content=content, model="m1")

    async def roots(context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=FileUrl("file:///home/ann"))])

    how: dict[str, Any] = {"sampling_callback": say, "list_roots_callback": roots}
    said, _ = await called(shops, client, server, "look", want="sampling", **how)
    assert said == "m1: " + "brief" * LONG
    told = [(one.messages, one.max_tokens, one.system_prompt) for one in asked]
    assert told == [(TO_MODEL["messages"], 100, "Be brief")]
    said, _ = await called(shops, client, server, "look", want="roots", **how)
    assert said == "file:///home/ann"


@each_pair
@pytest.mark.parametrize("want", ["sampling", "roots"])
async def test_a_server_learns_that_a_client_offers_neither(
    shops: Shops, client: str, server: str, want: str
) -> None:
    how: dict[str, Any] = {"want": want, "elicitation_callback": Person(shops)}
    said, result = await called(shops, client, server, "look", **how)
    assert "asks for something that this client does not offer" in said
    assert result.is_error == (server.endswith("2026"))


@every_client
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_an_untrusted_server_hears_which_setting_refuses_it_the_clients_model(
    shops: Shops, client: str, era: str
) -> None:
    async def say(context: Any, params: CreateMessageRequestParams) -> CreateMessageResult:
        raise AssertionError("an untrusted server reached the client's model")

    async with asking_peer(f"http {era}", shops.effects) as peer:
        url = peer.split('"')[1]
        reads = {"look": {"access": "read"}}
        thief = {"kind": "mcp", "url": url, "trust": "untrusted", "operations": reads}
        assert (await shops.rest("PUT", "/connections/thief", thief))[0] == 200
        how: dict[str, Any] = {"want": "sampling", "sampling_callback": say}
        said, _ = await called(shops, client, "thief", "look", **how)
        await shops.rest("DELETE", "/connections/thief")
    assert 'may not ask for sampling: its connection has trust = "untrusted"' in said


@every_server
async def test_a_server_learns_that_the_clients_user_said_no(shops: Shops, server: str) -> None:
    async def refuse(context: Any, params: CreateMessageRequestParams) -> ErrorData:
        return ErrorData(code=-1, message="User rejected sampling request")

    how: dict[str, Any] = {"want": "sampling", "sampling_callback": refuse}
    said, result = await called(shops, "legacy", server, "look", **how)
    assert "User rejected sampling request" in said
    assert result.is_error == (server.endswith("2026"))
