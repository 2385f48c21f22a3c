"""What is logged of calls: those that did not succeed, by their ids, without their content."""

from __future__ import annotations

import re

from mcp.client.client import Client
from structlog.testing import capture_logs

from gateway.telemetry import with_request
from tests.callers import own_call
from tests.conftest import OPEN, GatewayMaker


async def test_a_failed_call_is_one_event_with_its_ids_and_nothing_it_was_sent(
    make_gateway: GatewayMaker,
) -> None:
    gateway = await make_gateway(OPEN + "\n[demo]\nenabled = true\n")
    async with Client(gateway.mcp) as client:
        with capture_logs([with_request]) as logged:
            await own_call(client, "demo_search_books", q="szymborska")
            await own_call(client, "demo_get_book", id=404)
    (event,) = [each for each in logged if each["event"] == "call ended"]
    assert {key: event[key] for key in ("tool", "status", "code", "upstream_status")} == {
        "tool": "demo_get_book",
        "status": "failed",
        "code": "upstream_error",
        "upstream_status": 404,
    }
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9]+", event["request"])
    assert len(event["execution"]) == 32
    assert "szymborska" not in str(logged)
