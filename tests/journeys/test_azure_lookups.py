"""What may go into an input is looked up through the operations its definition names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.callers import api
from tests.configs import LOCAL, principal
from tests.conftest import OPEN, GatewayMaker, gateway_on
from tests.journeys.azure_office import Office, OfficeMaker, make_office
from tests.mcp.speakers import Speaker
from tests.peers import provider
from tests.peers_arm import Azure, azure, fixture

__all__ = ["make_office"]

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
            body = {"value": [entry("1", "Inbox"), entry("2", "note.txt")]}
        case "/filepicker/browse":
            body = {"value": [entry("3", f"below {queries['id']}")]}
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


def entry(id_: str, name: str) -> dict[str, Any]:
    return {"Id": id_, "DisplayName": name, "Path": f"/{name}", "IsFolder": "." not in name}


@pytest.fixture(scope="module")
async def peer() -> AsyncIterator[Azure]:
    async with azure("office365") as made:
        made.add("teams", "teams")
        made.invoke = invoked
        yield made


@pytest.fixture(scope="module")
async def office(peer: Azure, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Office]:
    """One gateway for all tests of this module."""
    file = tmp_path_factory.mktemp("azure") / "config.toml"
    async with gateway_on(file, OPEN + peer.table) as gateway, api(gateway.url) as rest:
        made = await Office(peer, gateway, rest).has("office365_labelled")
        yield await made.has("teams_pin_message")


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


async def test_values_are_looked_up_old_form_and_new(office: Office) -> None:
    for tool, parameter, known, values in VALUES:
        asked = {"tool": tool, "parameter": parameter, "known": known}
        assert await office.own("lookup_values", **asked) == {
            "values": [{"value": value, "title": title} for value, title in values],
            # A next link to another host is not followed, and said to be left.
            "more": parameter == "table",
        }


async def test_a_tree_is_opened_folder_by_folder(office: Office) -> None:
    where = {"tool": "office365_get_emails_v3", "parameter": "folderPath"}
    node = {"Id": "1"}
    assert await office.own("lookup_values", **where) == {
        "values": [
            {"value": "/Inbox", "title": "Inbox", "folder": True, "node": node},
            {"value": "/note.txt", "title": "note.txt", "selectable": False},
        ],
        "more": False,
    }
    below = await office.own("lookup_values", **where, known={"folderPath": node})
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


async def test_a_look_up_that_cannot_be_made_says_why(office: Office) -> None:
    for tool, parameter, known, words in REFUSED:
        asked = {"tool": tool, "parameter": parameter, "known": known}
        assert words in (await office.own("lookup_values", **asked))["error"]["message"]


async def test_a_schema_is_filled_in_for_the_known_inputs(office: Office) -> None:
    async def body(tool: str, **known: str) -> Any:
        found = await office.own("lookup_schema", tool=tool, known=known)
        return found["input_schema"]["properties"]["body"]["properties"]

    assert await body("office365_contact_post_item_v3", table="t1") == {
        "givenName": {"type": "string", "title": "Given name"}
    }
    post = "teams_post_message_to_conversation"
    assert await body(post, poster="User", location="x") == {"messageBody": {"type": "string"}}
    unknown = await office.own("lookup_schema", tool=post)
    assert "poster, location" in unknown["error"]["message"]


async def test_reading_is_enough_for_what_reads_and_for_nothing_else(
    make_office: OfficeMaker, peer: Azure
) -> None:
    settings = principal("reader", access="read-only") + LOCAL
    reader = await (await make_office(settings=settings, name="reader")).has("office365_labelled")
    before = len(peer.invoked)
    label = {"tool": "office365_labelled", "parameter": "label"}
    assert (await reader.own("lookup_values", **label))["values"]
    refused = await reader.own("lookup_values", **label | {"parameter": "stamp"})
    assert refused["error"]["code"] == "read_only"
    assert [request["path"] for _, request in peer.invoked[before:]] == ["/Labels/$search"]
    assert reader.gateway.app.gateway.snapshot.connections["office365"].status == "connected"


async def test_connections_that_are_not_azures_look_up_too(make_gateway: GatewayMaker) -> None:
    async with provider(fixture("office365")) as peer:
        gateway = await make_gateway(OPEN + peer.table("mail", base_url=f"{peer.url}/api"))
        async with api(gateway.url) as rest:
            asked = {"tool": "mail_v4_calendar_get_items", "parameter": "table"}
            await Speaker(rest.http, gateway.mcp, "2026").own("lookup_values", **asked)
    assert [request[:2] for request in peer.requests] == [
        ("GET", "/api/datasets/calendars/v2/tables")
    ]
