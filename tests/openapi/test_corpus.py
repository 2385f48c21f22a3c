"""Real definitions, where they are at hand: everything loads, every tool is valid."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import jsonschema_rs
import mcp_types
import orjson
import pytest

from gateway.errors import DefinitionUnreadable
from gateway.model import Build
from gateway.openapi.build import build_openapi
from gateway.openapi.keywords import PATTERN_OPTIONS
from tests.definitions import CORPUS, SOURCE, skip_reasons

UNREADABLE = "ppc-zohosign.json"
DEFINITIONS = sorted(path for path in CORPUS.glob("*.*") if path.name != "index.json")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DEFINITIONS, reason="the corpus is not beside the project"),
]


@lru_cache(maxsize=4)
def _build(name: str) -> Build:
    return build_openapi((CORPUS / name).read_bytes(), SOURCE)


@pytest.mark.parametrize("path", DEFINITIONS, ids=lambda path: path.name)
def test_every_definition_loads_into_valid_tools(path: Path) -> None:
    if path.name == UNREADABLE:
        with pytest.raises(DefinitionUnreadable, match="line 14, column 1"):
            build_openapi(path.read_bytes(), SOURCE)
        return
    build = _build(path.name)
    for tool in build.tools + build.hidden:
        schema = orjson.loads(tool.input_schema)
        jsonschema_rs.Draft202012Validator(schema, pattern_options=PATTERN_OPTIONS, offline=True)
        assert mcp_types.Tool.model_validate_json(tool.entry).input_schema == schema
    names = [tool.name for tool in build.tools]
    assert len(set(names)) == len(names)
    assert all(skipped.reason for skipped in build.skipped)
    assert not [s for s in build.skipped if s.reason.startswith("not understandable")]


def test_office365_shows_what_people_use_and_hides_what_look_ups_need() -> None:
    build = _build("arm-office365.json")
    names = {tool.local_name for tool in build.tools}
    reasons = skip_reasons(build)

    assert {"send_email_v2", "contact_patch_item_v2", "get_mail_tips_v2"} <= names
    assert len(build.tools) == 40
    assert reasons["SendMailWithOptions"].startswith("it")
    assert reasons["mcp_EmailsManagement"] == "an MCP server tunnelled through the connector"
    assert reasons["GetSensitivityLabels"] == "internal: meant for look-ups only"
    assert "GetSensitivityLabels" in {tool.operation for tool in build.hidden}
    risks = {tool.operation: tool.risk for tool in build.tools}
    assert (risks["HttpRequest"], risks["SendEmailV2"]) == ("high", "medium")


def test_newest_revisions_win_only_among_the_usable() -> None:
    planner = {tool.operation for tool in _build("ppc-planner.json").tools}
    sql = {tool.operation for tool in _build("pfx-sql-server.json").tools}

    assert "CreateTask_V4" in planner and "CreateTask_V3" not in planner
    assert "ExecuteProcedure" not in sql
