"""What Azure says of a connection, and the names its connections get here."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.azure.arm import Resource, connection_name, is_id, name_resources, read_resource
from gateway.azure.connector import Facts
from gateway.errors import DefinitionUnreadable
from gateway.model import Build, Problem, Source, pack
from gateway.reader import build_definition
from tests.definitions import operation, schema_of, swagger
from tests.peers_arm import FIXTURES

GROUP = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Web"
API = "/subscriptions/s/providers/Microsoft.Web/locations/l/managedApis/office365"


def entry(name: str = "mail", /, **properties: Any) -> dict[str, Any]:
    api = {"id": API}
    return {"id": f"{GROUP}/connections/{name}", "properties": {"api": api, **properties}}


def failed(code: str, message: str) -> dict[str, Any]:
    return {"status": "Error", "error": {"code": code, "message": message}}


NOT_SIGNED_IN = "the connection is not signed in"
DISABLED = "the connection is disabled in Azure"


@pytest.mark.parametrize(
    ("properties", "status", "problem"),
    [
        ({"overallStatus": "Connected"}, "connected", ""),
        ({"overallStatus": "Ready"}, "connected", ""),
        ({"statuses": [{"status": "Connected"}]}, "connected", ""),
        ({"overallStatus": "Unauthenticated"}, "unauthenticated", NOT_SIGNED_IN),
        (
            {"overallStatus": "Error", "statuses": [failed("Unauthorized", "x")]},
            "unauthenticated",
            "x",
        ),
        ({"statuses": [failed("Gone", "No API.")]}, "failing", "No API."),
        ({"overallStatus": "Connected", "connectionState": "Disabled"}, "failing", DISABLED),
        ({}, "connected", "Azure does not say whether the connection is signed in"),
    ],
)
def test_a_status_is_read_from_wherever_azure_says_it(
    properties: dict[str, Any], status: str, problem: str
) -> None:
    found = read_resource(entry(**properties))
    assert found is not None
    assert (found.status, found.problem) == (status, problem)


def test_what_azure_leaves_out_is_made_up_for() -> None:
    assert read_resource(entry(overallStatus="Connected", displayName="J\u200bane")) == Resource(
        f"{GROUP}/connections/mail", "mail", "Jane", API, "office365"
    )
    runtime = "https://x.example/apim/mail/key/"
    found = read_resource(entry(connectionRuntimeUrl=runtime))
    assert found is not None and found.runtime_url == runtime.rstrip("/")


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"id": f"{GROUP}/connections/x"},
        {"id": f"{GROUP}/../x", "properties": {"api": {"id": API}}},
        {"id": f"{GROUP}/connections/x?y", "properties": {"api": {"id": API}}},
        {"id": f"{GROUP}/connections/x", "properties": {"api": {"id": "https://evil.example/x"}}},
    ],
)
def test_what_can_not_be_called_is_no_connection(value: object) -> None:
    assert read_resource(value) is None


def test_an_id_is_a_path_without_a_way_out() -> None:
    assert is_id(f"{GROUP}/connections/a-b_c.d(1)")
    for text in ("/a/../b", "/a/./b", "//host/a", "a/b", "/a/%2e%2e/b", "/a b", ""):
        assert not is_id(text), text


NAMES = {
    "office365": "office365",
    "Office 365 (2)": "office-365-2",
    "My.Mail_1": "my-mail_1",
    "365": "azure-365",
    "___": "azure",
    "x" * 80: "x" * 32,
}


def test_a_name_of_azures_becomes_one_of_ours() -> None:
    assert {text: connection_name(text) for text in NAMES} == NAMES


def test_names_that_clash_are_told_apart_and_stay_the_same() -> None:
    def resource(name: str, group: str) -> Resource:
        return Resource(f"/g/{group}/{name}", name, name, API, "x")

    found = [resource("mail", "1"), resource("Mail", "2"), resource("a.b", "1")]
    names = name_resources([*found, resource("a_b", "1"), resource("demo", "1")], {"demo"})
    assert len(names) == 5
    assert not {"mail", "a-b", "a_b", "demo"} & names.keys()
    assert name_resources(found[:1], ()) == {"mail": found[0]}
    assert name_resources(reversed(found), ()) == name_resources(found, ())


SOURCE = Source("mail", "arm", "Mail", "mail_")


def built(facts: Facts, export: bytes) -> Build:
    return build_definition(pack(orjson.dumps(facts) + b"\n" + export), SOURCE)


def test_a_connection_that_is_not_signed_in_has_tools_that_say_so() -> None:
    facts = Facts("https://azure.example", f"{GROUP}/connections/mail", "unauthenticated", "No.")
    build = built(facts, (FIXTURES / "office365.json").read_bytes())
    assert build.status == "unauthenticated"
    assert build.problems[0] == Problem("error", "connection", "No.")
    assert all("not authenticated" in tool.description for tool in build.tools)
    assert {tool.http.base_url for tool in build.tools if tool.http} == {
        f"https://azure.example{GROUP}/connections/mail"
    }
    assert not any("connectionId" in tool.http.path for tool in build.tools if tool.http)


def test_a_runtime_address_that_is_missing_is_said() -> None:
    facts = Facts("https://azure.example", f"{GROUP}/connections/mail", invoke="runtime")
    build = built(facts, (FIXTURES / "teams.json").read_bytes())
    assert build.envelope == facts.id
    said = [problem.severity for problem in build.problems if problem.where == "connection"]
    assert said == ["info"]


@pytest.mark.parametrize(
    ("invoke", "asked"), [("dynamic", []), ("runtime", ["Accept", "Content-Type"])]
)
def test_headers_that_azure_says_itself_are_not_asked_for(invoke: Any, asked: list[str]) -> None:
    headers = [
        {"name": name, "in": "header", "type": "string"}
        for name in ("Accept", "Content-Type", "Authorization")
    ]
    definition = swagger({"/a": {"get": operation(parameters=headers)}})
    address = "https://runtime.example/apim/mail"
    facts = Facts("https://azure.example", f"{GROUP}/x", runtime_url=address, invoke=invoke)
    build = built(facts, orjson.dumps(definition))
    assert list(schema_of(build.tools[0])["properties"]) == asked


def test_a_stored_definition_without_its_facts_is_refused() -> None:
    with pytest.raises(DefinitionUnreadable, match="not whole"):
        build_definition(pack(b"{}"), SOURCE)
