"""Azure's managed connections: found, named, called, made, signed in and removed."""

from __future__ import annotations

from typing import Any

from mcp.client.client import Client

from tests.conftest import OPEN, GatewayMaker, Running
from tests.peers import until
from tests.peers_arm import CUSTOM, GROUP, MANAGED, Azure, azure


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
