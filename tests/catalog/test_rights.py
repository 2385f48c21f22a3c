"""config.toml and what was put beside it: together they never give more than while both held."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from gateway.catalog.rights import as_put, combine, refuse_problems
from gateway.catalog.snapshot import Snapshot
from gateway.config.file import parse_settings
from gateway.config.settings import Settings
from gateway.errors import Fixable
from gateway.model import ViewAddress
from gateway.policy.access import configured_principal
from gateway.policy.view import bundles_of
from gateway.store.tables import PutRight, RightKind

HASH = "ab" * 32
ROOT = '[principals.root]\ntoken = "root-token-0123456789"\nadmin = true\n'
BUNDLE = '[bundles.reading]\nconnections = ["shop"]\n'
WITH_ROLE = f"{ROOT}{BUNDLE}[roles.clerk]\nbundles = ['reading']\n"
UNTRUSTED = '[connections.shop]\nkind = "openapi"\nspec = "a.json"\ntrust = "untrusted"\n'


def settings(text: str) -> Settings:
    return parse_settings(text.encode())


def put(kind: RightKind, name: str, at: int = 1, **values: Any) -> PutRight:
    return PutRight(kind, name, values, at, 0.0, "root")


AGENT = put("principal", "agent", role="clerk", token_sha256=HASH)


def test_what_holds_stands_beside_the_file_in_whatever_order_it_was_put() -> None:
    rows = (AGENT, put("route", "hiring/clerk", screen=["reading"]), put("role", "idle"))
    found = combine(settings(WITH_ROLE), rows)
    assert found.problems == ()
    assert found.settings.principals["agent"].role == "clerk"
    assert found.settings.routes == {"hiring": {"clerk": {"screen": ("reading",)}}}
    assert set(found.settings.roles) == {"clerk", "idle"}
    assert found.configured.roles.keys() == {"clerk"}


@pytest.mark.parametrize(
    ("text", "rows", "problem"),
    [
        (WITH_ROLE, [put("role", "clerk")], "roles.clerk: config.toml has one of this name"),
        (ROOT, [put("bundle", "a/b", connections=["x"])], "bundles.\"a/b\": 'a/b' is part"),
        (ROOT, [put("role", "boss", bundles=["x"])], "roles.boss.bundles: there is no bundle 'x'"),
        (ROOT, [put("route", "w/boss", s=[])], "routes.w.boss: there is no role 'boss'"),
        (
            ROOT,
            [put("principal", "a.b", role="x", token_sha256=HASH)],
            'principals."a.b".role: there',
        ),
        (ROOT, [put("principal", "agent")], "principals.agent: needs token_sha256"),
        (ROOT, [AGENT], "principals.agent.role: there is no role 'clerk'; none is defined"),
        (ROOT, [put("principal", "ann.b@c")], 'principals."ann.b@c": needs token_sha256'),
        (
            WITH_ROLE,
            [put("principal", "x", colour=1)],
            "principals.x: it gives nothing: colour: un",
        ),
        (
            f"{WITH_ROLE}{UNTRUSTED}".replace(BUNDLE, f"{BUNDLE}mode='meta'\nallow=['a_b']\n"),
            [put("bundle", "open", connections=["shop"])],
            'bundles.open.mode: must be "meta": shop is an untrusted connection',
        ),
    ],
)
def test_what_does_not_hold_is_named_in_the_words_of_the_file(
    text: str, rows: list[PutRight], problem: str
) -> None:
    said = [f"{p.where}: {p.message}" for p in combine(settings(text), tuple(rows)).problems]
    assert [line for line in said if line.startswith(problem)], said


def test_of_two_with_one_token_only_the_first_has_it_and_the_file_comes_first() -> None:
    text = '[principals.root]\ntoken = "root-token-0123456789"\nadmin = true\n'
    known = hashlib.sha256(b"root-token-0123456789").hexdigest()
    rows = (
        put("principal", "twin", 1, token_sha256=known),
        put("principal", "a", 2, token_sha256=HASH),
        put("principal", "b", 3, token_sha256=HASH.upper()),
    )
    found = combine(settings(text), rows)
    holders = {n: each.token_hash for n, each in found.settings.principals.items()}
    assert holders == {"root": known, "twin": None, "a": HASH, "b": None}
    assert [each.where for each in found.problems] == ["principals.twin", "principals.b"]


@pytest.mark.parametrize("text", [ROOT, WITH_ROLE.replace("clerk", "other")])
@pytest.mark.parametrize(
    "rows",
    [
        (AGENT,),  # the role was in the file, which has lost it
        (AGENT, put("principal", "agent.role", token_sha256="cd" * 32)),  # no key of the agent's
        (AGENT, put("role", "clerk", bundles=["gone"])),
        (
            AGENT,
            put("role", "clerk", bundles=["wide", "gone"]),
            put("bundle", "wide", connections=[]),
        ),
        (AGENT, put("role", "clerk", later="a key of another version")),
        (put("principal", "agent", role="clerk", later=1, token_sha256=HASH),),
        (put("principal", "agent", role=["clerk"], token_sha256=HASH),),
        (put("principle", "agent", role="clerk", token_sha256=HASH),),  # type: ignore[arg-type]
        (AGENT, put("rule", "clerk", bundles=["reading"])),  # type: ignore[arg-type]
    ],
)
def test_whoever_loses_their_role_sees_nothing_and_never_everything(
    text: str, rows: tuple[PutRight, ...]
) -> None:
    found = combine(settings(text), rows)
    agent = configured_principal("agent", found.settings.principals["agent"])
    assert bundles_of(Snapshot(1, found.settings), agent, ViewAddress()) == ()
    assert found.problems


def test_a_change_that_breaks_another_row_is_refused_and_an_old_problem_hinders_nobody() -> None:
    file = settings(ROOT)
    rows = (put("bundle", "b", connections=["shop"]), put("role", "r", bundles=["b"]))
    had, without = combine(file, rows), combine(file, rows[1:])
    with pytest.raises(Fixable, match="there is no bundle 'b'"):
        refuse_problems(("bundle", "b"), had, without, False)
    more = (rows[1], put("bundle", "c", connections=["shop"]))
    refuse_problems(("bundle", "c"), without, combine(file, more), False)


def test_the_last_role_stays_as_long_as_somebody_has_one() -> None:
    file = settings(ROOT + '[principals.ann]\ntoken = "ann-token-0123456789"\nrole = "r"\n')
    rows = (put("role", "r"),)
    with pytest.raises(Fixable, match="would see everything"):
        refuse_problems(("role", "r"), combine(file, rows), combine(file, ()), False)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("principal", ""),
        ("principal", " ann"),
        ("principal", "a/b"),
        ("principal", "ann\u200b"),
        ("principal", "an\u202en"),
        ("principal", "\uff41nn"),
        ("principal", "ann\x00"),
        ("principal", "a" * 129),
        ("role", "a b"),
        ("role", "../x"),
        ("bundle", "a+b"),
        ("bundle", ".."),
        ("route", "hiring"),
        ("route", "a/b/c"),
        ("route", "/b"),
    ],
)
def test_names_that_mislead_or_can_not_be_addressed_are_refused(kind: RightKind, name: str) -> None:
    with pytest.raises(Fixable, match="name"):
        as_put(kind, name, {"connections": []} if kind == "bundle" else {})
    assert as_put("principal", "ann.b@example.com", {"role": "x"}) == {"role": "x"}
