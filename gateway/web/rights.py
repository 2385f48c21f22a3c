"""Principals, roles, bundles and routes over REST and in the console: shown, put, deleted.

What config.toml owns is shown as such and changed there. A token is made here, told once in the
answer to the request that asked for it, and kept as its hash. A plan is a put that is not carried
out: it tells who would see what.
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

from gateway.catalog.rights import Key, PlannedChange, as_put, is_configured, untrusted, where_of
from gateway.catalog.snapshot import PutAccess, Snapshot
from gateway.config.settings import Settings, new_token
from gateway.errors import Fixable, NotFound, Refused
from gateway.limits import MAX_TOLD_ITEMS, TABLE_ROWS
from gateway.model import Principal, Scope, json_bytes
from gateway.policy.access import configured_principal, principal_now
from gateway.policy.rights import refuse_change
from gateway.policy.view import standing, view
from gateway.store.tables import PutRight, RightKind
from gateway.web.gateway import Inquiry, Run

Shown = dict[str, Any]
KINDS: tuple[RightKind, ...] = get_args(RightKind)
Seen = tuple[frozenset[str], int]  # the tools that somebody reaches, and what listing them costs
SECRET = ("token", "token_sha256")
NOTHING: Seen = (frozenset(), 0)


def expected_revision(request: Request, exists: bool) -> int | None:
    """The revision that a request wants to change: by If-Match, or by If-None-Match none yet."""
    match = request.headers.get("if-match", "").strip()
    if request.headers.get("if-none-match", "").strip() == "*":
        return 0
    if match in ("", "*"):
        return -1 if match and not exists else None
    text = match.removeprefix("W/").strip('"')  # one that is not ours can match nothing
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1


# --- shown ----------------------------------------------------------------------------------------


def put_access(snapshot: Snapshot) -> PutAccess:
    """config.toml, what was put, and what holds."""
    return snapshot.put or PutAccess(snapshot.settings, snapshot.settings)


def list_rights(inquiry: Inquiry, kind: RightKind) -> list[Shown]:
    """All of a kind that are the caller's business, by name."""
    _require_business(inquiry, kind)
    put = put_access(inquiry.snapshot)
    names = {*_configured_names(put.configured, kind)}
    names |= {row.name for row in put.rows if row.kind == kind}
    found = [_item(put, (kind, name)) for name in sorted(names)]
    return [each for each in found if _is_mine(inquiry, kind, each)]


def get_right(inquiry: Inquiry, kind: RightKind, name: str) -> Shown:
    """One of them."""
    _require_business(inquiry, kind)
    put, key = put_access(inquiry.snapshot), (kind, name)
    if is_configured(put.configured, key) or _row(put, key) is not None:
        found = _item(put, key)
        if _is_mine(inquiry, kind, found):
            return found
    raise NotFound("invalid_arguments", f"there is no {kind} {name!r}")


def _require_business(inquiry: Inquiry, kind: RightKind) -> None:
    inquiry.require_admin()
    if kind != "principal" and inquiry.principal.organization is not None:
        words = f"{kind}s are for admins of no organization"
        raise Refused("access_denied", words, "Ask one of them.")


def _is_mine(inquiry: Inquiry, kind: RightKind, item: Shown) -> bool:
    mine = inquiry.principal.organization
    return mine is None or (kind == "principal" and item["settings"].get("organization") == mine)


def _configured_names(settings: Settings, kind: RightKind) -> Iterator[str]:
    if kind != "route":
        yield from getattr(settings, f"{kind}s")
        return
    for workflow, roles in settings.routes.items():
        yield from (f"{workflow}/{role}" for role in roles)


def _row(put: PutAccess, key: Key) -> PutRight | None:
    return next((each for each in put.rows if (each.kind, each.name) == key), None)


def _item(put: PutAccess, key: Key) -> Shown:
    """One of them as every edge shows it; never its token, nor what the token is known by."""
    kind, name = key
    row, owned = _row(put, key), is_configured(put.configured, key)
    said = _written(put.configured, key) if owned else dict(row.settings) if row else {}
    workflow, _, role = name.partition("/")
    where = where_of(key)
    problems = [each for each in put.problems if f"{each.where}.".startswith(f"{where}.")]
    found: Shown = {
        "name": name,
        **({"workflow": workflow, "role": role} if kind == "route" else {}),
        "origin": "config" if owned else "store",
        "revision": row.revision if row else 0,
        "updated_at": row.updated_at if row else None,
        "updated_by": row.updated_by if row else None,
        "overridden": owned and row is not None,
        "settings": {key: value for key, value in said.items() if key not in SECRET},
        "problems": [each.shown() for each in problems],
    }
    if kind == "principal":
        held = put.settings.principals.get(name)
        found["has_token"] = bool(held and held.token_hash)
    return found


def _written(settings: Settings, key: Key) -> Shown:
    kind, name = key
    if kind == "route":
        workflow, _, role = name.partition("/")
        return {step: list(bundles) for step, bundles in settings.routes[workflow][role].items()}
    table = getattr(settings, f"{kind}s")[name]
    exclude = set(SECRET) if kind == "principal" else None
    return dict(table.model_dump(mode="json", exclude_unset=True, exclude=exclude))


# --- changed --------------------------------------------------------------------------------------


def make_plan(inquiry: Inquiry, kind: RightKind, name: str, values: Shown | None) -> PlannedChange:
    """The plan to put these values, or with None to delete what was put."""
    _require_business(inquiry, kind)
    put, key, me = put_access(inquiry.snapshot), (kind, name), inquiry.principal
    if is_configured(put.configured, key) and (values is not None or _row(put, key) is None):
        _refuse_configured(inquiry, kind, name)
    if values is not None and kind == "principal" and me.organization is not None:
        values.setdefault("organization", me.organization)

    def make(old: PutRight | None) -> Shown:
        assert values is not None
        kept = old.settings.get("token_sha256") if old and kind == "principal" else None
        said = values if "token_sha256" in values or kept is None else {**values, SECRET[1]: kept}
        return as_put(kind, name, said)

    if values is not None:
        as_put(kind, name, values)  # what is wrong with it by itself is told first
    return PlannedChange(
        key,
        None if values is None else make,
        partial(refuse_change, me, kind, name),
        untrusted(inquiry.snapshot.connections),
        discreet=me.organization is not None,
    )


def _refuse_configured(inquiry: Inquiry, kind: RightKind, name: str) -> None:
    mine = inquiry.principal.organization
    table = inquiry.snapshot.settings.principals.get(name) if kind == "principal" else None
    if mine is not None and (table is None or table.organization != mine):
        raise Fixable("invalid_arguments", "this name can't be used", "Choose another name.")
    words = f"the {kind} {name!r} is defined in config.toml"
    raise Fixable("invalid_arguments", words, "Choose another name, or edit config.toml.")


def plan_put(
    inquiry: Inquiry, kind: RightKind, name: str, values: Mapping[str, Any]
) -> tuple[PlannedChange, str | None]:
    """The plan to put these values, and the token that is made for it if one is asked for."""
    said, token = dict(values), None
    if kind == "principal" and _wants_token(said):
        token, said["token_sha256"] = new_token()
    return make_plan(inquiry, kind, name, said), token


async def put_right(
    inquiry: Inquiry, kind: RightKind, name: str, values: Mapping[str, Any], expected: int | None
) -> tuple[Shown, str | None]:
    """Puts one; as it is now, and the token that was made for it if one was asked for."""
    plan, token = plan_put(inquiry, kind, name, values)
    await _carry_out(inquiry, plan, expected)
    now = inquiry.gateway.inquiry(inquiry.caller)
    return _item(put_access(now.snapshot), (kind, name)), token


def _wants_token(values: Shown) -> bool:
    wanted = values.pop("new_token", False)
    if not isinstance(wanted, bool):
        raise Fixable("invalid_arguments", "new_token must be true or false")
    if wanted and values.get("token_sha256"):
        raise Fixable("invalid_arguments", "give new_token or token_sha256, not both")
    return wanted


async def delete_right(
    inquiry: Inquiry, kind: RightKind, name: str, expected: int | None = None
) -> Shown:
    """Deletes one that was put; what it was."""
    found = get_right(inquiry, kind, name)
    await _carry_out(inquiry, make_plan(inquiry, kind, name, None), expected)
    return found | {"deleted": True}


async def _carry_out(inquiry: Inquiry, plan: PlannedChange, expected: int | None) -> None:
    me, rights = inquiry.principal, inquiry.gateway.catalog.rights
    # Whoever has a name sees what was done under it: for an organization's admin it must be new.
    await rights.change(plan, by=me.name, expected=expected, unused=me.organization is not None)


# --- who would see what ---------------------------------------------------------------------------


async def foresee(inquiry: Inquiry, plan: PlannedChange) -> Shown:
    """What a plan would change: for whom which tools come and go, and what lists cost then.

    Of people whom only an identity provider knows nothing is said.
    """
    after = inquiry.gateway.catalog.rights.plan(plan)
    return await asyncio.to_thread(_foresee, inquiry, plan.key, after)


def _foresee(inquiry: Inquiry, key: Key, after: PutAccess) -> Shown:
    now, then = inquiry.snapshot, replace(inquiry.snapshot, settings=after.settings, put=after)
    kind, name = key
    known, mine = now.settings.principals, inquiry.principal.organization
    people = {**after.settings.principals, **known}
    lists: dict[object, Seen] = {}
    rows = []
    for each in islice(people, TABLE_ROWS):
        who = configured_principal(each, people[each])
        had = _seen(now, who, lists) if each in known else NOTHING
        later = principal_now(after.settings, who)
        has = NOTHING if later is None else _seen(then, later, lists)
        if had != has and mine in (None, who.organization):
            rows.append(_difference(each, had, has))
    found: Shown = {"principals": rows}
    if kind == "bundle" and name in after.settings.bundles:
        everybody = replace(inquiry.principal, role=None)
        given = view(then, everybody, Scope("bundles", (name,)), ())
        tools = given.tools.values()
        found["gives"] = {
            "tools": sorted(tool.name for tool in tools),
            "tokens": sum(tool.tokens for tool in tools),
            "listed": not given.meta,
        }
    return found


def _seen(at: Snapshot, who: Principal, lists: dict[object, Seen]) -> Seen:
    """The tools that somebody reaches at /mcp, and what listing them costs."""
    key = id(at), standing(at, who, Scope())
    if key not in lists:
        found = view(at, who, Scope(), ())
        lists[key] = frozenset(found.tools), sum(tool.tokens for tool in found.direct.values())
    return lists[key]


def _difference(name: str, had: Seen, has: Seen) -> Shown:
    added, removed = sorted(has[0] - had[0]), sorted(had[0] - has[0])
    return {
        "principal": name,
        "tools_before": len(had[0]),
        "tools": len(has[0]),
        "tokens_before": had[1],
        "tokens": has[1],
        "more": len(added),
        "fewer": len(removed),
        "added": added[:MAX_TOLD_ITEMS],
        "removed": removed[:MAX_TOLD_ITEMS],
    }


# --- over REST ------------------------------------------------------------------------------------


async def _list(kind: RightKind, inquiry: Inquiry) -> Shown:
    return {f"{kind}s": list_rights(inquiry, kind)}


async def _get(kind: RightKind, inquiry: Inquiry, name: str) -> Response:
    return _response(get_right(inquiry, kind, name))


async def _put(
    kind: RightKind, inquiry: Inquiry, name: str, request: Request, posted: Any = None
) -> Any:
    if not isinstance(posted, dict):
        raise Fixable("invalid_arguments", "the body must be a JSON object")
    if request.query_params.get("dry_run", "").lower() in ("true", "1"):
        return await foresee(inquiry, plan_put(inquiry, kind, name, posted)[0])
    exists = _row(put_access(inquiry.gateway.snapshot), (kind, name)) is not None
    expected = expected_revision(request, exists)
    item, token = await put_right(inquiry, kind, name, posted, expected)
    return _response(item if token is None else {**item, "token": token})


async def _delete(kind: RightKind, inquiry: Inquiry, name: str, request: Request) -> Shown:
    return await delete_right(inquiry, kind, name, expected_revision(request, True))


def _response(item: Shown) -> Response:
    headers = {"etag": f'"{item["revision"]}"', "cache-control": "no-store"}
    return Response(json_bytes(item), 200, headers, "application/json")


async def _get_route(inquiry: Inquiry, workflow: str, role: str) -> Response:
    return await _get("route", inquiry, f"{workflow}/{role}")


async def _put_route(
    inquiry: Inquiry, workflow: str, role: str, request: Request, posted: Any = None
) -> Any:
    return await _put("route", inquiry, f"{workflow}/{role}", request, posted)


async def _delete_route(inquiry: Inquiry, workflow: str, role: str, request: Request) -> Shown:
    return await _delete("route", inquiry, f"{workflow}/{role}", request)


ADDRESSES: Mapping[str, Run] = {
    **{f"GET /{kind}s": partial(_list, kind) for kind in KINDS},
    **{f"GET /{kind}s/{{name}}": partial(_get, kind) for kind in KINDS[:3]},
    **{f"PUT /{kind}s/{{name}}": partial(_put, kind) for kind in KINDS[:3]},
    **{f"DELETE /{kind}s/{{name}}": partial(_delete, kind) for kind in KINDS[:3]},
    "GET /routes/{workflow}/{role}": _get_route,
    "PUT /routes/{workflow}/{role}": _put_route,
    "DELETE /routes/{workflow}/{role}": _delete_route,
}
