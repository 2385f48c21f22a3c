"""The connections of an Azure resource group: found, described, made, signed in, removed.

What the group holds is kept as one small definition, so that a start needs no network; each
connection's own definition is Azure's facts about it and the export of its API. A listing tells of
every connection at once, so that reading each one's definition after it costs one request an API.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote
from weakref import WeakValueDictionary

import orjson
import structlog
from cachetools import TTLCache

from gateway import limits
from gateway.azure.arm import ArmClient, Resource, SendToAzure, is_id, is_missing, read_resource
from gateway.azure.connector import Facts
from gateway.azure.lookup_rules import walk
from gateway.config.connection import ArmConnection, Connection
from gateway.config.settings import Azure
from gateway.errors import DefinitionUnreadable, Fixable, GatewayError, NotFound
from gateway.naming import cut, visible
from gateway.openapi.document import mapping, sequence, text_of

log = structlog.get_logger("gateway.azure")

LISTING = "[azure]"  # the name that the group's listing is kept under: no connection can have it
SIGN_IN = "oauthSetting"  # the type of a parameter that a person signs in for
PORTAL = "https://portal.azure.com"  # where people land without a return address

_Value = TypeVar("_Value")
_Memory = TTLCache[str, tuple[float, Any]]
_NEVER = (-1.0, None)


@dataclass(eq=False)
class AzureDirectory:
    """Azure, as the catalog needs it. Each request uses the settings of its moment."""

    send: SendToAzure
    settings: Callable[[], Azure | None]
    return_address: Callable[[str], str] = lambda id_: PORTAL  # where a sign-in ends
    # The objectId and tenantId of the gateway's own identity in Azure.
    identity: Callable[[Azure], Awaitable[Mapping[str, str]]] | None = None

    def __post_init__(self) -> None:
        self._client = ArmClient(self.send)
        # Each answer with the time of its request: a caller may refuse older ones (`since`).
        self._answers: _Memory = TTLCache(3 * limits.MAX_REMEMBERED, limits.KEEP_SECONDS)
        self._exports: _Memory = TTLCache(limits.PARALLEL_REFRESHES, limits.KEEP_SECONDS)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def listing(self) -> bytes:
        """The connections of the group, as `read_listing` reads them."""
        azure, asked_at = self._azure(), time.monotonic()
        found: dict[str, Resource] = {}
        async for entry in self._client.pages(azure, connections_path(azure)):
            if (resource := read_resource(entry)) is not None:
                found[resource.id.lower()] = resource
            if len(found) > limits.MAX_REMEMBERED:
                raise DefinitionUnreadable(
                    f"the group has over {limits.MAX_REMEMBERED} connections"
                )
        self._answers.update({key: (asked_at, resource) for key, resource in found.items()})
        return orjson.dumps([_listing_entry(found[key]) for key in sorted(found)])

    async def definition(
        self,
        name: str,
        settings: ArmConnection,
        max_bytes: int,
        is_preview: bool = False,
        since: float | None = None,
    ) -> bytes:
        """The facts and the API of a connection; `is_preview`: also where Azure lacks it yet.

        An answer from another request counts if it is no older than `since`, else none does.
        """
        azure, since = self._azure(), time.monotonic() if since is None else since
        id_ = resource_id(azure, name, settings)
        try:
            asked_at, resource = self._answers.get(id_.lower(), _NEVER)
            if asked_at < since:
                resource = await self._resource(azure, id_)
            if resource is None and is_preview and settings.api:
                api = api_id(azure, settings.api)
                resource = Resource(id_, name, "", api, settings.api, "unauthenticated")
            if resource is None:
                raise DefinitionUnreadable(
                    f"there is no connection {id_.rpartition('/')[2]!r} in the resource group",
                    "put_connection with kind arm and api makes one.",
                )
            export = await self._ask_once(
                self._exports,
                resource.api_id,
                partial(self._client.get, azure, f"{resource.api_id}?export=true", max_bytes),
                since,
            )
        except DefinitionUnreadable:
            raise
        except GatewayError as error:
            raise DefinitionUnreadable(
                f"the definition can't be fetched: {error.message}", error.hint
            ) from error
        url = resource.runtime_url if settings.invoke == "runtime" else ""
        facts = (resource.id, resource.status, resource.problem, url, settings.invoke)
        return orjson.dumps(Facts(azure.endpoint.rstrip("/"), *facts)) + b"\n" + export

    async def create(self, name: str, settings: ArmConnection) -> tuple[ArmConnection, bool]:
        """Makes the connection in Azure unless it exists; its settings, and whether it was made.

        An existing connection gets new parameter values if the settings have some, and is left
        alone otherwise: a person may have signed it in.
        """
        azure = self._azure()
        id_ = resource_id(azure, name, settings)
        entry = await self._client.find(azure, id_)
        settings = settings.model_copy(update={"resource_id": id_})
        if entry is not None and not settings.parameter_values:
            return settings, False
        resource = read_resource(entry)
        api = resource.api_id if resource else self._api_of_new(azure, settings)
        label = settings.display_name or (resource.display_name if resource else name)
        await self._client.ask(azure, "PUT", id_, _body(azure, api, label, settings, entry or {}))
        self._answers.pop(_consent_key(id_), None)
        return settings, entry is None

    async def delete(self, id_: str) -> None:
        """Removes a connection in Azure; a connection that is already gone is no error."""
        await self._client.find(self._azure(), id_, method="DELETE")

    def known_consent_link(self, id_: str) -> str | None:
        """The link where a person signs the connection in, if Azure gave it lately."""
        link: str | None = self._answers.get(_consent_key(id_), _NEVER)[1]
        return link

    async def sign_in_link(self, name: str, settings: Connection) -> str | None:
        """The link where a person signs the connection in; None without a sign-in or a link.

        However many calls fail for want of a sign-in, Azure is asked once.
        """
        if not isinstance(settings, ArmConnection):
            return None
        try:
            id_ = resource_id(self._azure(), name, settings)
            ask = partial(self._consent_link, id_)
            async with asyncio.timeout(limits.FETCH_SECONDS):
                return await self._ask_once(self._answers, _consent_key(id_), ask)
        except (GatewayError, TimeoutError) as error:
            log.warning("no consent link", connection=name, error=str(error))
            return None

    async def _ask_once(
        self, memory: _Memory, name: str, ask: Callable[[], Awaitable[_Value]], since: float = 0.0
    ) -> _Value:
        """Azure's answer, no older than `since`; callers at the same time share one request."""
        key = name.lower()
        async with self._locks.setdefault(key, asyncio.Lock()):
            cached = memory.get(key, _NEVER)
            if cached[0] < since:
                cached = memory[key] = (time.monotonic(), await ask())
            value: _Value = cached[1]
            return value

    async def _consent_link(self, id_: str) -> str | None:
        """The link that Azure gives, where the API needs a sign-in."""
        azure = self._azure()
        if (resource := await self._resource(azure, id_)) is None:
            return None
        api_parameters = _api_parameters(await self._client.find(azure, resource.api_id) or {})
        names = [each["name"] for each in api_parameters if each["type"] == SIGN_IN]
        if not names:
            return None
        identity, url = await self._own_identity(azure), self.return_address(id_)
        parameters = [{"parameterName": name, "redirectUrl": url, **identity} for name in names]
        answer = await self._client.ask(
            azure, "POST", f"{id_}/listConsentLinks", {"parameters": parameters}
        )
        return _first_link(answer)

    async def confirm(self, id_: str, code: str) -> None:
        """Hands Azure the code that a person brought back from signing in."""
        azure = self._azure()
        if not is_id(id_):
            raise Fixable("connection_invalid", "that is not the id of a resource in Azure")
        body = {"code": code, **await self._own_identity(azure)}
        await self._client.ask(azure, "POST", f"{id_}/confirmConsentCode", body)
        self._answers.pop(_consent_key(id_), None)

    async def _own_identity(self, azure: Azure) -> Mapping[str, str]:
        return await self.identity(azure) if self.identity else {}

    async def managed_apis(self) -> list[dict[str, Any]]:
        """The connectors that Azure offers at the configured location, as rows of a list."""
        azure = self._azure()
        path = apis_path(azure)

        async def ask() -> list[dict[str, Any]]:
            entries = self._client.pages(azure, path)
            return [_api_row(entry) async for entry in entries if isinstance(entry, dict)]

        return await self._ask_once(self._answers, path, ask)

    async def managed_api(self, name: str) -> dict[str, Any]:
        """One connector with the parameters that a connection to it needs."""
        azure = self._azure()
        entry = await self._client.find(azure, api_id(azure, name))
        if entry is None:
            raise NotFound(
                "invalid_arguments",
                f"there is no managed API {name!r} in {azure.location}",
                "list_managed_apis finds one by words.",
            )
        return {**_api_row(entry), "parameters": _api_parameters(entry)}

    async def api_operations(self, name: str) -> list[dict[str, Any]]:
        """The operations of a connector; empty where Azure does not list them."""
        azure = self._azure()
        try:
            pages = self._client.pages(azure, f"{api_id(azure, name)}/apiOperations")
            return [_operation_row(entry) async for entry in pages if isinstance(entry, dict)]
        except GatewayError as error:
            if is_missing(error):
                return []
            raise

    def _azure(self) -> Azure:
        azure = self.settings()
        if azure is None:
            raise Fixable(
                "connection_invalid",
                "connections of kind arm need the [azure] table",
                "Add [azure] to config.toml.",
            )
        return azure

    def _api_of_new(self, azure: Azure, settings: ArmConnection) -> str:
        if not settings.api:
            raise Fixable(
                "connection_invalid",
                "a new connection of kind arm needs `api`",
                "list_managed_apis names them, office365 for example.",
            )
        return api_id(azure, settings.api)

    async def _resource(self, azure: Azure, id_: str) -> Resource | None:
        if (entry := await self._client.find(azure, id_)) is None:
            return None
        resource = read_resource({"id": id_, **entry})
        if resource is None:
            raise DefinitionUnreadable("Azure does not say which API the connection is for")
        return resource


def connections_path(azure: Azure) -> str:
    """The path of the group's connections."""
    subscription, group = quote(azure.subscription_id, ""), quote(azure.resource_group, "")
    return (
        f"/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Web/connections"
    )


def apis_path(azure: Azure) -> str:
    """The path of the connectors at the configured location."""
    subscription, location = quote(azure.subscription_id, ""), quote(azure.location, "")
    return f"/subscriptions/{subscription}/providers/Microsoft.Web/locations/{location}/managedApis"


def listing_location(azure: Azure) -> str:
    """The address of the group; a kept listing of another address is useless."""
    return f"{azure.endpoint.rstrip('/')}{connections_path(azure)}"


def resource_id(azure: Azure, name: str, settings: ArmConnection) -> str:
    """The id of the connection's resource: as configured, else by its own name in the group."""
    id_ = settings.resource_id or f"{connections_path(azure)}/{name}"
    if not is_id(id_) or not _CONNECTION.search(id_):
        raise Fixable("connection_invalid", "resource_id is not the id of a connection in Azure")
    return id_


def api_id(azure: Azure, api: str) -> str:
    """The connector's id: managed ones are given by name, custom ones by their whole id."""
    id_ = api if api.startswith("/") else f"{apis_path(azure)}/{api}"
    if not is_id(id_) or not _API.search(id_):
        raise Fixable("invalid_arguments", f"{api[:64]!r} is not the name of a managed API")
    return id_


_CONNECTION = re.compile(r"/providers/Microsoft\.Web/connections/[^/]+\Z", re.IGNORECASE)
_API = re.compile(r"/providers/Microsoft\.Web/.*(managed|custom)Apis/[^/]+\Z", re.IGNORECASE)


def read_listing(raw: bytes) -> list[Resource]:
    """The connections that `listing` kept."""
    return [Resource(**entry) for entry in orjson.loads(raw)]


def _listing_entry(resource: Resource) -> dict[str, str]:
    """A resource as a listing keeps it; its status is part of its own definition."""
    names = ("id", "name", "display_name", "api_id", "api_name")
    return {name: getattr(resource, name) for name in names}


def _api_row(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A connector as a list shows it: a thousand of them are kept for a while."""
    name = _short_text(entry, "name") or _short_text(entry, "properties/name")
    about = walk(entry, "properties/generalInformation")
    row = {"name": name, "display_name": _short_text(about, "displayName") or name}
    return {**row, "description": _short_text(about, "description")}


def _api_parameters(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The parameters that a connection to a connector needs."""
    return [
        {
            "name": name,
            "type": _short_text(parameter, "type"),
            "display_name": _short_text(parameter, "uiDefinition/displayName") or name,
            "description": _short_text(parameter, "uiDefinition/description"),
            "required": str(walk(parameter, "uiDefinition/constraints/required")).lower() == "true",
        }
        for name, parameter in mapping(walk(entry, "properties/connectionParameters")).items()
    ]


def _operation_row(entry: Mapping[str, Any]) -> dict[str, Any]:
    words = {key: _short_text(entry, f"properties/{key}") for key in ("summary", "description")}
    return {"name": _short_text(entry, "name"), **words}


def _short_text(entry: Any, path: str) -> str:
    return cut(visible(text_of(walk(entry, path))).strip(), limits.SUMMARY_CHARS)


def _body(
    azure: Azure, api: str, label: str, settings: ArmConnection, entry: dict[str, Any]
) -> dict[str, Any]:
    """The body of a put; an existing resource keeps its location, kind and tags."""
    properties: dict[str, Any] = {"displayName": label, "api": {"id": api}}
    if settings.parameter_values:
        properties["parameterValues"] = settings.parameter_values
    extras: dict[str, Any] = {key: entry[key] for key in ("kind", "tags") if key in entry}
    return {"location": entry.get("location") or azure.location, **extras, "properties": properties}


def _first_link(answer: Any) -> str | None:
    entries = map(mapping, sequence(mapping(answer).get("value")))
    links = (text_of(entry.get("link")) for entry in entries)
    return next((link for link in links if link.startswith(("https://", "http://"))), None)


def _consent_key(id_: str) -> str:
    """The name that a resource's link to sign in is remembered by."""
    return f"{id_.lower()} consent"
