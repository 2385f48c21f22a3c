"""The access rules, as config.toml and the store have them together.

config.toml owns its names; what was put at run time stands beside them. Both are checked as a whole
by the same models and rules as the file alone, before a change is kept and again whenever the file
or the rows change. A row that does not hold any more, since the file has changed, never gives
a caller more than it gave while it held: a bundle or route is left out, a role gives nothing, a
principal has no token and a role that gives nothing. It is a problem that is shown until an admin
mends it.
"""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import structlog
from pydantic import TypeAdapter, ValidationError

from gateway.catalog.snapshot import ConnectionState, PutAccess
from gateway.config.file import describe
from gateway.config.settings import (
    ADDRESSED,
    ADDRESSED_RULE,
    Bundle,
    Permissions,
    PrincipalSettings,
    Role,
    Settings,
    check_whole,
    key_path,
    untrusted_in_bundles,
)
from gateway.errors import Fixable
from gateway.limits import NAME_CHARS, STEP_BYTES
from gateway.model import Level, Problem, json_bytes
from gateway.store import catalog as store
from gateway.store.database import Database
from gateway.store.rights import MakeRight, Rows, change_right, with_right
from gateway.store.tables import PutRight, RightKind

log = structlog.get_logger("gateway.rights")

Key = tuple[RightKind, str]
Guard = Callable[[Settings, Settings], None]  # raises where the caller may not make a change

MODELS: Mapping[RightKind, TypeAdapter[Any]] = {
    "principal": TypeAdapter(PrincipalSettings),
    "role": TypeAdapter(Role),
    "bundle": TypeAdapter(Bundle),
    "route": TypeAdapter(dict[str, tuple[str, ...]]),
}
NAME_RULE = f"printable characters without /, at most {NAME_CHARS}, no space at either end"


@dataclass(frozen=True, slots=True)
class StoredAccess:
    """The access that the store has: rows, choices and permissions."""

    rows: tuple[PutRight, ...] = ()
    choices: Mapping[tuple[str, str], Level] = field(default_factory=dict)
    permissions: Permissions | None = None


class Rights:
    """The access that was put at run time, and how it combines with config.toml's."""

    def __init__(self, db: Database, settings: Settings, swap: Callable[[int], None]) -> None:
        self._db = db
        self._swap = swap  # has the next snapshot made
        self.configured = settings
        self.stored = StoredAccess()
        self._revision = 0  # of the rows
        self._last: tuple[PutAccess, frozenset[str]] | None = None

    def take(self, stored: store.StoredState, rows: Rows, before: StoredAccess) -> bool:
        """Takes over the rows that were read; False: newer ones were put meanwhile."""
        if self.stored is not before:
            return False
        values = stored.permissions
        permissions = None if values is None else Permissions.model_validate(values)
        if rows == self.stored.rows:
            rows = self.stored.rows  # the same object: nothing is combined anew
        self.stored = StoredAccess(rows, stored.choices, permissions)
        self._revision = max(self._revision, stored.revision)
        return True

    def put_access(self, untrusted: frozenset[str]) -> PutAccess:
        """config.toml and the rows combined, where these connections are not trusted."""
        last = self._last
        if last is None or not (
            last[0].configured is self.configured
            and last[0].rows is self.stored.rows
            and last[1] == untrusted
        ):
            last = self._last = combine(self.configured, self.stored.rows, untrusted), untrusted
        return last[0]

    async def choose(self, principal: str, connection: str, access: Level) -> None:
        """Keeps a principal's own choice of access; it holds from the next request on."""
        revision = await store.choose_access(self._db, principal, connection, access)
        choices = {**self.stored.choices, (principal, connection): access}
        self.stored = replace(self.stored, choices=choices)
        self._swap(revision)

    async def put_permissions(self, permissions: Permissions | None, *, by: str) -> None:
        """Puts permissions in force over config.toml's; None puts these in force again."""
        values = None if permissions is None else permissions.model_dump(mode="json")
        revision = await store.put_permissions(self._db, values, by=by, now=time.time())
        self.stored = replace(self.stored, permissions=permissions)
        self._swap(revision)
        log.info("permissions put" if permissions else "permissions deleted", by=by)

    def plan(self, plan: PlannedChange) -> PutAccess:
        """The access after the planned change; raises the reason that is against it."""
        rows = self.stored.rows
        old = next((row for row in rows if (row.kind, row.name) == plan.key), None)
        put = plan.make and PutRight(*plan.key, plan.make(old), 0, time.time(), "")
        after = with_right(rows, *plan.key, put)
        plan.judge(self.configured, rows, after)
        return combine(self.configured, after, plan.untrusted)

    async def change(
        self, plan: PlannedChange, *, by: str, expected: int | None, unused: bool
    ) -> None:
        """Carries out a plan: live in this process when this returns, and in the others soon."""
        kind, name = plan.key
        judge, now = partial(plan.judge, self.configured), time.time()
        change = partial(change_right, self._db, kind, name, plan.make, judge=judge, by=by, now=now)
        rows, revision = await change(expected=expected, unused=unused)
        if revision > self._revision:  # else rows read since have the change already
            deleted = name if kind == "principal" and plan.make is None else None
            choices = {k: level for k, level in self.stored.choices.items() if k[0] != deleted}
            self.stored, self._revision = replace(self.stored, rows=rows, choices=choices), revision
        self._swap(revision)
        action = "put" if plan.make else "deleted"
        log.info(f"{kind} {action}", name=name, by=by, revision=revision)


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A change of one row, with the checks that may refuse it."""

    key: Key
    make: MakeRight | None  # makes the settings to put; None: delete the row
    guard: Guard
    untrusted: frozenset[str]
    discreet: bool = False  # refusals must not name another principal

    def judge(
        self, configured: Settings, before: tuple[PutRight, ...], after: tuple[PutRight, ...]
    ) -> None:
        """Raises the reason against a change from the rows `before` to the rows `after`."""
        old, new = (combine(configured, rows, self.untrusted) for rows in (before, after))
        refuse_problems(self.key, old, new, self.discreet)
        self.guard(old.settings, new.settings)


def untrusted_in(states: Mapping[str, ConnectionState]) -> frozenset[str]:
    """The connections that are not trusted."""
    return frozenset(n for n, state in states.items() if state.settings.trust == "untrusted")


def as_put(kind: RightKind, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a row as they are stored; raises Fixable for invalid ones."""
    if (rule := _name_problem(kind, name)) is not None:
        raise Fixable("invalid_arguments", f"{name[:NAME_CHARS]!r} is no {kind}'s name", rule)
    if kind == "principal" and "token" in values:
        words = "token: a token itself is never kept"
        raise Fixable("invalid_arguments", words, "Give token_sha256, or new_token = true.")
    try:
        parsed = MODELS[kind].validate_python(values)
    except ValidationError as error:
        lines = list(describe(error))
        hint = f"Correct these keys of the {kind}."
        raise Fixable("invalid_arguments", "; ".join(lines[:5]), hint) from error
    row = MODELS[kind].dump_python(parsed, mode="json", exclude_unset=True)
    if len(json_bytes(row)) > STEP_BYTES:
        raise Fixable("invalid_arguments", f"a {kind} has at most {STEP_BYTES} bytes")
    return dict(row)


def _name_problem(kind: RightKind, name: str) -> str | None:
    """The rule for names of this kind, where this name breaks it; else None.

    Names that look like another are refused: hidden characters, and other forms of a letter.
    """
    if kind != "principal":
        parts = name.split("/") if kind == "route" else [name]
        good = len(parts) == (2 if kind == "route" else 1) and all(map(ADDRESSED.fullmatch, parts))
        return None if good else f"Use {ADDRESSED_RULE}."
    plain = name.isprintable() and name == name.strip() == unicodedata.normalize("NFKC", name)
    good = plain and "/" not in name and 0 < len(name) <= NAME_CHARS
    return None if good else f"Use {NAME_RULE}."


def refuse_problems(key: Key, old: PutAccess, new: PutAccess, discreet: bool) -> None:
    """Refuses a change that breaks its own row, or a row that held before."""
    before = {problem.where for problem in old.problems}
    for problem in new.problems:
        if discreet and problem.where == where_of(key):  # may name another with this token
            words = f"{problem.where}: needs a token that nobody has"
            raise Fixable("invalid_arguments", words, "new_token = true makes one.")
        if problem.where not in before or _row_at_fault({where_of(key): key}, problem.where):
            words = f"{problem.where}: {problem.message}"
            raise Fixable("invalid_arguments", words, "Change that first, or both in turn.")
    if old.settings.roles and not new.settings.roles and _has_roles_in_use(new.settings):
        raise Fixable(
            "invalid_arguments",
            f"{where_of(key)}: without any role, those who have one would see everything",
            "Keep it, with bundles = [] for instance, or take it from its principals first.",
        )


def _has_roles_in_use(settings: Settings) -> bool:
    """Whether a principal has a role, or a caller's token may carry one."""
    auth = settings.auth
    rules = {"jwt": auth, "oauth": auth.oauth}.get(auth.mode)
    claimed = rules is not None and rules.role_claim is not None
    return claimed or any(each.role is not None for each in settings.principals.values())


# --- config.toml and the rows together ------------------------------------------------------------


def combine(
    configured: Settings, rows: tuple[PutRight, ...], untrusted: Collection[str] = ()
) -> PutAccess:
    """The settings in force, and the problems of rows that don't hold."""
    if not rows:
        return PutAccess(configured, configured)
    problems: dict[str, Problem] = {}
    values: dict[Key, Any] = {}
    unsound_keys: set[Key] = set()
    lost_roles: dict[str, Role] = {}  # roles that principals had, and that give nothing now
    for row in rows:
        key = row.kind, row.name
        if row.kind not in MODELS:  # written by hand; it may have limited a principal
            at, words = key_path("rights", row.name), f"it gives nothing: {row.kind!r} is no kind"
            problems[at] = _problem(at, f"{words}; mend or delete this row of the store")
            lost_roles[row.name] = Role()
            if not is_configured(configured, ("principal", row.name)):
                nobody = _stand_in("principal", f"of {row.name}", lost_roles)
                values.setdefault(("principal", row.name), nobody)
            continue
        if is_configured(configured, key):
            words = "config.toml has one of this name, and that counts: delete what was put"
            problems[where_of(key)] = Problem("warning", where_of(key), words, configured=True)
            continue
        try:
            values[key] = MODELS[row.kind].validate_python(row.settings)
        except ValidationError as error:
            fault_text = next(describe(error))
            problems[where_of(key)] = _problem(where_of(key), f"it gives nothing: {fault_text}")
            role = row.settings.get("role")
            role = role if isinstance(role, str) else f"of {row.name}"
            values[key] = _stand_in(row.kind, role, lost_roles)
            unsound_keys.add(key)
    paths = {where_of(key): key for key in values}
    while True:  # a row that is left out may be named by another row
        whole = _merge(configured, values, lost_roles)
        faults = {
            where: (_row_at_fault(paths, where), words)
            for where, words in _check(whole, configured, untrusted)
        }
        new_keys = {key for key, _ in faults.values() if key is not None} - unsound_keys
        for where, (row_key, words) in faults.items():
            if row_key is None or row_key in new_keys:
                problems.setdefault(where, _problem(where, words))
        if not new_keys:
            return PutAccess(configured, whole, rows, tuple(problems.values()))
        for key in new_keys:
            values[key] = _stand_in(key[0], getattr(values[key], "role", None), lost_roles)
        unsound_keys |= new_keys


def _check(
    whole: Settings, configured: Settings, untrusted: Collection[str]
) -> Iterator[tuple[str, str]]:
    yield from check_whole(whole)
    yield from untrusted_in_bundles(whole, set(untrusted) - configured.connections.keys())
    for name, principal in whole.principals.items():
        # In the file alone this is no mistake: without roles, a principal's role has no effect.
        if principal.role and not whole.roles and name not in configured.principals:
            at = key_path("principals", name, "role")
            yield at, f"there is no role {principal.role!r}; none is defined"


def _stand_in(kind: RightKind, role: str | None, lost_roles: dict[str, Role]) -> Any:
    """A value that gives nothing, in place of a row that does not hold; None: none is needed."""
    if kind == "principal":
        if role:
            lost_roles[role] = Role()  # else, without any role, it would see everything
        return PrincipalSettings(role=role)
    return Role() if kind == "role" else None


def _merge(configured: Settings, values: Mapping[Key, Any], lost: Mapping[str, Role]) -> Settings:
    tables: dict[str, dict[str, Any]] = {
        table: dict(getattr(configured, table))
        for table in ("principals", "roles", "bundles", "routes")
    }
    for (kind, name), value in values.items():
        if kind == "route" and value is not None and name.count("/") < 2:
            workflow, _, role = name.partition("/")
            tables["routes"][workflow] = {**tables["routes"].get(workflow, {}), role: value}
        elif kind != "route" and value is not None:
            tables[f"{kind}s"][name] = value
    tables["roles"] = {**lost, **tables["roles"]}
    return configured.model_copy(update=tables)


def is_configured(settings: Settings, key: Key) -> bool:
    """Whether config.toml has an entry of this kind and name."""
    kind, name = key
    if kind == "route":
        workflow, _, role = name.partition("/")
        return role in settings.routes.get(workflow, {})
    return name in getattr(settings, f"{kind}s")


def where_of(key: Key) -> str:
    """The key path that config.toml would have for this row."""
    kind, name = key
    return key_path(f"{kind}s", *(name.split("/") if kind == "route" else [name]))


def _row_at_fault(paths: Mapping[str, Key], where: str) -> Key | None:
    """The row that a problem lies in; None: in config.toml. Paths quote dots in names."""
    while where not in paths and "." in where:
        where = where.rpartition(".")[0]
    return paths.get(where)


def _problem(where: str, words: str) -> Problem:
    return Problem("error", where, words, configured=True)
