"""What those who run the gateway do in a soak: decide, refresh, put, delete, edit, restart."""

from __future__ import annotations

import asyncio
from itertools import count

from bench.soak.clients import Client
from tests.peers import items_api

DOWN_SECONDS = 1.0
SPARES = ("spare0", "spare1", "spare2")
DEFINITIONS = 12  # different ones, so that what is remembered of each is bounded

_edits = count(1)


async def decides(one: Client) -> None:
    """Looks at what waits; approves, denies, or leaves it until it expires."""
    found = await one.rest("GET", "/approvals")
    for approval in found.get("approvals", []):
        decision = one.chance.choice(("approve", "deny", "always_allow", ""))
        if decision:
            one.tally.left["standing_grants"] += 1
            body = {"decision": decision}
            path = f"/approvals/{approval['id']}"
            await one.rest("POST", path, body, ok=(200, 404, 409))  # another was first, or too late


async def refreshes(one: Client) -> None:
    """Reads a definition again, which may have changed."""
    shop = one.world.shop
    names = [f"extra{one.chance.randrange(DEFINITIONS)}"]
    one.tally.left["validations"] = DEFINITIONS + 1
    known = {k: v for k, v in shop.document["paths"].items() if not k.startswith("/extra")}
    shop.document = {**shop.document, "paths": {**known, **items_api("", *names)["paths"]}}
    await one.rest("POST", f"/connections/{one.chance.choice(('shop', 'far'))}/refresh")


async def puts_and_deletes(one: Client) -> None:
    """Connections come, change and go at run time."""
    name = one.chance.choice(SPARES)
    values = {
        "kind": "openapi",
        "spec": one.world.shop.spec,
        "display_name": f"{name} {one.chance.randrange(10**6)}",
    }
    await one.rest("PUT", f"/connections/{name}", values)
    tool = f"{name}_get_items"
    await one.rest("POST", f"/tools/{tool}/call", {"arguments": {"id": "1"}}, ok=(200, 404))
    if one.chance.random() < 0.6:
        await one.rest("DELETE", f"/connections/{name}", ok=(200, 204, 404))


async def edits(one: Client) -> None:
    """Saves config.toml, now and then with a mistake."""
    number = next(_edits)
    await asyncio.to_thread(one.world.edit, f"edition {number}", good=number % 4 != 0)


async def restarts_a_server(one: Client) -> None:
    """The far MCP server goes away, with every session, and comes back."""
    far = one.world.far
    await far.peer.announce()
    await far.stop()
    await asyncio.sleep(DOWN_SECONDS)
    await far.start()
