"""Requests to Azure Resource Manager, with the one token that everything behind Azure shares."""

from __future__ import annotations

from gateway.config.settings import Azure
from gateway.egress import Answer, Egress, Request
from gateway.invoke.credentials import Credentials, send_granted
from gateway.invoke.prepared import AZURE, auth_of

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
