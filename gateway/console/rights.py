"""Principals, roles, bundles and routes in the console: a list and a form for each kind.

Fields are named as config.toml names its keys; settings without a field stay as they were put.
While the form is being filled in, a plan says what it gives and which principals would see other
tools; nothing is kept until it is saved. Items of config.toml are listed here, and changed there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from starlette.responses import Response

from gateway.console.pages import Visit, fragment, go, is_partial, link, page
from gateway.errors import Fixable, GatewayError, NotFound
from gateway.model import Level
from gateway.policy.rights import people_are_claimed
from gateway.store.tables import RightKind
from gateway.web.guard import Form
from gateway.web.rights import (
    KINDS,
    delete_right,
    foresee,
    get_right,
    list_rights,
    plan_put,
    put_right,
)

FormFields = dict[str, str]
Values = dict[str, Any]

MODES = ("direct", "meta", "auto")
TEXTS: Mapping[RightKind, tuple[str, ...]] = {
    "principal": ("role", "organization", "access"),
    "bundle": ("mode",),
}
# Keys whose names each have a checkbox, by kind; and keys with a name on each line.
BOXES: Mapping[RightKind, str] = {"role": "bundles", "bundle": "connections"}
LINES = ("allow", "deny")
NAMES: Mapping[RightKind, tuple[str, ...]]
NAMES = {**dict.fromkeys(KINDS, ("name",)), "route": ("workflow", "role")}


async def rights(visit: Visit) -> Response:
    """The page of one kind: its items, and the form for a new item or for one that was put."""
    kind, name = _kind(visit), visit.query("name")
    item = get_right(visit.inquiry, kind, name) if name else None
    if item is not None and item["origin"] == "config":
        raise Fixable("invalid_arguments", f"config.toml owns {name!r}", "Edit it there.")
    return await _page(visit, kind, _fields_of(kind, item))


async def put(visit: Visit) -> Response:
    """Saves the form; a new token is shown this once."""
    kind, form = _kind(visit), visit.form
    try:
        if form.get("plan"):  # without scripts: a button of the same form
            return await _page(visit, kind, dict(form), plan=await _plan(visit, kind))
        name, values = _values_of(visit, kind)
        expected = int(form.get("revision") or 0) if _is_number(form.get("revision")) else 0
        _, token = await put_right(visit.inquiry, kind, name, values, expected)
    except GatewayError as error:
        if is_partial(visit.request):
            raise
        return await _page(visit, kind, dict(form), error=error)
    if token is not None:
        return await _show_token(visit, name, token)
    return go(visit, link(f"/access/rights/{kind}s"))


async def plan(visit: Visit) -> Response:
    """The plan of the form as it is filled in now."""
    kind, values = _kind(visit), dict[str, Any](plan=None, error=None)
    try:
        if all(visit.form.get(key, "").strip() for key in NAMES[kind]):  # else it is just begun
            values["plan"] = await _plan(visit, kind)
    except GatewayError as problem:
        values["error"] = problem
    return fragment(visit, "_plan.html", **values)


async def delete(visit: Visit) -> Response:
    """Deletes an item that was put."""
    kind, revision = _kind(visit), visit.form.get("revision")
    expected = int(revision or 0) if _is_number(revision) else None
    await delete_right(visit.inquiry, kind, visit.form.get("name", ""), expected)
    return go(visit, link(f"/access/rights/{kind}s"))


def _kind(visit: Visit) -> RightKind:
    for kind in KINDS:
        if visit.id == f"{kind}s":
            return kind
    raise NotFound("invalid_arguments", "There is nothing at this address.")


def _is_number(text: str | None) -> bool:
    return text is not None and text.isascii() and text.isdigit() and len(text) < 16


async def _plan(visit: Visit, kind: RightKind) -> Values:
    name, values = _values_of(visit, kind)
    return await foresee(visit.inquiry, plan_put(visit.inquiry, kind, name, values)[0])


async def _page(visit: Visit, kind: RightKind, fields: FormFields, **values: Any) -> Response:
    settings, me = visit.snapshot.settings, visit.principal
    form_values: Values = {"plan": None, "error": None, **values}
    return await page(
        visit,
        "rights.html",
        f"{kind.capitalize()}s",
        kind=kind,
        kinds=KINDS if me.organization is None else KINDS[:1],
        items=list_rights(visit.inquiry, kind),
        fields=fields,
        roles=sorted(settings.roles),
        chosen=BOXES.get(kind, ""),
        choices=_choices(visit, kind),
        levels=get_args(Level),
        modes=MODES,
        claimed=people_are_claimed(settings),
        **form_values,
    )


def _choices(visit: Visit, kind: RightKind) -> list[str]:
    """The names that the form of a role or a bundle offers."""
    if kind == "bundle":
        return sorted(state.name for state in visit.inquiry.connections())
    return sorted(visit.snapshot.settings.bundles)


async def _show_token(visit: Visit, name: str, token: str) -> Response:
    values: Values = {"name": name, "token": token}
    if is_partial(visit.request):
        return fragment(visit, "_token.html", **values)
    return await page(visit, "token.html", "A new token", **values)


# --- between settings and fields ------------------------------------------------------------------


def _fields_of(kind: RightKind, item: Mapping[str, Any] | None) -> FormFields:
    """The form's fields for an item; none for a new one."""
    if item is None:
        return {}
    settings: Mapping[str, Any] = item["settings"]
    fields = {"name": item["name"], "editing": item["name"], "revision": str(item["revision"])}
    if kind == "route":
        steps = "\n".join(f"{step}: {', '.join(bundles)}" for step, bundles in settings.items())
        return {**fields, "workflow": item["workflow"], "role": item["role"], "steps": steps}
    fields |= {key: str(settings[key]) for key in TEXTS.get(kind, ()) if settings.get(key)}
    fields |= {key: "\n".join(settings[key]) for key in LINES if key in settings}
    if kind in BOXES:
        fields |= {f"{BOXES[kind]}.{each}": "1" for each in settings.get(BOXES[kind], ())}
    if kind == "bundle" and "token_budget" in settings:
        fields["token_budget"] = str(settings["token_budget"])
    if kind == "principal":
        fields |= {"admin": "1"} if settings.get("admin") else {}
        levels = settings.get("connections", {}).items()
        fields["levels"] = "\n".join(f"{name} = {level}" for name, level in levels)
    return fields


def _values_of(visit: Visit, kind: RightKind) -> tuple[str, Values]:
    """The name and the settings that a form gives."""
    form = visit.form
    if kind == "route":
        steps = _pairs(form.get("steps", ""), ":", "step: bundle, bundle")
        name = f"{form.get('workflow', '').strip()}/{form.get('role', '').strip()}"
        return name, {step: _split(bundles, ",") for step, bundles in steps}
    name = form.get("name", "").strip()
    values = _values_without_field(visit, kind, name)
    values |= {key: form[key].strip() for key in TEXTS.get(kind, ()) if form.get(key, "").strip()}
    if kind in BOXES:
        start = f"{BOXES[kind]}."
        values[BOXES[kind]] = [key.removeprefix(start) for key in form if key.startswith(start)]
    if kind == "bundle":
        values |= {key: _split(form[key], "\n") for key in LINES if form.get(key, "").strip()}
        budget = form.get("token_budget", "").strip()
        values |= {"token_budget": int(budget) if _is_number(budget) else budget} if budget else {}
    if kind == "principal":
        values |= _principal_values(form)
    return name, values


def _principal_values(form: Form) -> Values:
    levels = dict(_pairs(form.get("levels", ""), "=", "connection = read-only"))
    return {
        **({"connections": levels} if levels else {}),
        **({"admin": True} if form.get("admin") else {}),
        **({"new_token": True} if form.get("new_token") else {}),
    }


def _values_without_field(visit: Visit, kind: RightKind, name: str) -> Values:
    """The settings of an item that have no field in the form."""
    if not visit.form.get("editing"):
        return {}
    fields = {*TEXTS.get(kind, ()), BOXES.get(kind), *LINES, "token_budget", "admin", "connections"}
    settings = get_right(visit.inquiry, kind, name)["settings"]
    return {key: value for key, value in settings.items() if key not in fields}


def _pairs(text: str, separator: str, example: str) -> Iterable[tuple[str, str]]:
    for line in filter(str.strip, text.splitlines()):
        key, mark, value = line.partition(separator)
        if not mark:
            raise Fixable("invalid_arguments", f"{line[:80]!r} is no such line", f"Write {example}")
        yield key.strip(), value.strip()


def _split(text: str, separator: str) -> list[str]:
    return [each.strip() for each in text.split(separator) if each.strip()]
