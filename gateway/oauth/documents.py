"""The documents by which clients find the front door, and the addresses that tokens are for.

Each address under /mcp is a resource of its own: its document (RFC 9728) names exactly the address
a person typed, and a token for one address opens no other. The authorization server is the gateway
itself, or in jwt mode the configured issuer.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from mcp.shared.auth import JWT_BEARER_GRANT_TYPE

from gateway.config.settings import OAuthSettings
from gateway.errors import GatewayError
from gateway.outbound.client import locate
from gateway.web.identity import SCOPES

SCOPE_WORDS = {
    "tools:read": "Read through your tools",
    "tools:write": "Change things through your tools, after confirmation where it is asked for",
    "admin": "Manage this gateway as an admin, if it may also change things",
}


def authorization_server(
    public_url: str, settings: OAuthSettings, machines: bool
) -> dict[str, Any]:
    """The document in which the gateway describes itself as an authorization server (RFC 8414)."""
    grants = ["authorization_code", "refresh_token"]
    grants += ["client_credentials"] if machines else []
    grants += [JWT_BEARER_GRANT_TYPE] if settings.enterprise else []
    methods = ["none", "client_secret_basic", "client_secret_post", "private_key_jwt"]
    document: dict[str, Any] = {
        "issuer": public_url,
        "authorization_endpoint": f"{public_url}/oauth/authorize",
        "token_endpoint": f"{public_url}/oauth/token",
        "revocation_endpoint": f"{public_url}/oauth/revoke",
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": grants,
        "code_challenge_methods_supported": ["S256"],
        "scopes_supported": [*SCOPES, "offline_access"],
        "token_endpoint_auth_methods_supported": methods,
        "token_endpoint_auth_signing_alg_values_supported": ["RS256", "ES256", "EdDSA"],
        "revocation_endpoint_auth_methods_supported": methods[:3],
        "authorization_response_iss_parameter_supported": True,
        "client_id_metadata_document_supported": "metadata" in settings.registration,
    }
    if "dynamic" in settings.registration:
        document["registration_endpoint"] = f"{public_url}/oauth/register"
    if settings.enterprise:
        profile = "urn:ietf:params:oauth:grant-profile:id-jag"
        document["authorization_grant_profiles_supported"] = [profile]
    return document


def resource_address(value: str, public_url: str) -> str | None:
    """The path that a `resource` names here; letter case and a slash at the end don't matter."""
    try:
        is_ours = locate(value).origin() == locate(public_url).origin()
    except GatewayError:
        return None
    parts, own = urlsplit(value), urlsplit(public_url)
    if not is_ours or parts.fragment or parts.query or "@" in parts.netloc:
        return None
    if not parts.path.startswith(own.path):
        return None
    return parts.path.removeprefix(own.path).removesuffix("/") or "/mcp"


def granted_scope(requested_scope: str | None, *, admin: bool) -> tuple[str, ...]:
    """The scopes a client may be given of those it asks for; all, if it asks for none we know."""
    scopes = [scope for scope in SCOPES if scope in (requested_scope or "").split()] or list(SCOPES)
    if "admin" in scopes or "tools:write" in scopes:  # a broad scope has the narrow ones in it
        scopes = [*SCOPES[: SCOPES.index(scopes[-1]) + 1]]
    return tuple(scope for scope in scopes if scope != "admin" or admin)
