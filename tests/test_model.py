"""Builds come back as they went, small or giant, at once or in steps."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from gateway.model import Build, decode_build, decoded_in_steps, encode_build, encode_in_steps
from gateway.openapi.build import build_openapi
from tests.definitions import SOURCE, openapi, operation

PATHS = {f"/{n}": {"get": operation(operationId=f"o{n}")} for n in range(600)}
SMALL = build_openapi(orjson.dumps(openapi(PATHS)), SOURCE)
LARGE_TOOL = replace(SMALL.tools[0], input_schema=bytes(20_000_000))
GIANT = replace(SMALL, tools=(*SMALL.tools, LARGE_TOOL))
BUILDS = [Build("openapi-3.0", "", ""), SMALL, GIANT]


@pytest.mark.parametrize("build", BUILDS, ids=["empty", "small", "giant"])
def test_a_build_comes_back_as_it_went(build: Build) -> None:
    assert decode_build(encode_build(build)) == build
    assert list(decoded_in_steps(encode_in_steps(build)))[-1] == build


def test_a_giant_is_packed() -> None:
    assert len(encode_build(GIANT)) < 2_000_000


def test_many_tools_are_many_steps() -> None:
    assert list(decoded_in_steps(encode_in_steps(SMALL))) == [None, None, None, SMALL]
