"""Azure's managed connections: found, named, called, made, signed in and removed."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import jwt
import pytest

from tests.conftest import OPEN, Running
from tests.journeys.azure_office import Office, OfficeMaker, make_office, office, peer
from tests.mcp.speakers import Speaker
from tests.peers import until
from tests.peers_arm import CUSTOM, GROUP, MANAGED, Azure

__all__ = ["make_office", "office", "peer"]


async def rows(office: Office) -> list[tuple[str, str, str]]:
    found = (await office.own("list_connections"))["connections"]
    return [(row["name"], row["origin"], row["status"]) for row in found]


async def test_the_connections_of_the_group_are_there_with_their_tools(
    peer: Azure, make_office: OfficeMaker
) -> None:
    peer.add("office365")
    peer.add("teams", "teams")
    peer.add("Our.API", f"{CUSTOM}/our-api")
    peer.add("no-such", "missing")
    office = await make_office()
    listed = await office.tools()
    assert {"office365_send_email_v2", "teams_pin_message"} <= listed.keys()
    assert any(name.startswith("our_api_") for name in listed)
    assert sorted(await rows(office)) == [
        ("no-such", "azure", "failing"),
        *((name, "azure", "connected") for name in ("office365", "our-api", "teams")),
    ]
    assert [token["grant_type"] for token in peer.tokens] == ["client_credentials"]


async def test_a_call_goes_by_dynamic_invoke(office: Office) -> None:
    mail = {"To": "a@b.example", "Subject": "Hi", "Body": "<p>Ho</p>"}
    await office.own("office365_send_email_v2", **mail)
    sent = {"method": "POST", "path": "/v2/Mail", "queries": {}, "headers": {}}
    body = {**mail, "Source": "connector"}
    assert office.peer.invoked == [("office365", {**sent, "body": body})]


async def test_what_was_found_is_there_after_a_restart_though_azure_is_away(
    peer: Azure, make_office: OfficeMaker
) -> None:
    peer.add("office365")
    peer.add("mail")
    first = await make_office()
    tools = {"office365_send_email_v2", "mail_send_email_v2"}
    assert tools <= (await first.tools()).keys()
    assert peer.counted("/managedApis/office365") == 1  # two connections, one definition
    assert peer.counted("/connections/mail") == 0  # the listing told all there is to know
    peer.failing = {"": 503}
    second = await make_office()
    assert tools <= (await second.tools()).keys()


async def test_a_connection_that_is_not_signed_in_says_so_and_where_to_sign_in(
    peer: Azure, make_office: OfficeMaker
) -> None:
    entry = peer.add("office365", overallStatus="Unauthenticated")
    office = await make_office()
    assert "not authenticated" in (await office.tools())["office365_send_email_v2"]["description"]
    shown = [await office.own("get_connection", name="office365") for _ in range(2)]
    link = "https://consent.example/office365?n=1"
    assert [(row["status"], row["consent_link"]) for row in shown] == [
        ("unauthenticated", link)
    ] * 2
    assert peer.consents[0]["parameters"][0]["parameterName"] == "token"
    entry["properties"]["overallStatus"] = "Connected"
    report = await office.own("refresh_tools", connection="office365")
    assert report["connections"][0]["status"] == "connected"
    tools = await office.tools()
    assert "authenticated" not in tools["office365_send_email_v2"]["description"]
    assert (await office.own("get_connection", name="office365"))["consent_link"] is None


def refuse(peer: Azure) -> None:
    peer.invoke = lambda request: {"statusCode": "Unauthorized", "body": {"message": "Who?"}}


@pytest.mark.parametrize("invoke", ["dynamic", "runtime"])
async def test_a_call_that_wants_a_sign_in_says_where(
    peer: Azure, make_office: OfficeMaker, invoke: str
) -> None:
    runtime = f"{peer.url}/runtime/office365/key"
    peer.add("office365", overallStatus="Unauthenticated", connectionRuntimeUrl=runtime)
    refuse(peer)
    peer.run_status = 401
    office = await (await make_office(invoke=invoke)).has("office365_send_email_v2")
    link = "https://consent.example/office365?n=1"
    mail = {"To": "a@b.example", "Subject": "Hi", "Body": "Ho"}
    calls = [office.call("office365_get_email_v2", messageId="1") for _ in range(3)]
    sent = office.call("office365_send_email_v2", **mail)
    for result in await asyncio.gather(*calls, sent):
        error = result["structuredContent"]["error"]
        found = (result["isError"], error["code"], error["sign_in_url"])
        assert found == (True, "sign_in_required", link)
        assert link in result["content"][0]["text"]
    past = (await office.own("list_executions", limit=4))["executions"]
    ends = {(each["status"], each["error_code"]) for each in past}
    assert ends == {("failed", "sign_in_required")}
    wanted = {"connection": "office365", "method": "GET", "path": "/v2/Mail/1"}
    _, raw = await office.rest("POST", "/proxy", wanted)
    assert raw["error"]["sign_in_url"] == link
    assert len(peer.consents) == 1  # Azure was asked once for all of them


async def test_what_no_person_can_sign_keeps_the_apis_own_words(
    peer: Azure, make_office: OfficeMaker
) -> None:
    peer.add("ours", f"{CUSTOM}/our-api", overallStatus="Unauthenticated")
    refuse(peer)
    office = await (await make_office()).has("ours_list_mail")
    for _ in range(2):
        error = (await office.own("ours_list_mail", folderId="f"))["error"]
        assert (error["code"], error["status"]) == ("upstream_error", 401)
        assert "Who?" in error["message"]
    assert peer.consents == []
    assert peer.counted("/customApis/our-api") == 2  # its export, and what it is signed with


async def test_whoever_comes_back_from_signing_in_has_signed_the_connection_in(
    peer: Azure, make_office: OfficeMaker
) -> None:
    who = {"objectId": "me", "tenantId": "tenant"}
    claims = {"oid": "me", "tid": "tenant"}
    peer.token = jwt.encode(claims, "a key that Azure keeps to itself", "HS256")
    peer.add("office365", overallStatus="Unauthenticated")
    office = await make_office()
    await office.own("get_connection", name="office365")
    asked = peer.consents[0]["parameters"][0]
    back = asked["redirectUrl"].removeprefix(office.rest.base)
    assert back.startswith("/azure/consent/")
    assert asked == asked | who
    for path, status in ((f"{back}x?code=c", 404), (back, 400), (f"{back}?code=the-code", 200)):
        assert (await office.rest("GET", f"/{path}"))[0] == status
    assert peer.consents[1] == {"code": "the-code", **who}
    shown = await office.own("get_connection", name="office365")
    assert (shown["status"], shown["consent_link"]) == ("connected", None)


async def test_a_put_makes_the_connection_in_azure_and_a_delete_removes_it(office: Office) -> None:
    peer = office.peer
    made = await office.put("chat", api="teams", display_name="Chat")
    assert made["status"] == "unauthenticated"
    assert made["consent_link"] == "https://consent.example/chat?n=1"
    assert "teams" not in str(await office.own("get_connection", name="office365"))
    assert "chat_pin_message" in await office.tools()
    properties = {"displayName": "Chat", "api": {"id": f"{MANAGED}/teams"}}
    assert peer.put == [("chat", {"location": "westeurope", "properties": properties})]
    await office.own("refresh_tools")  # listed by Azure now, and still one
    names = [(name, origin) for name, origin, _ in await rows(office)]
    assert names == [("chat", "stored"), ("office365", "azure")]
    await office.own("delete_connection", name="chat")
    assert list(peer.connections) == ["office365"]
    assert "chat_pin_message" not in await office.tools()


async def test_what_was_in_azure_before_is_not_removed_there(office: Office) -> None:
    refused = await office.own("delete_connection", name="office365")
    assert "comes from Azure" in refused["error"]["message"]
    put = await office.put("office365", access="read-only")
    assert put["status"] == "connected"
    assert "office365_send_email_v2" not in await office.tools()
    await office.own("delete_connection", name="office365")
    assert list(office.peer.connections) == ["office365"]
    await office.own("refresh_tools")
    assert "office365_send_email_v2" in await office.tools()
    assert office.peer.put == []


async def test_a_put_that_fails_leaves_nothing_behind_in_azure(
    peer: Azure, make_office: OfficeMaker
) -> None:
    peer.apis[f"{MANAGED}/empty"] = ("broken", {})
    office = await make_office()
    for api in ("empty", "no-such"):
        assert (await office.put("x", api=api))["error"]["message"], api
    preview = await office.put("x", api="teams", dry_run=True)
    assert "x_pin_message" in {tool["name"] for tool in preview["tools"]}
    assert await rows(office) == []
    assert peer.connections == {}


async def test_failures_inside_a_success_are_failures(office: Office) -> None:
    office.peer.invoke = lambda request: {
        "statusCode": "NotFound",
        "body": {"error": {"code": "ErrorItemNotFound", "message": "No such mail."}},
        "headers": {"x-ms-client-request-id": "r-7"},
    }
    result = await office.call("office365_get_email_v2", messageId="a/b")
    error = result["structuredContent"]["error"]
    assert (result["isError"], error["status"], error["client_request_id"]) == (True, 404, "r-7")
    assert "No such mail." in error["message"]
    assert office.peer.invoked[0][1]["path"] == "/v2/Mail/a%2Fb"


async def test_a_pause_that_is_asked_for_is_kept(peer: Azure, make_office: OfficeMaker) -> None:
    peer.add("office365")
    peer.throttle = ["1"]  # while the group is listed: waited out
    office = await make_office()
    await office.has("office365_get_email_v2")
    peer.invoke = lambda request: {
        "statusCode": "TooManyRequests",
        "headers": {"Retry-After": "30"},
    }
    for code in ("upstream_error", "rate_limited"):
        found = await office.own("office365_get_email_v2", messageId="1")
        assert found["error"]["code"] == code
    assert len(peer.invoked) == 1


async def test_the_runtime_address_is_called_directly_where_it_is_asked_for(
    peer: Azure, make_office: OfficeMaker
) -> None:
    peer.add("office365", connectionRuntimeUrl=f"{peer.url}/runtime/office365/key")
    peer.add("old")
    office = await (await make_office(invoke="runtime")).has("old_get_email_v2")
    found = await office.own("office365_get_email_v2", messageId="1")
    await office.own("old_get_email_v2", messageId="1")
    assert found == {"direct": True}
    assert peer.runtime == [("GET", "/runtime/office365/key/v2/Mail/1", f"Bearer {peer.token}")]
    assert [name for name, _ in peer.invoked] == ["old"]
    scopes = [token.get("scope", "") for token in peer.tokens]
    assert scopes == ["", "https://apihub.azure.com/.default"]


async def test_a_listing_that_leads_elsewhere_or_fails_changes_nothing(
    peer: Azure, make_office: OfficeMaker
) -> None:
    for name in "abc":
        peer.add(name)
    office = await make_office()
    catalog = office.gateway.app.gateway.catalog

    def served() -> set[str]:
        return {tool.connection for tool in catalog.current.tools.values()}

    await until(lambda: served() == {"a", "b", "c"})
    before = await office.tools()
    peer.foreign_next_link = True
    await office.own("refresh_tools")
    assert catalog.group_problem is not None
    assert "another host" in catalog.group_problem.message
    peer.foreign_next_link = False
    peer.failing = {"/connections": 500}
    await office.own("refresh_tools")
    assert await office.tools() == before
    peer.failing = {}
    del peer.connections["b"]
    await office.own("refresh_tools")
    assert served() == {"a", "c"}


async def test_the_catalogue_of_connectors_is_searched_and_paged(
    make_office: OfficeMaker,
) -> None:
    office = await make_office()
    everything = await office.own("list_managed_apis", limit=1)
    assert (len(everything["apis"]), everything["total"]) == (1, 3)
    found = await office.own("list_managed_apis", search="outlook")
    words = {"display_name": "Office 365 Outlook", "description": "What office365 can do."}
    assert found["apis"] == [{"name": "office365", **words}]
    one = await office.own("get_managed_api", name="office365")
    assert one["needs_consent"] is True
    assert [parameter["name"] for parameter in one["parameters"]] == ["token"]
    assert [operation["name"] for operation in one["operations"]] == ["SendEmailV2"]
    missing = await office.own("get_managed_api", name="nothing")
    assert "there is no managed API" in missing["error"]["message"]


async def test_an_expired_token_is_replaced_once_for_all(office: Office) -> None:
    office.peer.token = "another-token"
    await office.own("office365_get_email_v2", messageId="1")
    await office.own("refresh_tools")
    assert len(office.peer.tokens) == 2


async def test_config_toml_may_speak_for_a_connection_of_the_group(
    peer: Azure, make_office: OfficeMaker
) -> None:
    peer.add("office365")
    office = await make_office('[connections.office365]\nkind = "arm"\naccess = "read-only"\n')
    listed = await office.tools()
    assert "office365_get_email_v2" in listed
    assert "office365_send_email_v2" not in listed
    assert await rows(office) == [("office365", "config", "connected")]


async def test_azure_comes_and_goes_with_an_edit(gateway: Running, peer: Azure) -> None:
    peer.add("office365")
    state = gateway.app.gateway
    async with aiohttp.ClientSession() as http:
        speaker = Speaker(http, gateway.mcp, "2026")
        assert "list_managed_apis" not in await speaker.tools()
        refused = await speaker.own("put_connection", name="x", kind="arm", api="teams")
    assert "[azure]" in refused["error"]["message"]
    gateway.config.write_text(OPEN + peer.table, encoding="utf-8")
    await until(lambda: "office365_get_email_v2" in state.snapshot.tools)
    gateway.config.write_text(OPEN, encoding="utf-8")
    await until(lambda: "office365_get_email_v2" not in state.snapshot.tools)


FOREIGN: list[dict[str, Any]] = [
    {"resource_id": "/subscriptions/s/providers/Microsoft.Compute/virtualMachines/x"},
    {"resource_id": f"{GROUP}/connections/../../x"},
    {"api": "../../x"},
    {"api": "/subscriptions/s/providers/Microsoft.Compute/virtualMachines/x"},
]


async def test_nothing_but_connections_and_connectors_is_touched(make_office: OfficeMaker) -> None:
    office = await make_office()
    for values in FOREIGN:
        refused = await office.put("x", **values)
        assert refused["error"]["code"] in ("connection_invalid", "invalid_arguments")
    assert {method for method, _ in office.peer.requests} == {"GET"}
