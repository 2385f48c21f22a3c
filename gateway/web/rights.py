"""Principals, roles, bundles and routes over REST and in the console: shown, put, deleted.

Rights that config.toml defines are marked so and changed there. A token is made here, shown once in
the answer to the request for it, and stored as its hash. A plan is a put that is not carried out:
it tells which principals would see which tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response

from gateway.catalog.rights import Key, PlannedChange, as_put, is_configured, untrusted_in, where_of
from gateway.catalog.snapshot import PutAccess, Snapshot
from gateway.config.settings import Settings, new_token
from gateway.errors import Fixable, NotFound, Refused
from gateway.limits import MAX_TOLD_ITEMS, TABLE_ROWS
from gateway.model import Principal, ViewAddress, json_bytes
from gateway.policy.access import configured_principal, principal_now
from gateway.policy.rights import refuse_change
from gateway.policy.view import make_view, view_key
from gateway.store.tables import PutRight, RightKind
from gateway.web.gateway import Inquiry, Run

Json = dict[str, Any]
KINDS: tuple[RightKind, ...] = get_args(RightKind)
Reach = tuple[frozenset[str], int]  # the tools a principal reaches, and their cost in lists
SECRET = ("token", "token_sha256")
NO_REACH: Reach = (frozenset(), 0)


def expected_revision(request: Request, exists: bool) -> int | None:
    """The revision that a request wants to change, by If-Match; by If-None-Match 0: none yet."""
    match = request.headers.get("if-match", "").strip()
    if request.headers.get("if-none-match", "").strip() == "*":
        return 0
    if match in ("", "*"):
        return -1 if match and not exists else None
    text = match.removeprefix("W/").strip('"')  # a tag that is not ours can match no revision
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1


# --- shown ----------------------------------------------------------------------------------------


def put_access(snapshot: Snapshot) -> PutAccess:
    """The configured rights, those put at run time, and the two combined."""
    return snapshot.put_access or PutAccess(snapshot.settings, snapshot.settings)


def list_rights(inquiry: Inquiry, kind: RightKind) -> list[Json]:
    """All rights of a kind that the caller may see, by name."""
    require_admin_of(inquiry, kind)
    put = put_access(inquiry.snapshot)
    names = {*_configured_names(put.configured, kind)}
    names |= {row.name for row in put.rows if row.kind == kind}
    items = [_item(put, (kind, name)) for name in sorted(names)]
    return [item for item in items if _may_see(inquiry, kind, item)]


def get_right(inquiry: Inquiry, kind: RightKind, name: str) -> Json:
    """One right, if the caller may see it."""
    require_admin_of(inquiry, kind)
    put, key = put_access(inquiry.snapshot), (kind, name)
    if is_configured(put.configured, key) or _row(put, key) is not None:
        item = _item(put, key)
        if _may_see(inquiry, kind, item):
            return item
    raise NotFound("invalid_arguments", f"there is no {kind} {name!r}")


def require_admin_of(inquiry: Inquiry, kind: str) -> None:
    """Refuses callers who are not admins, and for all but principals those of an organization."""
    inquiry.require_admin()
    if kind != "principal" and inquiry.principal.organization is not None:
        words = f"{kind}s are for admins of no organization"
        raise Refused("access_denied", words, "Ask one of them.")


def _may_see(inquiry: Inquiry, kind: RightKind, item: Json) -> bool:
    org = inquiry.principal.organization
    return org is None or (kind == "principal" and item["settings"].get("organization") == org)


def _configured_names(settings: Settings, kind: RightKind) -> Iterator[str]:
    if kind != "route":
        yield from getattr(settings, f"{kind}s")
        return
    for workflow, roles in settings.routes.items():
        yield from (f"{workflow}/{role}" for role in roles)


def _row(put: PutAccess, key: Key) -> PutRight | None:
    return next((each for each in put.rows if (each.kind, each.name) == key), None)


def _item(put: PutAccess, key: Key) -> Json:
    """One right as every edge shows it; never its token, nor the hash of that."""
    kind, name = key
    row, in_config = _row(put, key), is_configured(put.configured, key)
    values = _config_values(put.configured, key) if in_config else dict(row.settings) if row else {}
    workflow, _, role = name.partition("/")
    where = where_of(key)
    problems = [each for each in put.problems if f"{each.where}.".startswith(f"{where}.")]
    item: Json = {
        "name": name,
        **({"workflow": workflow, "role": role} if kind == "route" else {}),
        "origin": "config" if in_config else "store",
        "revision": row.revision if row else 0,
        "updated_at": row.updated_at if row else None,
        "updated_by": row.updated_by if row else None,
        "overridden": in_config and row is not None,
        "settings": {key: value for key, value in values.items() if key not in SECRET},
        "problems": [each.as_dict() for each in problems],
    }
    if kind == "principal":
        principal = put.settings.principals.get(name)
        item["has_token"] = bool(principal and principal.token_hash)
    return item


def _config_values(settings: Settings, key: Key) -> Json:
    kind, name = key
    if kind == "route":
        workflow, _, role = name.partition("/")
        return {step: list(bundles) for step, bundles in settings.routes[workflow][role].items()}
    table = getattr(settings, f"{kind}s")[name]
    return dict(table.model_dump(mode="json", exclude_unset=True))


# --- changed --------------------------------------------------------------------------------------


def make_plan(inquiry: Inquiry, kind: RightKind, name: str, values: Json | None) -> PlannedChange:
    """The plan to put these values; None: to delete those that were put."""
    require_admin_of(inquiry, kind)
    put, key, admin = put_access(inquiry.snapshot), (kind, name), inquiry.principal
    if is_configured(put.configured, key) and (values is not None or _row(put, key) is None):
        _refuse_configured(inquiry, kind, name)
    if values is not None and kind == "principal" and admin.organization is not None:
        values.setdefault("organization", admin.organization)

    def make(old: PutRight | None) -> Json:
        assert values is not None
        hash_ = old.settings.get("token_sha256") if old and kind == "principal" else None
        row = values if "token_sha256" in values or hash_ is None else {**values, SECRET[1]: hash_}
        return as_put(kind, name, row)

    if values is not None:
        as_put(kind, name, values)  # mistakes in the values themselves are reported first
    return PlannedChange(
        key,
        None if values is None else make,
        partial(refuse_change, admin, kind, name),
        untrusted_in(inquiry.snapshot.connections),
        discreet=admin.organization is not None,
    )


def _refuse_configured(inquiry: Inquiry, kind: RightKind, name: str) -> None:
    organization = inquiry.principal.organization
    table = inquiry.snapshot.settings.principals.get(name) if kind == "principal" else None
    if organization is not None and (table is None or table.organization != organization):
        raise Fixable("invalid_arguments", "this name can't be used", "Choose another name.")
    words = f"the {kind} {name!r} is defined in config.toml"
    raise Fixable("invalid_arguments", words, "Choose another name, or edit config.toml.")


def plan_put(
    inquiry: Inquiry, kind: RightKind, name: str, values: Mapping[str, Any]
) -> tuple[PlannedChange, str | None]:
    """The plan to put these values, and the new token if the values ask for one."""
    settings, token = dict(values), None
    if kind == "principal" and _wants_token(settings):
        token, settings["token_sha256"] = new_token()
    return make_plan(inquiry, kind, name, settings), token


async def put_right(
    inquiry: Inquiry, kind: RightKind, name: str, values: Mapping[str, Any], expected: int | None
) -> tuple[Json, str | None]:
    """Puts a right; returns it as it is now, and the new token if the values ask for one."""
    plan, token = plan_put(inquiry, kind, name, values)
    await _carry_out(inquiry, plan, expected)
    fresh = inquiry.gateway.inquiry(inquiry.caller)
    return _item(put_access(fresh.snapshot), (kind, name)), token


def _wants_token(values: Json) -> bool:
    is_wanted = values.pop("new_token", False)
    if not isinstance(is_wanted, bool):
        raise Fixable("invalid_arguments", "new_token must be true or false")
    if is_wanted and values.get("token_sha256"):
        raise Fixable("invalid_arguments", "give new_token or token_sha256, not both")
    return is_wanted


async def delete_right(
    inquiry: Inquiry, kind: RightKind, name: str, expected: int | None = None
) -> Json:
    """Deletes a right that was put; returns it as it was."""
    item = get_right(inquiry, kind, name)
    await _carry_out(inquiry, make_plan(inquiry, kind, name, None), expected)
    return item | {"deleted": True}


async def _carry_out(inquiry: Inquiry, plan: PlannedChange, expected: int | None) -> None:
    user, rights = inquiry.principal, inquiry.gateway.catalog.rights
    # A principal sees all that was done under its name: an organization's admin needs a new name.
    await rights.change(plan, by=user.name, expected=expected, unused=user.organization is not None)


# --- who would see what ---------------------------------------------------------------------------


async def foresee(inquiry: Inquiry, plan: PlannedChange) -> Json:
    """What a plan would change: which tools each principal gains or loses, and its list's cost.

    People whom only an identity provider knows are left out.
    """
    put = inquiry.gateway.catalog.rights.plan(plan)
    return await asyncio.to_thread(_foresee, inquiry, plan.key, put)


def _foresee(inquiry: Inquiry, key: Key, put: PutAccess) -> Json:
    current, (kind, name) = inquiry.snapshot, key
    future = replace(current, settings=put.settings, put_access=put)
    configured, organization = current.settings.principals, inquiry.principal.organization
    people = {**put.settings.principals, **configured}
    lists: dict[object, Reach] = {}
    rows = []
    for person in islice(people, TABLE_ROWS):
        principal = configured_principal(person, people[person])
        before = _reach_of(current, principal, lists) if person in configured else NO_REACH
        new_principal = principal_now(put.settings, principal)
        after = NO_REACH if new_principal is None else _reach_of(future, new_principal, lists)
        if before != after and organization in (None, principal.organization):
            rows.append(_difference(person, before, after))
    report: Json = {"principals": rows}
    if kind == "bundle" and name in put.settings.bundles:
        roleless = replace(inquiry.principal, role=None)
        bundle_view = make_view(future, roleless, ViewAddress("bundles", (name,)), ())
        tools = bundle_view.tools.values()
        report["gives"] = {
            "tools": sorted(tool.name for tool in tools),
            "tokens": sum(tool.tokens for tool in tools),
            "listed": not bundle_view.meta_tools,
        }
    return report


def _reach_of(snapshot: Snapshot, principal: Principal, cache: dict[object, Reach]) -> Reach:
    """The tools that a principal reaches at /mcp, and the tokens that listing them costs."""
    key = id(snapshot), view_key(snapshot, principal, ViewAddress())
    if key not in cache:
        seen = make_view(snapshot, principal, ViewAddress(), ())
        cache[key] = frozenset(seen.tools), sum(tool.tokens for tool in seen.direct_tools.values())
    return cache[key]


def _difference(name: str, before: Reach, after: Reach) -> Json:
    added, removed = sorted(after[0] - before[0]), sorted(before[0] - after[0])
    return {
        "principal": name,
        "tools_before": len(before[0]),
        "tools": len(after[0]),
        "tokens_before": before[1],
        "tokens": after[1],
        "more": len(added),
        "fewer": len(removed),
        "added": added[:MAX_TOLD_ITEMS],
        "removed": removed[:MAX_TOLD_ITEMS],
    }


# --- over REST ------------------------------------------------------------------------------------


async def _list(kind: RightKind, inquiry: Inquiry) -> Json:
    return {f"{kind}s": list_rights(inquiry, kind)}


async def _get(kind: RightKind, inquiry: Inquiry, request: Request) -> Response:
    return _response(get_right(inquiry, kind, _name_in(request)))


async def _put(kind: RightKind, inquiry: Inquiry, request: Request, posted: Any = None) -> Any:
    if not isinstance(posted, dict):
        raise Fixable("invalid_arguments", "the body must be a JSON object")
    name = _name_in(request)
    if request.query_params.get("dry_run", "").lower() in ("true", "1"):
        return await foresee(inquiry, plan_put(inquiry, kind, name, posted)[0])
    exists = _row(put_access(inquiry.gateway.snapshot), (kind, name)) is not None
    expected = expected_revision(request, exists)
    item, token = await put_right(inquiry, kind, name, posted, expected)
    return _response(item if token is None else {**item, "token": token})


async def _delete(kind: RightKind, inquiry: Inquiry, request: Request) -> Json:
    return await delete_right(inquiry, kind, _name_in(request), expected_revision(request, True))


def _name_in(request: Request) -> str:
    """The name in an address; a route's has two parts."""
    return "/".join(request.path_params.values())


def _response(item: Json) -> Response:
    headers = {"etag": f'"{item["revision"]}"', "cache-control": "no-store"}
    return Response(json_bytes(item), 200, headers, "application/json")


_NAMES = {kind: "{workflow}/{role}" if kind == "route" else "{name}" for kind in KINDS}
ADDRESSES: Mapping[str, Run] = {
    **{f"GET /{kind}s": partial(_list, kind) for kind in KINDS},
    **{f"GET /{kind}s/{name}": partial(_get, kind) for kind, name in _NAMES.items()},
    **{f"PUT /{kind}s/{name}": partial(_put, kind) for kind, name in _NAMES.items()},
    **{f"DELETE /{kind}s/{name}": partial(_delete, kind) for kind, name in _NAMES.items()},
}
