"""Prompts and resources where several servers, or only parts of one, are in a view."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mcp.pass_through import INSTRUCTIONS, join_instructions
from tests.configs import bearer, principal, table
from tests.conftest import OPEN, GatewayMaker, Running, gateway_on
from tests.library_peer import SECRET, LibraryPeer, library_peer
from tests.mcp.speakers import Era, Refusal, Speaker, plain
from tests.peers import until
from tests.raising import raises

DEAD = {"kind": "mcp", "url": "http://127.0.0.1:1/mcp", "timeout_seconds": 1}
BUNDLES = (
    table("bundles.whole", connections=["science"])
    + table("bundles.some", connections=["science"], allow=["ask"])
    + table("bundles.hidden", connections=["science"], mode="meta")
)


def with_tokens(text: str) -> str:
    """The configuration with two principals: ann reads science alone, bob reads nothing."""
    ann = principal("ann", access="disabled", connections={"science": "read-only"})
    tokens = text.replace('mode = "none"', 'mode = "tokens"')
    return tokens + ann + principal("bob", access="disabled")


@dataclass
class Libraries:
    """Two servers behind one gateway, and a third that is never there."""

    fiction: LibraryPeer
    science: LibraryPeer
    text: str
    gateway: Running
    http: aiohttp.ClientSession
    stack: AsyncExitStack

    async def speaker(self, url: str, era: Era, token: str = "") -> Speaker:
        http = self.http
        if token:
            made = aiohttp.ClientSession(headers=bearer(token))
            http = await self.stack.enter_async_context(made)
        return await Speaker(http, url, era).meet()


@pytest.fixture(scope="module")
async def libraries(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Libraries]:
    config = tmp_path_factory.mktemp("gateway") / "config.toml"
    async with AsyncExitStack() as stack:
        fiction = await stack.enter_async_context(library_peer("2025", "fiction"))
        science = await stack.enter_async_context(library_peer("2026", "science"))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        tables = fiction.table("fiction") + science.table("science", prefix="sci_")
        text = OPEN + tables + table("connections.dead", **DEAD) + BUNDLES
        gateway = await stack.enter_async_context(gateway_on(config, text))
        await until(lambda: len(gateway.app.gateway.snapshot.tools) == 6)
        yield Libraries(fiction, science, text, gateway, http, stack)


def _read(uri: str, shelf: str) -> dict[str, Any]:
    return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": f"{uri} of {shelf}"}]}


FICTION = "## fiction (its tools here begin with `fiction_`)\nRead fiction quietly. "
SCIENCE = "## science (its tools here begin with `sci_`)\nRead science quietly. "


@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_each_server_says_how_it_is_to_be_used_under_its_name(
    libraries: Libraries, era: Era
) -> None:
    addresses = {
        "": (INSTRUCTIONS, FICTION, SCIENCE),
        "/bundles/whole": (INSTRUCTIONS, SCIENCE),
        "/bundles/some": (INSTRUCTIONS, SCIENCE),
        "/bundles/hidden": (INSTRUCTIONS, SCIENCE),
        "/bundles/unknown": (INSTRUCTIONS,),
    }
    for address, parts in addresses.items():
        client = await libraries.speaker(libraries.gateway.mcp + address, era)
        said = client.hello["instructions"].replace(SECRET, "")
        assert tuple(part.strip() for part in said.split("\n\n")) == tuple(
            part.strip() for part in parts
        )


async def test_instructions_are_known_before_a_server_is_met_again_and_trusted_ones_only(
    libraries: Libraries, make_gateway: GatewayMaker
) -> None:
    text = libraries.text.partition("[bundles.whole]")[0]
    text = text.replace('prefix = "sci_"', 'prefix = "sci_"\ntrust = "untrusted"')
    first = await make_gateway(text)
    await until(lambda: len(first.app.gateway.snapshot.tools) == 6)
    lazy = text.replace("[connections.fiction]", "[connections.fiction]\nlazy = true")
    again = await make_gateway(lazy)  # on the same store
    client = await libraries.speaker(again.mcp, "2025")
    assert FICTION.strip() in client.hello["instructions"]
    assert "science" not in client.hello["instructions"]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({"## a": "x", "## b": "y"}, "Own\n\n## a\nx\n\n## b\ny"),
        ({"## a": "x" * 9000, "## b": "y"}, "Own\n\n## a\n" + "x" * 8173 + "…\n\n## b\ny"),
    ],
)
def test_long_instructions_leave_room_for_short_ones(said: dict[str, str], shown: str) -> None:
    assert join_instructions("Own", said) == shown
    assert len(shown) <= 8192


@given(st.dictionaries(st.text("abc", min_size=1, max_size=4), st.text("x", max_size=5000)))
def test_instructions_are_bounded_however_many_servers_speak(said: dict[str, str]) -> None:
    many = {**said, **{f"server {n}": "words " * 100 for n in range(len(said) * 40)}}
    assert len(join_instructions("Own", many)) <= 8192


async def test_lists_are_put_together_and_names_lead_to_their_owner(libraries: Libraries) -> None:
    client = await libraries.speaker(libraries.gateway.mcp, "2025")
    prompts = (await client.request("prompts/list"))["prompts"]
    assert [prompt["name"] for prompt in prompts] == ["fiction_review", "sci_review"]
    resources = (await client.request("resources/list"))["resources"]
    uris = ["fiction://news", "library://index", "science://news"]
    assert [one["uri"] for one in resources] == uris
    templates = (await client.request("resources/templates/list"))["resourceTemplates"]
    books = [one["uriTemplate"] for one in templates]
    assert books == ["fiction://books/{id}", "science://books/{id}"]

    asked = {"name": "sci_review", "arguments": {"book": "Cosmos"}}
    got = await client.request("prompts/get", asked)
    assert got["messages"][0]["content"]["text"] == "review Cosmos from science"
    for uri, shelf in (
        ("science://news", "science"),
        ("science://books/7", "science"),
        ("library://index", "fiction"),  # both list it: the first by name has it
    ):
        assert plain(await client.request("resources/read", {"uri": uri})) == _read(uri, shelf)
    ref = {"type": "ref/resource", "uri": "science://books/{id}"}
    asked = {"ref": ref, "argument": {"name": "id", "value": "7"}}
    completed = await client.request("completion/complete", asked)
    assert completed["completion"]["values"] == ["science 7"]


@pytest.mark.parametrize(("era", "code"), [("2025", -32002), ("2026", -32602)])
async def test_what_nobody_has_is_not_found_in_the_words_of_the_era(
    libraries: Libraries, era: Era, code: int
) -> None:
    client = await libraries.speaker(libraries.gateway.mcp, era)
    asked = {"uri": "poetry://news"}
    with raises(Refusal, error={"code": code, "message": "Resource not found", "data": asked}):
        await client.request("resources/read", asked)
    with raises(Refusal, error={"code": -32602, "message": "Unknown prompt: review"}):
        await client.request("prompts/get", {"name": "review"})


async def test_a_bundle_gives_prompts_only_with_the_whole_server(libraries: Libraries) -> None:
    bundles = f"{libraries.gateway.mcp}/bundles"
    whole = await libraries.speaker(f"{bundles}/whole", "2026")
    found = await whole.request("prompts/list")
    assert [prompt["name"] for prompt in found["prompts"]] == ["sci_review"]
    for bundle in ("some", "hidden", "some+whole"):
        client = await libraries.speaker(f"{bundles}/{bundle}", "2026")
        assert client.hello["capabilities"] == {"tools": {"listChanged": True}}
        with pytest.raises(Refusal, match="-32601"):
            await client.request("prompts/list")


async def test_who_may_read_a_connection_reads_its_resources_and_nobody_else(
    libraries: Libraries, make_gateway: GatewayMaker
) -> None:
    gateway = await make_gateway(with_tokens(libraries.text))
    ann = await libraries.speaker(gateway.mcp, "2026", "ann")
    resources = (await ann.request("resources/list"))["resources"]
    assert [one["uri"] for one in resources] == ["science://news", "library://index"]
    bob = await libraries.speaker(gateway.mcp, "2026", "bob")
    assert bob.hello["capabilities"] == {"tools": {"listChanged": True}}
    with pytest.raises(Refusal, match="-32601"):
        await bob.request("resources/read", {"uri": "science://news"})


async def test_watchers_of_two_servers_hear_of_their_own(libraries: Libraries) -> None:
    client = await libraries.speaker(libraries.gateway.mcp, "2026")
    uris = ["fiction://news", "science://news"]
    async with client.listening(resourceSubscriptions=uris) as events:
        await libraries.science.tell_updated("science://news")
        assert (await events.message())["params"]["uri"] == "science://news"
        await libraries.fiction.tell_updated("fiction://news")
        assert (await events.message())["params"]["uri"] == "fiction://news"


async def test_a_server_that_comes_into_the_view_brings_its_prompts(
    libraries: Libraries, make_gateway: GatewayMaker
) -> None:
    text = libraries.text.replace('prefix = "sci_"', 'prefix = "sci_"\nenabled = false')
    gateway = await make_gateway(text)
    client = await libraries.speaker(gateway.mcp, "2026")
    async with client.listening(promptsListChanged=True) as events:
        gateway.config.write_text(libraries.text, encoding="utf-8")
        said = await events.message()
    assert said["method"] == "notifications/prompts/list_changed"
