"""Requests to Azure Resource Manager, with the one token that everything behind Azure shares."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import orjson

from gateway.config.settings import Azure
from gateway.invoke.credentials import Credentials, send_granted
from gateway.invoke.prepared import AZURE, auth_of
from gateway.outbound.client import Answer, Egress, Request

AZURE_SECONDS = 20.0


async def ask_azure(
    egress: Egress, credentials: Credentials, azure: Azure, request: Request, max_bytes: int
) -> Answer:
    """What Azure answers; a token it no longer accepts is replaced once."""

    async def send(granted: Request) -> Answer:
        return await egress.send(granted, deadline=AZURE_SECONDS, max_bytes=max_bytes)

    auth = auth_of(azure.auth)
    answer, _ = await send_granted(credentials, AZURE, auth, request, azure.endpoint, send)
    return answer


async def azure_identity(credentials: Credentials, azure: Azure) -> dict[str, str]:
    """Who we are to Azure, read off our own token; nothing where it does not say.

    It is not checked: Azure checks what it is told.
    """
    grant = await credentials.grant(AZURE, auth_of(azure.auth))
    claims = _claims(grant.secrets[0]) if grant.secrets else {}
    found = {"objectId": claims.get("oid"), "tenantId": claims.get("tid")}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _claims(token: str) -> dict[str, Any]:
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        text = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        claims = orjson.loads(text)
    except (binascii.Error, ValueError):
        return {}
    return claims if isinstance(claims, dict) else {}
