"""The house stays small and plain: who may import whom, and figures that may only fall.

A new capability may raise a figure, openly, in the commit that adds its room.
"""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import tomllib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import pytest
from mcp.client.client import Client

from gateway.errors import CODES
from tests.conftest import OPEN, GatewayMaker
from tests.house import ROOT, House
from tests.peers import provider

HOUSE = House(ROOT / "gateway")
README = (ROOT / "README.md").read_text(encoding="utf-8")

FIGURES = tomllib.loads((ROOT / "tests/house.toml").read_text(encoding="utf-8"))

PLAIN = {"errors", "model", "blocklist", "limits", "markup", "naming", "plain", "system"}
LOW = PLAIN | {"config", "store", "outbound", "openapi"}
MIDDLE = LOW | {"connectors", "upstream", "azure", "workers"}
DOORS = PLAIN | {
    *("config", "store", "outbound", "sign_in", "policy", "calls", "catalog", "telemetry")
}
ALL = MIDDLE | DOORS | {"mcp", "web", "console", "oauth", "demo", "app", "server"}
# `catalog.snapshot` is a value that policy and calls may know; the rest of catalog is not.
MAY_IMPORT: dict[str, set[str]] = {
    "": set(),
    "__main__": {"cli"},
    "errors": set(),
    "limits": set(),
    "markup": set(),
    "system": set(),
    "naming": {"errors", "limits", "markup", "model"},
    "plain": {"limits", "model", "naming"},
    "model": {"errors"},
    "blocklist": {"errors", "model", "limits"},
    "telemetry": {"store"},
    "config": PLAIN,
    "store": PLAIN,
    "outbound": PLAIN,
    "openapi": PLAIN,
    "connectors": LOW | {"upstream"},
    "upstream": LOW,
    "sign_in": PLAIN | {"config", "store", "outbound"},
    "azure": LOW,
    "reader": LOW | {"connectors", "azure"},
    "workers": LOW | {"reader"},
    "demo": {"config"},
    "catalog": MIDDLE,
    "policy": PLAIN | {"config", "catalog.snapshot"},
    "calls": LOW - {"openapi"} | {"policy", "catalog.snapshot", "upstream", "azure", "sign_in"},
    "mcp": DOORS | {"web.guard", "web.identity", "web.gateway"},
    "web": DOORS | {"azure"},
    "console": DOORS | {"mcp", "web"},
    "oauth": DOORS | {"mcp", "web", "console"},
    "app": ALL,
    "server": ALL,
    "cli": ALL,
}


def test_rooms_import_only_what_lies_below_them() -> None:
    wrong = [
        f"{each.importer}:{each.line} imports {each.imported}"
        for each in HOUSE.imports
        if not _may_import(each.importer, each.imported)
    ]
    assert not wrong, wrong


def _may_import(importer: str, imported: str) -> bool:
    room, other = importer.split(".")[0], imported.split(".")[0]
    return room == other or not {other, imported}.isdisjoint(MAY_IMPORT[room])


def test_no_import_inside_a_room_is_put_off() -> None:
    # Commands are the exception: each loads what it needs when it runs.
    put_off = [
        f"{each.importer}:{each.line} imports {each.imported}"
        for each in HOUSE.imports
        if each.when != "start"
        and each.importer.split(".")[0] == each.imported.split(".")[0] != "cli"
    ]
    assert not put_off, put_off


def test_chains_of_imports_are_short() -> None:
    chain = HOUSE.longest_chain()
    assert len(chain) <= FIGURES["chain"], " → ".join(chain)


def test_the_house_is_no_bigger_than_it_was() -> None:
    modules = HOUSE.modules.values()
    rest = list(modules)
    for name, (lines, files) in FIGURES["capabilities"].items():
        its = [module for module in rest if f"{module.name}.".startswith(f"{name}.")]
        assert sum(module.code_lines for module in its) <= lines
        assert len(its) <= files
        rest = [module for module in rest if module not in its]
    assert sum(module.code_lines for module in rest) <= FIGURES["code_lines"]
    before, *grown = FIGURES["grown"].values()
    assert FIGURES["code_lines"] - sum(grown) <= before
    assert len(rest) <= FIGURES["files"]
    assert {m.name for m in modules if m.text.count("\n") > FIGURES["file_lines"]} == set()


def test_tests_are_no_more_than_they_were() -> None:
    code_lines, before, *grown, later = FIGURES["tests"].values()
    names = tuple(f"{name}." for name in later.split())
    modules = House(ROOT / "tests").modules.values()
    rest = [module for module in modules if not f"{module.name}.".startswith(names)]
    assert sum(module.code_lines for module in rest) <= code_lines
    assert code_lines - sum(grown) <= before


def test_no_function_is_longer_than_a_screen() -> None:
    assert {name for name, lines in HOUSE.functions() if lines > FIGURES["function_lines"]} == set()


def test_numbers_that_bound_something_are_few_and_stand_together() -> None:
    numbers = HOUSE.numbers()
    assert len(set(numbers)) == len(numbers) <= FIGURES["numbers"], sorted(numbers)


def test_the_name_of_a_class_or_alias_means_one_thing() -> None:
    several = {name: where for name, where in HOUSE.classes().items() if len(where) > 1}
    assert not several, several


def test_a_protocol_has_several_implementations() -> None:
    assert not HOUSE.protocols(), HOUSE.protocols()


def test_nothing_relies_on_what_no_library_promises() -> None:
    assert not HOUSE.tricks(), HOUSE.tricks()


def test_no_decision_hangs_on_the_words_of_a_message() -> None:
    assert HOUSE.text_decisions() == []


def test_every_code_that_is_raised_is_listed() -> None:
    assert HOUSE.raised_codes() - CODES == set()  # what each means: test_documentation


def test_the_readme_names_every_room() -> None:
    rows = [line for line in README.splitlines() if line.startswith("|")]
    named = {re.sub(r"^gateway/|/$|\.py$", "", word) for row in rows for word in _quoted(row)}
    folder = ROOT / "gateway"
    rooms = {p.name for p in folder.iterdir() if p.is_dir() and p.name != "__pycache__"}
    rooms |= {p.stem for p in folder.glob("*.py") if not p.name.startswith("__")}
    assert rooms - named == set()


def _quoted(row: str) -> Iterator[str]:
    for quoted in row.split("`")[1::2]:
        yield from quoted.replace(",", " ").split()


async def test_a_warm_call_crosses_few_files(make_gateway: GatewayMaker) -> None:
    async with provider() as peer:
        shop = f'[connections.shop]\nkind = "openapi"\nspec = "{peer.spec}"\n'
        gateway = await make_gateway(f"{OPEN}{shop}")
        async with Client(gateway.mcp) as client:
            call = await least(lambda: client.call_tool("shop_get_items", {"id": "1"}))
            listing = await least(client.list_tools)
    assert len(call.files) <= FIGURES["call_files"], sorted(call.files)
    assert call.awaits <= FIGURES["call_awaits"]
    assert len(listing.files) <= FIGURES["list_files"], sorted(listing.files)


@pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
async def test_a_call_is_freed_when_it_is_answered(make_gateway: GatewayMaker, mode: str) -> None:
    """What refers to itself waits for the collector, which takes its time with each call."""
    async with provider() as peer:
        shop = f'[connections.shop]\nkind = "openapi"\nspec = "{peer.spec}"\n'
        gateway = await make_gateway(f"{OPEN}{shop}")
        async with Client(gateway.mcp, mode=mode) as client:
            left = [await left_by(client.call_tool("shop_get_items", {"id": "1"})) for _ in "123"]
    # By every call: a gateway of another test, all of it, may go during one of them.
    assert set.intersection(*left) == set()


async def left_by(call: Awaitable[Any]) -> set[str]:
    """The kinds of things that only the collector frees after a call."""
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await call
        gc.collect()
        kinds = {type(each) for each in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    rooms = ("gateway.mcp.", "gateway.calls.", "gateway.web.")
    return {kind.__name__ for kind in kinds if kind.__module__.startswith(rooms)}


async def least(request: Callable[[], Awaitable[Any]]) -> Trace:
    """What every warm request of this kind crosses: background work falls into a few of them."""
    traces = []
    for _ in range(40):
        with traced() as trace:
            await request()
        traces.append(trace)
    files = set.intersection(*(trace.files for trace in traces))
    return Trace(files, min(trace.awaits for trace in traces))


@dataclass
class Trace:
    """What of the gateway ran."""

    files: set[str] = field(default_factory=set)
    awaits: int = 0  # the deepest chain of coroutines that await one another

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and _is_ours(frame) and not _in_background():
            self.files.add(frame.f_code.co_filename)
            self.awaits = max(self.awaits, sum(map(_is_coroutine, _stack(frame))))


def _in_background() -> bool:
    """Whether this is a task of the gateway itself, which have names: a look at the store, say."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread of the store
        return False
    return task is not None and not task.get_name().startswith("Task-")


@contextmanager
def traced() -> Iterator[Trace]:
    trace = Trace()
    sys.setprofile(trace.note)
    try:
        yield trace
    finally:
        sys.setprofile(None)


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(f"{ROOT}/gateway/")


def _is_coroutine(frame: FrameType) -> bool:
    return _is_ours(frame) and bool(frame.f_code.co_flags & 0x80)


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
