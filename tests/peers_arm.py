"""The far side: a small real Azure Resource Manager, as much of it as managed connections need."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from tests.configs import table
from tests.peers import listening

FIXTURES = Path(__file__).parents[1] / "fixtures" / "openapi"
GROUP = "/subscriptions/sub/resourceGroups/group/providers/Microsoft.Web"
MANAGED = "/subscriptions/sub/providers/Microsoft.Web/locations/westeurope/managedApis"
CUSTOM = f"{GROUP}/customApis"
VERSION = "2016-06-01"

Invoke = Callable[[dict[str, Any]], dict[str, Any]]
Tamper = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


@dataclass
class Azure:
    """What it holds, what it was asked, and how it is to misbehave."""

    port: int = 0
    connections: dict[str, dict[str, Any]] = field(default_factory=dict)
    apis: dict[str, tuple[str, Any]] = field(default_factory=dict)  # id: shape, definition
    page_size: int = 2
    foreign_next_link: bool = False
    throttle: list[str] = field(default_factory=list)  # Retry-After of the next answers
    failing: dict[str, int] = field(default_factory=dict)  # path suffix: status
    tokens: list[dict[str, str]] = field(default_factory=list)
    token: str = "token-of-azure"
    secret: str = "secret-of-azure"  # what it takes for a token
    requests: list[tuple[str, str]] = field(default_factory=list)
    invoked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    put: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    consents: list[dict[str, Any]] = field(default_factory=list)
    invoke: Invoke = lambda request: {"statusCode": "OK", "body": {"request": request}}
    tamper: Tamper | None = None
    runtime: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, token
    run_status: int = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def table(self) -> str:
        """The [azure] table that leads here."""
        auth = {"type": "oauth2", "token_url": f"{self.url}/token", "client_id": "me"}
        auth["client_secret"] = "secret-of-azure"
        place = {"endpoint": self.url, "location": "westeurope", "resource_group": "group"}
        return table("azure", **place, subscription_id="sub", auth=auth)

    def add(self, name: str, api: str = "office365", **properties: Any) -> dict[str, Any]:
        """A connection to an API, signed in unless it is said otherwise."""
        api_id = api if api.startswith("/") else f"{MANAGED}/{api}"
        entry = {
            "id": f"{GROUP}/connections/{name}",
            "name": name,
            "type": "Microsoft.Web/connections",
            "location": "westeurope",
            "properties": {
                "displayName": name.title(),
                "overallStatus": "Connected",
                "statuses": [{"status": "Connected"}],
                "connectionState": "Enabled",
                "api": {"id": api_id, "name": api.rpartition("/")[2]},
                **properties,
            },
        }
        self.connections[name] = entry
        return entry

    def counted(self, ending: str) -> int:
        """How often a path with this ending was asked for."""
        return sum(path.partition("?")[0].endswith(ending) for _, path in self.requests)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.raw_path))
        if self.tamper is not None and (answer := await self.tamper(request)) is not None:
            return answer
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return _failure(401, "InvalidAuthenticationToken", "The token is not valid.")
        if request.query.get("api-version") != VERSION:
            return _failure(400, "InvalidApiVersion", "Which version?")
        if self.throttle:
            return _failure(429, "TooManyRequests", "Slow down.", retry_after=self.throttle.pop(0))
        for ending, status in self.failing.items():
            if request.path.endswith(ending):
                return _failure(status, "Failing", f"No {ending} today.")
        return await self._served(request)

    async def _served(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path == f"{GROUP}/connections":
            return self._page(request)
        if path.startswith(f"{GROUP}/connections/"):
            name, _, action = path.removeprefix(f"{GROUP}/connections/").partition("/")
            return await self._connection(request, name, action)
        if path == MANAGED:
            return web.json_response({"value": [_api(id_) for id_ in self.apis]})
        api, _, action = path.partition("/apiOperations") if path in self.apis else (path, "", "")
        if path.endswith("/apiOperations"):
            return web.json_response({"value": [_operation("SendEmailV2", "Send an email (V2)")]})
        if api in self.apis:
            exported = request.query.get("export") == "true"
            return self._export(api) if exported else web.json_response(_api(api))
        return _failure(404, "ResourceNotFound", "There is no such resource.")

    def _page(self, request: web.Request) -> web.StreamResponse:
        start = int(request.query.get("skip", "0"))
        entries = list(self.connections.values())
        page: dict[str, Any] = {"value": entries[start : start + self.page_size]}
        if start + self.page_size < len(entries):
            host = "http://127.0.0.1:9" if self.foreign_next_link else self.url
            skip = start + self.page_size
            page["nextLink"] = f"{host}{request.path}?api-version={VERSION}&skip={skip}"
        return web.json_response(page)

    async def _connection(self, request: web.Request, name: str, action: str) -> web.StreamResponse:
        if request.method == "PUT":
            return await self._made(request, name)
        entry = self.connections.get(name)
        if entry is None:
            return _failure(404, "ResourceNotFound", f"There is no connection {name}.")
        if request.method == "DELETE":
            del self.connections[name]
            return web.Response(status=200)
        if action == "dynamicInvoke":
            inner = (await request.json())["request"]
            self.invoked.append((name, inner))
            return web.json_response({"response": self.invoke(inner)})
        if action == "listConsentLinks":
            self.consents.append(await request.json())
            link = f"https://consent.example/{name}?n={len(self.consents)}"
            return web.json_response({"value": [{"link": link, "status": "Unauthenticated"}]})
        if action == "confirmConsentCode":
            self.consents.append(await request.json())
            entry["properties"]["overallStatus"] = "Connected"
            return web.json_response({})
        return web.json_response(entry)

    async def _made(self, request: web.Request, name: str) -> web.StreamResponse:
        body = await request.json()
        self.put.append((name, body))
        properties = body["properties"]
        if properties["api"]["id"] not in self.apis:
            return _failure(400, "ApiNotFound", "There is no such API.")
        status = "Connected" if properties.get("parameterValues") else "Unauthenticated"
        entry = self.add(name, properties["api"]["id"], overallStatus=status, statuses=[])
        entry["properties"]["displayName"] = properties["displayName"]
        return web.json_response(entry, status=201)

    def _export(self, api: str) -> web.StreamResponse:
        shape, definition = self.apis[api]
        wrapped = {
            "plain": definition,
            "swagger": {"properties": {"swagger": definition}},
            "value": {"properties": {"apiDefinitions": {"value": definition}}},
            "broken": {"properties": {}},
        }[shape]
        return web.Response(body=orjson.dumps(wrapped), content_type="application/json")

    async def give_token(self, request: web.Request) -> web.StreamResponse:
        form = {key: str(value) for key, value in (await request.post()).items()}
        self.tokens.append(form)
        if form.get("client_secret") != self.secret:
            return web.json_response({"error": "invalid_client"}, status=401)
        return web.json_response({"access_token": self.token, "expires_in": 3600})

    async def run(self, request: web.Request) -> web.StreamResponse:
        token = request.headers.get("Authorization", "")
        self.runtime.append((request.method, request.raw_path, token))
        return web.json_response({"direct": True}, status=self.run_status)


def fixture(name: str) -> Any:
    """A connector's definition, as Azure would export it."""
    return orjson.loads((FIXTURES / f"{name}.json").read_bytes())


@asynccontextmanager
async def azure(*names: str) -> AsyncIterator[Azure]:
    """Azure on a free port, with connections of these names to office365."""
    peer = Azure()
    peer.apis = {
        f"{MANAGED}/office365": ("plain", fixture("office365")),
        f"{MANAGED}/teams": ("swagger", fixture("teams")),
        f"{CUSTOM}/our-api": ("value", fixture("mailbox")),
    }
    for name in names:
        peer.add(name)
    app = web.Application()
    app.router.add_post("/token", peer.give_token)
    app.router.add_route("*", "/runtime/{rest:.*}", peer.run)
    app.router.add_route("*", "/{rest:.*}", peer.answer)
    async with listening(app) as peer.port:
        yield peer


def _failure(
    status: int, code: str, message: str, *, retry_after: str | None = None
) -> web.Response:
    headers = {"Retry-After": retry_after} if retry_after else {}
    error = {"error": {"code": code, "message": message}}
    return web.json_response(error, status=status, headers=headers)


def _api(id_: str) -> dict[str, Any]:
    name = id_.rpartition("/")[2]
    signed = {"type": "oauthSetting", "oAuthSettings": {"identityProvider": "aad"}}
    key = {"type": "securestring", "uiDefinition": {"displayName": "Key", "description": "A key."}}
    return {
        "id": id_,
        "name": name,
        "properties": {
            "name": name,
            "generalInformation": {
                "displayName": {"office365": "Office 365 Outlook"}.get(name, name.title()),
                "description": f"What {name} can do.",
            },
            "connectionParameters": {"api_key": key} if name == "our-api" else {"token": signed},
            "capabilities": ["actions"],
        },
    }


def _operation(name: str, summary: str) -> dict[str, Any]:
    return {"name": name, "properties": {"summary": summary, "visibility": "important"}}
