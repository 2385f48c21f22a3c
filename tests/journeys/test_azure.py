"""Azure's managed connections: found, named, called, made, signed in and removed."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import jwt
import pytest
from mcp.client.client import Client
from mcp_types import TextContent

from tests.conftest import OPEN, GatewayMaker, Running
from tests.peers import until
from tests.peers_arm import CUSTOM, GROUP, MANAGED, azure


async def own_call(client: Client, tool: str, /, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    found: dict[str, Any] | None = result.structured_content
    assert found is not None
    return found


async def names(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


async def test_the_connections_of_the_group_are_there_with_their_tools(
    make_gateway: GatewayMaker,
) -> None:
    async with azure("office365") as peer:
        peer.add("teams", "teams")
        peer.add("Our.API", f"{CUSTOM}/our-api")
        peer.add("no-such", "missing")
        gateway: Running = await make_gateway(OPEN + peer.table)
        async with Client(gateway.mcp) as client:
            listed = await names(client)
            assert {"office365_send_email_v2", "teams_pin_message"} <= listed
            assert any(name.startswith("our_api_") for name in listed)
            rows = (await own_call(client, "list_connections"))["connections"]
            shown = {row["name"]: (row["origin"], row["status"]) for row in rows}
            assert shown == {
                "office365": ("azure", "connected"),
                "teams": ("azure", "connected"),
                "our-api": ("azure", "connected"),
                "no-such": ("azure", "failing"),
            }
        assert len(peer.tokens) == 1
        assert peer.tokens[0]["grant_type"] == "client_credentials"


async def test_a_call_goes_by_dynamic_invoke(make_gateway: GatewayMaker) -> None:
    async with azure("office365") as peer:
        gateway: Running = await make_gateway(OPEN + peer.table)
        async with Client(gateway.mcp) as client:
            await own_call(
                client, "office365_send_email_v2", To="a@b.example", Subject="Hi", Body="<p>Ho</p>"
            )
    assert peer.invoked == [
        (
            "office365",
            {
                "method": "POST",
                "path": "/v2/Mail",
                "queries": {},
                "headers": {},
                "body": {
                    "To": "a@b.example",
                    "Subject": "Hi",
                    "Body": "<p>Ho</p>",
                    "Source": "connector",
                },
            },
        )
    ]


async def test_what_was_found_is_there_after_a_restart_without_network(
    make_gateway: GatewayMaker,
) -> None:
    async with azure("office365", "mail") as peer:
        first: Running = await make_gateway(OPEN + peer.table)
        async with Client(first.mcp) as client:
            assert "mail_send_email_v2" in await names(client)
        table = peer.table
        assert peer.counted("/managedApis/office365") == 1  # two connections, one definition
        assert peer.counted("/connections/mail") == 0  # the listing told all there is to know
    second: Running = await make_gateway(OPEN + table)
    async with Client(second.mcp) as client:
        assert {"office365_send_email_v2", "mail_send_email_v2"} <= await names(client)


async def test_a_connection_that_is_not_signed_in_says_so_and_where_to_sign_in(
    make_gateway: GatewayMaker,
) -> None:
    async with azure() as peer:
        entry = peer.add("office365", overallStatus="Unauthenticated")
        gateway: Running = await make_gateway(OPEN + peer.table)
        async with Client(gateway.mcp) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert "not authenticated" in (tools["office365_send_email_v2"].description or "")
            shown = [await own_call(client, "get_connection", name="office365") for _ in range(2)]
            link = "https://consent.example/office365?n=1"
            assert [(row["status"], row["consent_link"]) for row in shown] == [
                ("unauthenticated", link)
            ] * 2
            assert peer.consents[0]["parameters"][0]["parameterName"] == "token"
            entry["properties"]["overallStatus"] = "Connected"
            report = await own_call(client, "refresh_tools", connection="office365")
            assert report["connections"][0]["status"] == "connected"
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert "authenticated" not in (tools["office365_send_email_v2"].description or "")
            after = await own_call(client, "get_connection", name="office365")
            assert after["consent_link"] is None


@pytest.mark.parametrize("invoke", ["dynamic", "runtime"])
async def test_a_call_that_wants_a_sign_in_says_where(
    make_gateway: GatewayMaker, invoke: str
) -> None:
    async with azure() as peer, httpx2.AsyncClient() as http:
        runtime = f"{peer.url}/runtime/office365/key"
        peer.add("office365", overallStatus="Unauthenticated", connectionRuntimeUrl=runtime)
        peer.invoke = lambda request: {"statusCode": "Unauthorized", "body": {"message": "Who?"}}
        peer.run_status = 401
        text = peer.table.replace("[azure]", f'[azure]\ninvoke = "{invoke}"')
        gateway: Running = await make_gateway(OPEN + text)
        link = "https://consent.example/office365?n=1"
        mail = {"To": "a@b.example", "Subject": "Hi", "Body": "Ho"}
        async with Client(gateway.mcp) as client:
            calls = (client.call_tool("office365_get_email_v2", {"messageId": "1"}) for _ in "123")
            sent = client.call_tool("office365_send_email_v2", mail)
            for result in await asyncio.gather(*calls, sent):
                assert result.is_error and result.structured_content is not None
                error = result.structured_content["error"]
                assert (error["code"], error["sign_in_url"]) == ("sign_in_required", link)
                assert isinstance(result.content[0], TextContent)
                assert link in result.content[0].text
            past = (await own_call(client, "list_executions", limit=4))["executions"]
            assert {(each["status"], each["error_code"]) for each in past} == {
                ("failed", "sign_in_required")
            }
        wanted = {"connection": "office365", "method": "GET", "path": "/v2/Mail/1"}
        raw = await http.post(f"{gateway.url}/api/v1/proxy", json=wanted)
        assert raw.json()["error"]["sign_in_url"] == link
    assert len(peer.consents) == 1  # Azure was asked once for all of them


async def test_what_no_person_can_sign_keeps_the_apis_own_words(
    make_gateway: GatewayMaker,
) -> None:
    async with azure() as peer:
        peer.add("ours", f"{CUSTOM}/our-api", overallStatus="Unauthenticated")
        peer.invoke = lambda request: {"statusCode": "Unauthorized", "body": {"message": "Who?"}}
        gateway: Running = await make_gateway(OPEN + peer.table)
        async with Client(gateway.mcp) as client:
            for _ in range(2):
                error = (await own_call(client, "ours_list_mail", folderId="f"))["error"]
                assert (error["code"], error["status"]) == ("upstream_error", 401)
                assert "Who?" in error["message"]
        assert peer.consents == []
        assert peer.counted("/customApis/our-api") == 2  # its export, and what it is signed with


async def test_whoever_comes_back_from_signing_in_has_signed_the_connection_in(
    make_gateway: GatewayMaker,
) -> None:
    async with azure() as peer, httpx2.AsyncClient() as browser:
        peer.token = _jwt({"oid": "me", "tid": "tenant"})
        peer.add("office365", overallStatus="Unauthenticated")
        gateway: Running = await make_gateway(OPEN + peer.table)
        async with Client(gateway.mcp) as client:
            await own_call(client, "get_connection", name="office365")
            asked = peer.consents[0]["parameters"][0]
            back = asked["redirectUrl"]
            assert back.startswith(f"{gateway.url}/azure/consent/")
            assert (asked["objectId"], asked["tenantId"]) == ("me", "tenant")
            for wrong, status in ((f"{back}x?code=c", 404), (back, 400)):
                assert (await browser.get(wrong)).status_code == status
            assert (await browser.get(f"{back}?code=the-code")).status_code == 200
            assert peer.consents[1] == {
                "code": "the-code",
                "objectId": "me",
                "tenantId": "tenant",
            }
            shown = await own_call(client, "get_connection", name="office365")
            assert (shown["status"], shown["consent_link"]) == ("connected", None)


def _jwt(claims: dict[str, str]) -> str:
    return jwt.encode(claims, "a key that Azure keeps to itself", "HS256")


async def test_a_put_makes_the_connection_in_azure_and_a_delete_removes_it(
    make_gateway: GatewayMaker,
) -> None:
    async with azure("office365") as peer:
        gateway: Running = await make_gateway(OPEN + peer.table)
        async with Client(gateway.mcp) as client:
            made = await own_call(
                client, "put_connection", name="chat", kind="arm", api="teams", display_name="Chat"
            )
            assert made["status"] == "unauthenticated"
            assert made["consent_link"] == "https://consent.example/chat?n=1"
            assert "teams" not in str(await own_call(client, "get_connection", name="office365"))
            assert "chat_pin_message" in await names(client)
            api = {"id": f"{MANAGED}/teams"}
            body = {
                "location": "westeurope",
                "properties": {"displayName": "Chat", "api": api},
            }
            assert peer.put == [("chat", body)]
            await own_call(client, "refresh_tools")  # listed by Azure now, and still one
            rows = (await own_call(client, "list_connections"))["connections"]
            assert [(row["name"], row["origin"]) for row in rows] == [
                ("chat", "stored"),
                ("office365", "azure"),
            ]
            await own_call(client, "delete_connection", name="chat")
            assert list(peer.connections) == ["office365"]
            assert "chat_pin_message" not in await names(client)


async def test_what_was_in_azure_before_is_not_removed_there(make_gateway: GatewayMaker) -> None:
    async with azure("office365") as peer:
        gateway: Running = await make_gateway(OPEN + peer.table)
        async with Client(gateway.mcp) as client:
            refused = await own_call(client, "delete_connection", name="office365")
            assert "comes from Azure" in refused["error"]["message"]
            put = await own_call(
                client, "put_connection", name="office365", kind="arm", access="read-only"
            )
            assert put["status"] == "connected"
            assert "office365_send_email_v2" not in await names(client)
            await own_call(client, "delete_connection", name="office365")
            assert list(peer.connections) == ["office365"]
            await own_call(client, "refresh_tools")
            assert "office365_send_email_v2" in await names(client)
        assert peer.put == []


async def test_a_put_that_fails_leaves_nothing_behind_in_azure(
    make_gateway: GatewayMaker,
) -> None:
    async with azure() as peer:
        peer.apis[f"{MANAGED}/empty"] = ("broken", {})
        gateway: Running = await make_gateway(OPEN + peer.table)
        async with Client(gateway.mcp) as client:
            for api in ("empty", "no-such"):
                failed = await own_call(client, "put_connection", name="x", kind="arm", api=api)
                assert failed["error"]["message"], api
            preview = await own_call(
                client, "put_connection", name="x", kind="arm", api="teams", dry_run=True
            )
            assert "x_pin_message" in {tool["name"] for tool in preview["tools"]}
            assert (await own_call(client, "list_connections"))["connections"] == []
        assert peer.connections == {}


async def test_failures_inside_a_success_are_failures(make_gateway: GatewayMaker) -> None:
    async with azure("office365") as peer:
        gateway: Running = await make_gateway(OPEN + peer.table)
        peer.invoke = lambda request: {
            "statusCode": "NotFound",
            "body": {"error": {"code": "ErrorItemNotFound", "message": "No such mail."}},
            "headers": {"x-ms-client-request-id": "r-7"},
        }
        async with Client(gateway.mcp) as client:
            result = await client.call_tool("office365_get_email_v2", {"messageId": "a/b"})
            found = result.structured_content
        assert result.is_error and found is not None
        error = found["error"]
        assert (error["status"], error["client_request_id"]) == (404, "r-7")
        assert "No such mail." in error["message"]
        assert peer.invoked[0][1]["path"] == "/v2/Mail/a%2Fb"


async def test_a_pause_that_is_asked_for_is_kept(make_gateway: GatewayMaker) -> None:
    async with azure("office365") as peer:
        peer.throttle = ["1"]  # while the group is listed: waited out
        gateway: Running = await make_gateway(OPEN + peer.table)
        await until(lambda: bool(gateway.app.gateway.snapshot.connections["office365"].tools))
        async with Client(gateway.mcp) as client:
            peer.invoke = lambda request: {
                "statusCode": "TooManyRequests",
                "headers": {"Retry-After": "30"},
            }
            for code in ("upstream_error", "rate_limited"):
                found = await own_call(client, "office365_get_email_v2", messageId="1")
                assert found["error"]["code"] == code
        assert len(peer.invoked) == 1


async def test_the_runtime_address_is_called_directly_where_it_is_asked_for(
    make_gateway: GatewayMaker,
) -> None:
    async with azure() as peer:
        peer.add("office365", connectionRuntimeUrl=f"{peer.url}/runtime/office365/key")
        peer.add("old")
        text = OPEN + peer.table.replace("[azure]", '[azure]\ninvoke = "runtime"')
        gateway: Running = await make_gateway(text)
        async with Client(gateway.mcp) as client:
            found = await own_call(client, "office365_get_email_v2", messageId="1")
            await own_call(client, "old_get_email_v2", messageId="1")
        assert found == {"direct": True}
        assert peer.runtime == [("GET", "/runtime/office365/key/v2/Mail/1", f"Bearer {peer.token}")]
        assert [name for name, _ in peer.invoked] == ["old"]
        scopes = [token.get("scope", "") for token in peer.tokens]
        assert scopes == ["", "https://apihub.azure.com/.default"]


async def test_a_listing_that_leads_elsewhere_or_fails_changes_nothing(
    make_gateway: GatewayMaker,
) -> None:
    async with azure("a", "b", "c") as peer:
        gateway: Running = await make_gateway(OPEN + peer.table)
        state = gateway.app.gateway
        await until(
            lambda: {"a", "b", "c"} == {t.connection for t in state.snapshot.tools.values()}
        )
        async with Client(gateway.mcp) as client:
            before = await names(client)
            peer.foreign_next_link = True
            await own_call(client, "refresh_tools")
            problem = gateway.app.gateway.catalog.group_problem
            assert problem is not None
            assert "another host" in problem.message
            peer.foreign_next_link = False
            peer.failing = {"/connections": 500}
            await own_call(client, "refresh_tools")
            assert await names(client) == before
            peer.failing = {}
            del peer.connections["b"]
            await own_call(client, "refresh_tools")
            assert {name.split("_")[0] for name in await names(client)} >= {"a", "c"}
            assert not any(name.startswith("b_") for name in await names(client))


async def test_the_catalogue_of_connectors_is_searched_and_paged(
    make_gateway: GatewayMaker,
) -> None:
    async with azure() as peer:
        gateway: Running = await make_gateway(OPEN + peer.table)
        async with Client(gateway.mcp) as client:
            everything = await own_call(client, "list_managed_apis", limit=1)
            assert (len(everything["apis"]), everything["total"]) == (1, 3)
            assert (await own_call(client, "list_managed_apis", search="outlook"))["apis"] == [
                {
                    "name": "office365",
                    "display_name": "Office 365 Outlook",
                    "description": "What office365 can do.",
                }
            ]
            one = await own_call(client, "get_managed_api", name="office365")
            assert one["needs_consent"] is True
            assert [parameter["name"] for parameter in one["parameters"]] == ["token"]
            assert [operation["name"] for operation in one["operations"]] == ["SendEmailV2"]
            missing = await own_call(client, "get_managed_api", name="nothing")
            assert "there is no managed API" in missing["error"]["message"]


async def test_an_expired_token_is_replaced_once_for_all(make_gateway: GatewayMaker) -> None:
    async with azure("office365") as peer:
        gateway: Running = await make_gateway(OPEN + peer.table)
        peer.token = "another-token"
        async with Client(gateway.mcp) as client:
            await own_call(client, "office365_get_email_v2", messageId="1")
            await own_call(client, "refresh_tools")
        assert len(peer.tokens) == 2


async def test_without_azure_there_is_nothing_of_it(gateway: Running) -> None:
    async with Client(gateway.mcp) as client:
        assert "list_managed_apis" not in await names(client)
        refused = await own_call(client, "put_connection", name="x", kind="arm", api="teams")
        assert "[azure]" in refused["error"]["message"]


async def test_config_toml_may_speak_for_a_connection_of_the_group(
    make_gateway: GatewayMaker,
) -> None:
    async with azure("office365") as peer:
        own = '[connections.office365]\nkind = "arm"\naccess = "read-only"\n'
        gateway: Running = await make_gateway(OPEN + own + peer.table)
        async with Client(gateway.mcp) as client:
            listed = await names(client)
            assert "office365_get_email_v2" in listed
            assert "office365_send_email_v2" not in listed
            rows = (await own_call(client, "list_connections"))["connections"]
            assert [(row["name"], row["origin"]) for row in rows] == [("office365", "config")]


async def test_azure_comes_and_goes_with_an_edit(make_gateway: GatewayMaker) -> None:
    async with azure("office365") as peer:
        gateway: Running = await make_gateway()
        state = gateway.app.gateway
        gateway.config.write_text(OPEN + peer.table, encoding="utf-8")
        await until(lambda: "office365_get_email_v2" in state.snapshot.tools)
        gateway.config.write_text(OPEN, encoding="utf-8")
        await until(lambda: "office365_get_email_v2" not in state.snapshot.tools)


FOREIGN = [
    {"resource_id": "/subscriptions/s/providers/Microsoft.Compute/virtualMachines/x"},
    {"resource_id": f"{GROUP}/connections/../../x"},
    {"api": "../../x"},
    {"api": "/subscriptions/s/providers/Microsoft.Compute/virtualMachines/x"},
]


async def test_nothing_but_connections_and_connectors_is_touched(
    make_gateway: GatewayMaker,
) -> None:
    async with azure() as peer:
        gateway: Running = await make_gateway(OPEN + peer.table)
        async with Client(gateway.mcp) as client:
            for values in FOREIGN:
                refused = await own_call(client, "put_connection", name="x", kind="arm", **values)
                assert refused["error"]["code"] in ("connection_invalid", "invalid_arguments")
        assert {method for method, _ in peer.requests} == {"GET"}
