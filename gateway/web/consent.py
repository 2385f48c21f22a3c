"""Where people come back to after signing a connection in: the code they bring is handed to Azure.

The address they come back to holds a sealed note of which connection it is about and until when, so
that nobody can make one up; a note that was used again only confirms the same connection again.
"""

from __future__ import annotations

import html
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

import structlog
from cryptography.fernet import InvalidToken
from starlette.types import Receive, Scope, Send

from gateway.errors import GatewayError
from gateway.store.secrets import Seal
from gateway.web.gateway import Gateway
from gateway.web.guard import respond
from gateway.web.meta_tools import azure_resource

log = structlog.get_logger("gateway.azure")

PATH = "/azure/consent/"
VALID_SECONDS = 3600.0
MAX_CODE = 4096
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width"><h1>{title}</h1><p>{words}</p></html>"""
HEADERS = [
    (b"content-security-policy", b"default-src 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]


def return_address(seal: Seal, public_url: str, id_: str) -> str:
    """Where Azure sends the person who signed in for this resource."""
    note = {"azure_consent": id_, "until": time.time() + VALID_SECONDS}
    return f"{public_url}{PATH}{seal.encrypt_json(note).decode().rstrip('=')}"


class ConsentReturn:
    """Answers people who come back from signing in."""

    def __init__(self, gateway: Gateway, seal: Seal) -> None:
        self._gateway = gateway
        self._seal = seal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            await respond(send, 405, b"", [(b"allow", b"GET")])
            return
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        title, words, status = await self._outcome(scope["path"].removeprefix(PATH), query)
        page = PAGE.format(title=html.escape(title), words=html.escape(words))
        await respond(send, status, page.encode(), HEADERS, content_type=b"text/html")

    async def _outcome(self, note: str, query: Mapping[str, list[str]]) -> tuple[str, str, int]:
        id_ = self._noted(note)
        code = query.get("code", [""])[0]
        if id_ is None:
            return "This link has expired", "Ask for a new one with get_connection.", 404
        if not code or len(code) > MAX_CODE:
            return "Not signed in", "The sign-in was not completed. Try the link again.", 400
        try:
            await self._gateway.azure.directory.confirm(id_, code)
        except GatewayError as error:
            log.warning("consent not confirmed", error=error.message)
            return "Not signed in", "Azure did not accept the sign-in. Try the link again.", 502
        await self._gateway.catalog.refresh(self._about(id_), by="consent")
        return "Signed in", "The connection is ready. You can close this page.", 200

    def _noted(self, note: str) -> str | None:
        """The resource that a note is about, while it is valid."""
        padded = note + "=" * (-len(note) % 4)
        try:
            value: Any = self._seal.decrypt_json(padded.encode("ascii", "replace"))
        except (InvalidToken, ValueError):
            return None
        if not isinstance(value, dict) or value.get("until", 0) < time.time():
            return None
        id_ = value.get("azure_consent")
        return id_ if isinstance(id_, str) else None

    def _about(self, id_: str) -> list[str]:
        return [
            name
            for name, state in self._gateway.snapshot.connections.items()
            if id_.lower() == (azure_resource(state) or "").lower()
        ]
