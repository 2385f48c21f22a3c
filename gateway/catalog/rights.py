"""Who may do what, as config.toml and the store have it together.

config.toml owns its names; what was put at run time stands beside them. Both are checked as a whole
by the same models and rules as the file alone, before a change is kept and again whenever the file
or the rows are others. A row that does not hold any more, since the file has changed, never gives
anybody more than it gave while it held: a bundle or route is left out, a role gives nothing, a
principal has no token and a role that gives nothing. It is a problem that is shown until somebody
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
from gateway.config.reading import describe
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
from gateway.store.rights import Make, change_right, with_right
from gateway.store.tables import PutRight, RightKind

log = structlog.get_logger("gateway.rights")

Key = tuple[RightKind, str]
Guard = Callable[[Settings, Settings], None]  # raises where somebody may not make a change

MODELS: Mapping[RightKind, TypeAdapter[Any]] = {
    "principal": TypeAdapter(PrincipalSettings),
    "role": TypeAdapter(Role),
    "bundle": TypeAdapter(Bundle),
    "route": TypeAdapter(dict[str, tuple[str, ...]]),
}
NAME_RULE = f"printable characters without /, at most {NAME_CHARS}, no space at either end"


@dataclass(frozen=True, slots=True)
class Held:
    """What the store has of access."""

    rows: tuple[PutRight, ...] = ()
    choices: Mapping[tuple[str, str], Level] = field(default_factory=dict)
    permissions: Permissions | None = None


class Rights:
    """What was put of access, and what holds of it beside config.toml."""

    def __init__(self, db: Database, settings: Settings, swap: Callable[[int], None]) -> None:
        self._db = db
        self._swap = swap  # has the next snapshot made
        self.configured = settings
        self.held = Held()
        self._revision = 0  # of the rows
        self._made: tuple[PutAccess, frozenset[str]] | None = None

    def take(self, stored: store.Stored, rows: tuple[PutRight, ...], seen: Held) -> bool:
        """Takes over what was read; False: something was put meanwhile, which is newer."""
        if self.held is not seen:
            return False
        given = stored.permissions
        permissions = None if given is None else Permissions.model_validate(given)
        if rows == self.held.rows:
            rows = self.held.rows  # the same value: nothing is made anew
        self.held = Held(rows, stored.choices, permissions)
        self._revision = max(self._revision, stored.revision)
        return True

    def together(self, untrusted: frozenset[str]) -> PutAccess:
        """What holds of config.toml and the rows, where these connections are not trusted."""
        made = self._made
        if made is None or not (
            made[0].configured is self.configured
            and made[0].rows is self.held.rows
            and made[1] == untrusted
        ):
            made = self._made = combine(self.configured, self.held.rows, untrusted), untrusted
        return made[0]

    async def choose(self, principal: str, connection: str, access: Level) -> None:
        """Keeps a principal's own choice of access; it holds from the next request on."""
        revision = await store.choose_access(self._db, principal, connection, access)
        choices = {**self.held.choices, (principal, connection): access}
        self.held = replace(self.held, choices=choices)
        self._swap(revision)

    async def put_permissions(self, permissions: Permissions | None, *, by: str) -> None:
        """Puts permissions in force over config.toml's; None gives these their force back."""
        shown = None if permissions is None else permissions.model_dump(mode="json")
        revision = await store.put_permissions(self._db, shown, by=by, now=time.time())
        self.held = replace(self.held, permissions=permissions)
        self._swap(revision)
        log.info("permissions put" if permissions else "permissions deleted", by=by)

    def plan(self, plan: PlannedChange) -> PutAccess:
        """What would hold; raises what is against it."""
        rows = self.held.rows
        old = next((each for each in rows if (each.kind, each.name) == plan.key), None)
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
        if revision > self._revision:  # else what was read since has it, and perhaps more
            gone = name if kind == "principal" and plan.make is None else None
            kept = {k: level for k, level in self.held.choices.items() if k[0] != gone}
            self.held, self._revision = replace(self.held, rows=rows, choices=kept), revision
        self._swap(revision)
        done = "put" if plan.make else "deleted"
        log.info(f"{kind} {done}", name=name, by=by, revision=revision)


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A change of one row, with all that may be said against it."""

    key: Key
    make: Make | None  # the settings that are put; None: it is deleted
    guard: Guard
    untrusted: frozenset[str]
    discreet: bool = False  # whoever asks is told of nobody else

    def judge(
        self, configured: Settings, before: tuple[PutRight, ...], after: tuple[PutRight, ...]
    ) -> None:
        """Raises what is against it, where these rows are there before it and those after."""
        had, has = (combine(configured, rows, self.untrusted) for rows in (before, after))
        refuse_problems(self.key, had, has, self.discreet)
        self.guard(had.settings, has.settings)


def untrusted(states: Mapping[str, ConnectionState]) -> frozenset[str]:
    """The connections that are not trusted."""
    return frozenset(n for n, state in states.items() if state.settings.trust == "untrusted")


def as_put(kind: RightKind, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a row as they are kept; raises Fixable for what can't be one."""
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
    shown = MODELS[kind].dump_python(parsed, mode="json", exclude_unset=True)
    if len(json_bytes(shown)) > STEP_BYTES:
        raise Fixable("invalid_arguments", f"a {kind} has at most {STEP_BYTES} bytes")
    return dict(shown)


def _name_problem(kind: RightKind, name: str) -> str | None:
    """How such a thing may be called, where this is no such name.

    Names that look like another are refused: hidden characters, and other forms of a letter.
    """
    if kind != "principal":
        parts = name.split("/") if kind == "route" else [name]
        good = len(parts) == (2 if kind == "route" else 1) and all(map(ADDRESSED.fullmatch, parts))
        return None if good else f"Use {ADDRESSED_RULE}."
    plain = name.isprintable() and name == name.strip() == unicodedata.normalize("NFKC", name)
    good = plain and "/" not in name and 0 < len(name) <= NAME_CHARS
    return None if good else f"Use {NAME_RULE}."


def refuse_problems(key: Key, had: PutAccess, has: PutAccess, discreet: bool) -> None:
    """Refuses a change that leaves something which does not hold, and did before."""
    before = {problem.where for problem in had.problems}
    for problem in has.problems:
        if discreet and problem.where == where_of(key):  # it may name whoever has the same token
            words = f"{problem.where}: needs a token that nobody has"
            raise Fixable("invalid_arguments", words, "new_token = true makes one.")
        if problem.where not in before or _at_fault({where_of(key): key}, problem.where):
            said = f"{problem.where}: {problem.message}"
            raise Fixable("invalid_arguments", said, "Change that first, or both in turn.")
    if had.settings.roles and not has.settings.roles and _names_roles(has.settings):
        raise Fixable(
            "invalid_arguments",
            f"{where_of(key)}: without any role, those who have one would see everything",
            "Keep it, with bundles = [] for instance, or take it from its principals first.",
        )


def _names_roles(settings: Settings) -> bool:
    """Whether somebody has a role, or may come with one."""
    auth = settings.auth
    rules = {"jwt": auth, "oauth": auth.oauth}.get(auth.mode)
    claimed = rules is not None and rules.role_claim is not None
    return claimed or any(each.role is not None for each in settings.principals.values())


# --- config.toml and the rows together ------------------------------------------------------------


def combine(
    configured: Settings, rows: tuple[PutRight, ...], untrusted: Collection[str] = ()
) -> PutAccess:
    """The settings that hold, and what is wrong with rows that don't."""
    if not rows:
        return PutAccess(configured, configured)
    problems: dict[str, Problem] = {}
    held: dict[Key, Any] = {}
    unsound: set[Key] = set()
    lost: dict[str, Role] = {}  # roles that principals had, and that give nothing now
    for row in rows:
        key = row.kind, row.name
        if row.kind not in MODELS:  # a hand wrote this; it may have bounded what somebody sees
            at, words = key_path("rights", row.name), f"it gives nothing: {row.kind!r} is no kind"
            problems[at] = _problem(at, f"{words}; mend or delete this row of the store")
            lost[row.name] = Role()
            if not is_configured(configured, ("principal", row.name)):
                nobody = _stand_in("principal", f"of {row.name}", lost)
                held.setdefault(("principal", row.name), nobody)
            continue
        if is_configured(configured, key):
            words = "config.toml has one of this name, and that counts: delete what was put"
            problems[where_of(key)] = Problem("warning", where_of(key), words, configured=True)
            continue
        try:
            held[key] = MODELS[row.kind].validate_python(row.settings)
        except ValidationError as error:
            wrong = next(describe(error))
            problems[where_of(key)] = _problem(where_of(key), f"it gives nothing: {wrong}")
            role = row.settings.get("role")
            role = role if isinstance(role, str) else f"of {row.name}"
            held[key] = _stand_in(row.kind, role, lost)
            unsound.add(key)
    paths = {where_of(key): key for key in held}
    while True:  # what is left out may be what others name
        whole = _merge(configured, held, lost)
        wrong_at = {
            where: (_at_fault(paths, where), words)
            for where, words in _check(whole, configured, untrusted)
        }
        fresh = {key for key, _ in wrong_at.values() if key is not None} - unsound
        for where, (fault, words) in wrong_at.items():
            if fault is None or fault in fresh:
                problems.setdefault(where, _problem(where, words))
        if not fresh:
            return PutAccess(configured, whole, rows, tuple(problems.values()))
        for key in fresh:
            held[key] = _stand_in(key[0], getattr(held[key], "role", None), lost)
        unsound |= fresh


def _check(
    whole: Settings, configured: Settings, untrusted: Collection[str]
) -> Iterator[tuple[str, str]]:
    yield from check_whole(whole)
    yield from untrusted_in_bundles(whole, set(untrusted) - configured.connections.keys())
    for name, principal in whole.principals.items():
        # Of the file alone this is no mistake: there, nobody's role says anything.
        if principal.role and not whole.roles and name not in configured.principals:
            at = key_path("principals", name, "role")
            yield at, f"there is no role {principal.role!r}; none is defined"


def _stand_in(kind: RightKind, role: str | None, lost: dict[str, Role]) -> Any:
    """What stands for a row that does not hold: it gives nothing. None: nothing need stand."""
    if kind == "principal":
        if role:
            lost[role] = Role()  # or, where there is no other role, it would see everything
        return PrincipalSettings(role=role)
    return Role() if kind == "role" else None


def _merge(configured: Settings, held: Mapping[Key, Any], lost: Mapping[str, Role]) -> Settings:
    added: dict[str, dict[str, Any]] = {
        table: dict(getattr(configured, table))
        for table in ("principals", "roles", "bundles", "routes")
    }
    for (kind, name), value in held.items():
        if kind == "route" and value is not None and name.count("/") < 2:
            workflow, _, role = name.partition("/")
            added["routes"][workflow] = {**added["routes"].get(workflow, {}), role: value}
        elif kind != "route" and value is not None:
            added[f"{kind}s"][name] = value
    added["roles"] = {**lost, **added["roles"]}
    return configured.model_copy(update=added)


def is_configured(settings: Settings, key: Key) -> bool:
    """Whether config.toml has one of this kind and name."""
    kind, name = key
    if kind == "route":
        workflow, _, role = name.partition("/")
        return role in settings.routes.get(workflow, {})
    return name in getattr(settings, f"{kind}s")


def where_of(key: Key) -> str:
    """The key path that config.toml would have for it."""
    kind, name = key
    return key_path(f"{kind}s", *(name.split("/") if kind == "route" else [name]))


def _at_fault(paths: Mapping[str, Key], where: str) -> Key | None:
    """The row that a problem lies in; None: it is config.toml's. Paths quote dots in names."""
    while where not in paths and "." in where:
        where = where.rpartition(".")[0]
    return paths.get(where)


def _problem(where: str, words: str) -> Problem:
    return Problem("error", where, words, configured=True)
