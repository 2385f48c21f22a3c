"""What may go into an input is looked up through the operations its definition names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests.conftest import OPEN, GatewayMaker, Running, gateway_on
from tests.journeys.test_azure import own_call
from tests.peers import provider
from tests.peers_arm import Azure, azure, fixture

CALENDARS = [{"id": "c1", "name": "Mine"}, {"id": "c2", "name": "Team's"}]
BASE = "https://logic-apis-westeurope.azure-apim.net/apim/office365/abc123"


def invoked(request: dict[str, Any]) -> dict[str, Any]:
    """What the connectors answer, by path and query."""
    path, queries = request["path"], request["queries"]
    body: Any = {"error": {"message": f"no {path}"}}
    match path:
        case "/datasets/calendars/v2/tables" if "skip" in queries:
            body = {"value": [{"id": "c3", "name": "Old"}], "@odata.nextLink": "https://x.example/"}
        case "/datasets/calendars/v2/tables":
            link = f"{BASE}/datasets/calendars/v2/tables?skip=2"
            body = {"value": CALENDARS, "@odata.nextLink": link}
        case "/datasets/calendars/c1/names":
            body = {"value": [{"id": "e1", "subject": queries.get("$select", "?")}]}
        case "/filepicker/open":
            body = {"value": [folder("1", "Inbox"), leaf("2", "note.txt")]}
        case "/filepicker/browse":
            body = {"value": [folder("3", f"below {queries['id']}")]}
        case "/$metadata.json/datasets/contacts/tables/t1":
            name = {"type": "string", "x-ms-summary": "Given name", "x-ms-visibility": "important"}
            body = {"schema": {"type": "object", "properties": {"givenName": name}}}
        case "/Labels/$search":
            body = [{"id": "l1", "name": request["body"]["query"]}]
        case "/beta/me/joinedTeams":
            body = {"value": [{"id": "g1", "displayName": "Team"}]}
        case "/beta/groups/g1/channels":
            body = {"value": [{"id": "ch1", "displayName": "General"}]}
        case "/flowbot/schema":
            body = {"schema": {"messageBody": {"type": "string"}}}
        case _:
            return {"statusCode": "NotFound", "body": body}
    return {"statusCode": "OK", "body": body, "headers": {"Content-Type": "application/json"}}


def folder(id_: str, name: str) -> dict[str, Any]:
    return {"Id": id_, "DisplayName": name, "Path": f"/{name}", "IsFolder": True}


def leaf(id_: str, name: str) -> dict[str, Any]:
    return {"Id": id_, "DisplayName": name, "Path": f"/{name}", "IsFolder": False}


@pytest.fixture(scope="module")
async def peer() -> AsyncIterator[Azure]:
    async with azure("office365") as made:
        made.add("teams", "teams")
        made.invoke = invoked
        yield made


@pytest.fixture(scope="module")
async def mcp(peer: Azure, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    file = tmp_path_factory.mktemp("azure") / "config.toml"
    async with gateway_on(file, OPEN + peer.table) as gateway:
        yield gateway.mcp


VALUES: list[tuple[str, str, dict[str, Any], list[tuple[str, str]]]] = [
    (
        "office365_v4_calendar_get_items",
        "table",
        {},
        [("c1", "Mine"), ("c2", "Team's"), ("c3", "Old")],
    ),
    ("office365_v3_calendar_get_item", "id", {"table": "c1"}, [("e1", "id,subject")]),
    ("office365_labelled", "label", {}, [("l1", "all")]),
    ("teams_pin_message", "groupId", {}, [("g1", "Team")]),
    ("teams_pin_message", "channelId", {"groupId": "g1"}, [("ch1", "General")]),
]


async def test_values_are_looked_up_old_form_and_new(mcp: str) -> None:
    async with Client(mcp) as client:
        for tool, parameter, known, values in VALUES:
            asked = {"tool": tool, "parameter": parameter, "known": known}
            found = await own_call(client, "lookup_values", **asked)
            assert found == {
                "values": [{"value": value, "title": title} for value, title in values],
                # A next link to another host is not followed, and said to be left.
                "more": parameter == "table",
            }


async def test_a_tree_is_opened_folder_by_folder(mcp: str) -> None:
    async with Client(mcp) as client:
        where = {"tool": "office365_get_emails_v3", "parameter": "folderPath"}
        top = await own_call(client, "lookup_values", **where)
        node = {"Id": "1"}
        assert top == {
            "values": [
                {"value": "/Inbox", "title": "Inbox", "folder": True, "node": node},
                {"value": "/note.txt", "title": "note.txt", "selectable": False},
            ],
            "more": False,
        }
        below = await own_call(client, "lookup_values", **where, known={"folderPath": node})
        assert [entry["title"] for entry in below["values"]] == ["below 1"]


REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("office365_v3_calendar_get_item", "id", {}, "`known` must hold table"),
    ("office365_room", "building", {}, "`known` must hold floor"),
    ("office365_room", "desk", {}, "NoSuchOperation, which this connection does not have"),
    ("office365_delete_email_v2", "mailboxAddress", {}, "Microsoft's directory"),
    ("office365_send_email_v2", "To", {}, "has no look-up for 'To'"),
    ("office365_no_such", "x", {}, "Unknown tool"),
    ("office365_v3_calendar_get_item", "id", {"table": "c9"}, "the look-up failed"),
]


async def test_a_look_up_that_cannot_be_made_says_why(mcp: str) -> None:
    async with Client(mcp) as client:
        for tool, parameter, known, words in REFUSED:
            asked = {"tool": tool, "parameter": parameter, "known": known}
            found = await own_call(client, "lookup_values", **asked)
            assert words in found["error"]["message"]


async def test_a_schema_is_filled_in_for_the_known_inputs(mcp: str) -> None:
    async with Client(mcp) as client:
        contact = await own_call(
            client, "lookup_schema", tool="office365_contact_post_item_v3", known={"table": "t1"}
        )
        assert contact["input_schema"]["properties"]["body"]["properties"] == {
            "givenName": {"type": "string", "title": "Given name"}
        }
        message = await own_call(
            client,
            "lookup_schema",
            tool="teams_post_message_to_conversation",
            known={"poster": "User", "location": "x"},
        )
        body = message["input_schema"]["properties"]["body"]
        assert body["properties"] == {"messageBody": {"type": "string"}}
        unknown = await own_call(client, "lookup_schema", tool="teams_post_message_to_conversation")
        assert "poster, location" in unknown["error"]["message"]


READER = """
[auth]
mode = "tokens"
[principals.reader]
token = "reader-token-1234567890"
access = "read-only"
[network]
allow = ["127.0.0.1/32"]
"""


async def test_reading_is_enough_for_what_reads_and_for_nothing_else(
    make_gateway: GatewayMaker, peer: Azure
) -> None:
    gateway: Running = await make_gateway(READER + peer.table)
    asked, before = gateway.app.gateway, len(peer.invoked)
    headers = {"Authorization": "Bearer reader-token-1234567890"}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(gateway.mcp, http_client=http)) as client,
    ):
        label = {"tool": "office365_labelled", "parameter": "label"}
        stamp = {"tool": "office365_labelled", "parameter": "stamp"}
        assert (await own_call(client, "lookup_values", **label))["values"]
        refused = await own_call(client, "lookup_values", **stamp)
        assert refused["error"]["code"] == "read_only"
    assert [request["path"] for _, request in peer.invoked[before:]] == ["/Labels/$search"]
    assert asked.snapshot.connections["office365"].status == "connected"


async def test_connections_that_are_not_azures_look_up_too(make_gateway: GatewayMaker) -> None:
    gateway: Running = await make_gateway()
    async with provider(fixture("office365")) as peer, Client(gateway.mcp) as client:
        await own_call(
            client,
            "put_connection",
            name="mail",
            kind="openapi",
            spec=peer.spec,
            base_url=f"{peer.url}/api",
        )
        await own_call(
            client, "lookup_values", tool="mail_v4_calendar_get_items", parameter="table"
        )
        assert [request[:2] for request in peer.requests] == [
            ("GET", "/api/datasets/calendars/v2/tables")
        ]
