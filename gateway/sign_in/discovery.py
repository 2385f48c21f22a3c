"""Finds the authorization server of a connection, with our client id there.

The configuration counts first. A manifest may name its provider's addresses, Azure's are known by
its token URL. An MCP server names its own in documents: an answer 401 or a well-known address
names the resource's document (RFC 9728), which names the authorization server, whose own document
(RFC 8414) names the endpoints. Our client id there is the address of our own document, where the
server takes such, or else we register ourselves (RFC 7591), once. Every address is https, or listed
in `network.allow`, and is fetched through the one way out, in bounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec
import orjson

from gateway.config.connection import ArmConnection, Connection, McpConnection, OAuth2Auth
from gateway.config.settings import Azure, is_safe_address
from gateway.errors import Fixable, GatewayError
from gateway.limits import FETCH_SECONDS, STEP_BYTES
from gateway.model import NO_TLS_FILES, Build
from gateway.outbound.client import Answer, Egress, Pairs, Request
from gateway.sign_in.client import JSON, AuthorizationServer, json_object
from gateway.store.credentials import get_registration, save_registration
from gateway.store.database import Database
from gateway.store.secrets import Seal

CALLBACK = "/oauth/callback"
CLIENT_DOCUMENT = "/oauth/client.json"
AZURE_SCOPES = ("https://management.azure.com/.default", "offline_access")
_PARAMETER = re.compile(r'(resource_metadata|scope)="([^"]*)"')

ServerMetadata = Mapping[str, Any]


def own_document(public_url: str) -> dict[str, Any]:
    """The document that describes the gateway to authorization servers, as a client of theirs."""
    return {
        "client_id": f"{public_url}{CLIENT_DOCUMENT}",
        "client_name": "MCP gateway",
        "client_uri": public_url,
        "redirect_uris": [f"{public_url}{CALLBACK}"],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": "web",
    }


@dataclass(frozen=True, slots=True)
class Discovery:
    """Finds authorization servers."""

    db: Database
    seal: Seal
    egress: Egress
    allow: Callable[[], Sequence[str]]
    public_url: str

    async def server_of(
        self, name: str, settings: Connection, build: Build | None, azure: Azure | None
    ) -> AuthorizationServer:
        """The server where people sign in to this connection; raises GatewayError without one."""
        auth = settings.auth
        assert isinstance(auth, OAuth2Auth)
        secret = auth.client_secret.get_secret_value() if auth.client_secret else ""
        server = AuthorizationServer(
            auth.authorize_url or "",
            auth.token_url or "",
            auth.client_id or "",
            secret,
            auth.scopes,
            auth.issuer or "",
            revoke_url=auth.revoke_url or "",
        )
        if isinstance(settings, ArmConnection) and azure is not None:
            server = _azure_server(server, azure)
        elif build is not None and len(build.sign_in_urls) == 2:
            authorize, token = build.sign_in_urls
            server = _fill_in(server, authorize_url=authorize, token_url=token)
        elif isinstance(settings, McpConnection) and settings.url:
            try:
                server = await self._mcp_server(name, settings.url, settings, server)
            except (TypeError, ValueError) as error:  # a number for a list, or half an address
                words = "The server's documents say what nobody can follow."
                raise Fixable("connection_invalid", words) from error
        for key in ("authorize_url", "token_url", "client_id"):
            if not getattr(server, key):
                raise Fixable("connection_invalid", f"{name}: set auth.{key} to sign in there")
        self._check(server.authorize_url, server.token_url)
        return server

    async def _mcp_server(
        self, name: str, url: str, settings: Connection, base: AuthorizationServer
    ) -> AuthorizationServer:
        """What a server's documents say, beside what is configured."""
        if base.authorize_url and base.token_url and base.client_id:
            return msgspec.structs.replace(base, resource=canonical(url))
        resource, issuer, scopes = await self._resource(url, settings)
        document = await self._server_document(issuer)
        server = _fill_in(
            base,
            authorize_url=str(document["authorization_endpoint"]),
            token_url=str(document["token_endpoint"]),
            scopes=scopes,
            issuer=str(document["issuer"]),
            names_itself=document.get("authorization_response_iss_parameter_supported") is True,
            resource=resource,
            revoke_url=str(document.get("revocation_endpoint") or ""),
        )
        self._check(server.authorize_url, server.token_url, server.revoke_url)
        return server if server.client_id else await self._with_client_id(name, server, document)

    async def _resource(self, url: str, settings: Connection) -> tuple[str, str, tuple[str, ...]]:
        """The resource that tokens are for, the server that gives them, and their scopes."""
        challenge = await self._challenge(url, settings)
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        well_known = f"{origin}/.well-known/oauth-protected-resource"
        places = [challenge.get("resource_metadata"), f"{well_known}{parts.path.rstrip('/')}"]
        for place in dict.fromkeys([*filter(None, places), well_known]):
            document = await self._document(place)
            servers, resource = document.get("authorization_servers"), document.get("resource", "")
            if not isinstance(servers, list) or not servers:
                continue
            if not _covers(str(resource), url):
                words = "The server's document is for another resource."
                raise Fixable("connection_invalid", words, "Check the connection's url.")
            listing = document.get("scopes_supported")
            all_scopes = listing if isinstance(listing, list) else []
            scopes = challenge.get("scope", "").split() or [s for s in all_scopes if _is_text(s)]
            return str(resource), str(servers[0]), tuple(scopes)
        return canonical(url), origin, tuple(challenge.get("scope", "").split())

    async def _challenge(self, url: str, settings: Connection) -> dict[str, str]:
        """What the server says to a request without a token."""
        headers: Pairs = (("Accept", f"{JSON}, text/event-stream"), ("Content-Type", JSON))
        body = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {}}
        request = Request("POST", url, headers, orjson.dumps(body))
        answer = await self._send(request, settings)
        header = (answer.header("www-authenticate") or "") if answer.status == 401 else ""
        return dict(_PARAMETER.findall(header))

    async def _server_document(self, issuer: str) -> ServerMetadata:
        """The own document of an authorization server, from any of its usual addresses."""
        for place in _document_urls(issuer):
            document = await self._document(place)
            if not document:
                continue
            if str(document.get("issuer", "")).rstrip("/") != issuer.rstrip("/"):
                raise Fixable("connection_invalid", "The document names another issuer.")
            for name in ("authorization_endpoint", "token_endpoint"):
                if not _is_text(document.get(name)):
                    raise Fixable("connection_invalid", f"The document names no {name}.")
            if "S256" not in (document.get("code_challenge_methods_supported") or ()):
                words = "The authorization server does not say that it takes PKCE (S256)."
                hint = "Set auth.authorize_url, auth.token_url and auth.client_id to use it so."
                raise Fixable("connection_invalid", words, hint)
            return document
        words = "The server does not say who signs people in."
        hint = "Set auth.authorize_url, auth.token_url and auth.client_id."
        raise Fixable("connection_invalid", words, hint)

    async def _with_client_id(
        self, name: str, server: AuthorizationServer, document: ServerMetadata
    ) -> AuthorizationServer:
        """The server, with our client id and secret there."""
        by_document = document.get("client_id_metadata_document_supported") is True
        if by_document and self.public_url.startswith("https://"):
            return msgspec.structs.replace(
                server, client_id=f"{self.public_url}{CLIENT_DOCUMENT}", in_header=False
            )
        sealed = await get_registration(self.db, name, server.issuer)
        values = self.seal.open_values(_REGISTRATION, sealed.decode()) if sealed else None
        if values is None or values[0] != self.public_url:
            values = [self.public_url, *await self._register(document)]
            sealed_values = self.seal.seal_values(_REGISTRATION, *values).encode()
            await save_registration(self.db, name, server.issuer, sealed_values)
        _, id, secret, in_header = values
        return msgspec.structs.replace(
            server, client_id=id, client_secret=secret, in_header=in_header
        )

    async def _register(self, document: ServerMetadata) -> tuple[str, str, bool]:
        """Our id and secret at a server that takes new clients, and how it wants the secret."""
        endpoint = document.get("registration_endpoint")
        if not isinstance(endpoint, str) or not endpoint:
            words = "The authorization server takes no new clients."
            raise Fixable("connection_invalid", words, "Register one there and set auth.client_id.")
        self._check(endpoint)
        metadata = own_document(self.public_url)
        del metadata["client_id"]
        methods = document.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        known_methods = ("none", "client_secret_post", "client_secret_basic")
        method = next((each for each in known_methods if each in methods), "client_secret_basic")
        metadata["token_endpoint_auth_method"] = method
        headers: Pairs = (("Accept", JSON), ("Content-Type", JSON))
        answer = await self._send(Request("POST", endpoint, headers, orjson.dumps(metadata)))
        value = json_object(answer) if answer.status in (200, 201) else {}
        id, secret = value.get("client_id"), value.get("client_secret")
        if not isinstance(id, str) or not id:
            words = f"The authorization server did not register the gateway ({answer.status})."
            raise Fixable("connection_invalid", words, "Set auth.client_id to one of its clients.")
        answer_method = str(value.get("token_endpoint_auth_method") or method)
        return id, secret if isinstance(secret, str) else "", answer_method == "client_secret_basic"

    async def _document(self, url: str) -> ServerMetadata:
        """The document at an address; an empty one where none can be read."""
        if not is_safe_address(url, self.allow()):
            return {}
        try:
            answer = await self._send(Request("GET", url, (("Accept", JSON),)))
        except GatewayError:
            return {}
        return json_object(answer) if answer.status == 200 else {}

    async def _send(self, request: Request, settings: Connection | None = None) -> Answer:
        tls = settings.tls if settings is not None else NO_TLS_FILES
        return await self.egress.send(
            request, deadline=FETCH_SECONDS, max_bytes=STEP_BYTES, tls=tls
        )

    def _check(self, *urls: str) -> None:
        for url in urls:
            if url and not is_safe_address(url, self.allow()):
                words = "An address to sign in at is neither https nor listed in network.allow."
                raise Fixable("connection_invalid", words)


_REGISTRATION = "registration"


def _azure_server(server: AuthorizationServer, azure: Azure) -> AuthorizationServer:
    """Azure's own directory: people sign in at the server that gives the gateway its tokens."""
    auth = azure.auth
    if not isinstance(auth, OAuth2Auth) or auth.token_url is None:
        return server
    return _fill_in(
        server,
        authorize_url=re.sub(r"/token\Z", "/authorize", auth.token_url),
        token_url=auth.token_url,
        client_id=auth.client_id or "",
        client_secret=auth.client_secret.get_secret_value() if auth.client_secret else "",
        scopes=AZURE_SCOPES,
    )


def _fill_in(server: AuthorizationServer, **found: Any) -> AuthorizationServer:
    """The server with what was found where nothing is configured."""
    values = {key: getattr(server, key) or value for key, value in found.items()}
    return msgspec.structs.replace(server, **values)


def canonical(url: str) -> str:
    """A resource's name: its address without query, fragment and a slash at its end."""
    parts = urlsplit(url)
    return f"{parts.scheme.lower()}://{parts.netloc.lower()}{parts.path.rstrip('/')}"


def _covers(resource: str, url: str) -> bool:
    """Whether a token for this resource is one for the address: the same, or a folder above it."""
    folder, address = f"{canonical(resource)}/", f"{canonical(url)}/"
    return bool(urlsplit(resource).netloc) and address.startswith(folder)


def _document_urls(issuer: str) -> Iterator[str]:
    """The addresses at which an issuer may keep its document."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    yield f"{origin}/.well-known/oauth-authorization-server{path}"
    yield f"{origin}/.well-known/openid-configuration{path}"
    if path:
        yield f"{origin}{path}/.well-known/openid-configuration"


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)
