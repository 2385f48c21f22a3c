"""The manifests that come with the gateway: complete, usable, and safe by themselves."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.resources import files

import jsonschema_rs
import orjson
import pytest
from mcp_types import Tool as McpTool

from gateway.blocklist import blocked_by
from gateway.catalog.snapshot import portable_tools
from gateway.connectors.manifest import BUILTIN, Entry, load_builtin, parse_manifest
from gateway.model import Body, Parameter, RateLimit
from tests.definitions import body_of, http_of

from .manifests import library, provider, tool

MANIFESTS = {name: parse_manifest(load_builtin(name), name) for name in BUILTIN}
REGIONS = [
    (name, region)
    for name, manifest in MANIFESTS.items()
    for region in (None, *(manifest.regions.values if manifest.regions else ()))
]
DANGEROUS = {
    "greenhouse": set(
        "anonymize_candidate merge_candidates delete_candidate delete_application".split()
    ),
    "zoho-recruit": {"bulk_delete_candidates"},
    "lever": {"delete_requisition"},
}
EVERYWHERE = set(
    """list_candidates get_candidate create_candidate update_candidate list_jobs get_job add_note
    list_applications get_application move_application list_interviews list_notes""".split()
)


PROVIDERS: dict[str, tuple[int, RateLimit, str | None]] = {
    "greenhouse": (28, RateLimit(50, 10), None),
    "lever": (23, RateLimit(10, 1), None),
    "zoho-recruit": (26, RateLimit(100, 60), "Zoho-oauthtoken"),
}


def test_three_providers_come_with_their_operations_limits_and_ways_to_send_a_token() -> None:
    shipped = (entry.name for entry in (files("gateway.connectors") / "manifests").iterdir())
    assert sorted(shipped) == [f"{name}.toml" for name in BUILTIN]
    builds = {name: provider(name) for name in MANIFESTS}
    assert {
        name: (len(MANIFESTS[name].operations), build.rate_limit, build.auth_scheme)
        for name, build in builds.items()
    } == PROVIDERS
    for build in builds.values():
        assert sum(built.tokens for built in build.tools) < 7_000


@pytest.mark.parametrize(("name", "region"), REGIONS)
def test_every_region_builds_every_operation_that_is_not_dangerous(
    name: str, region: str | None
) -> None:
    build = provider(name, region=region)
    manifest = MANIFESTS[name]
    assert {skip.operation for skip in build.skipped} == DANGEROUS[name]
    assert {skip.reason for skip in build.skipped} == {"dangerous: never exposed"}
    assert len(build.tools) == len(manifest.operations) - len(DANGEROUS[name])
    assert {t.http.base_url for t in build.tools if t.http} == {build.base_url}
    for built in build.tools:
        McpTool.model_validate_json(built.entry)
        jsonschema_rs.meta.validate(orjson.loads(built.input_schema))


HOSTS = {
    "zoho-recruit": """us recruit.zoho.com eu recruit.zoho.eu in recruit.zoho.in
        au recruit.zoho.com.au jp recruit.zoho.jp cn recruit.zoho.com.cn ca recruit.zohocloud.ca
        sa recruit.zoho.sa uk recruit.zoho.uk ae recruit.zoho.ae""",
    "lever": "us api.lever.co eu api.eu.lever.co sandbox api.sandbox.lever.co",
}


def test_regions_lead_to_their_own_data_centres() -> None:
    paths = {"zoho-recruit": "/recruit/v2", "lever": "/v1"}
    words = {name: hosts.split() for name, hosts in HOSTS.items()}
    assert {(n, r): provider(n, region=r).base_url for n, r in REGIONS if r} == {
        (name, region): f"https://{host}{paths[name]}"
        for name, listed in words.items()
        for region, host in zip(listed[::2], listed[1::2], strict=True)
    }


BLOCKED = {
    "greenhouse": """/users /users/7/permissions/jobs /user_roles /custom_fields/candidate
        /webhooks /eeoc /demographics/questions /%75sers //Users/""",
    "zoho-recruit": """/settings/modules /org /users /__schedule_mass_delete
        /Candidates/__schedule_mass_delete /Candidates/../users""",
    "lever": "/users /audit_events /webhooks /eeo/responses",
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_what_is_nothing_for_an_agent_is_blocked(name: str) -> None:
    build, paths = provider(name), BLOCKED[name].split()
    assert [path for path in paths if not blocked_by(build.blocklist, build.base_url, path)] == []


@pytest.mark.parametrize("name", MANIFESTS)
def test_writes_for_a_user_are_skipped_until_it_is_known_for_whom(name: str) -> None:
    manifest = MANIFESTS[name]
    needing = {o.id for o in manifest.operations if o.requires_on_behalf_of} - DANGEROUS[name]
    skipped = {skip.operation: skip.reason for skip in provider(name, on_behalf_of=None).skipped}
    assert set(skipped) - DANGEROUS[name] == needing
    assert all("set on_behalf_of" in skipped[operation] for operation in needing)


def test_every_greenhouse_write_is_made_for_a_user() -> None:
    build = provider("greenhouse", on_behalf_of="4080")
    header = Parameter("On-Behalf-Of", "header", constant="4080")
    for built in build.tools:
        assert (header in http_of(built).parameters) == (built.access != "read")


def test_lever_writes_are_performed_as_a_user() -> None:
    built = tool(provider("lever", on_behalf_of="u-1"), "add_note")
    assert http_of(built).parameters == (
        Parameter("opportunity", "path", "opportunity"),
        Parameter("perform_as", "query", style="form", explode=True, constant="u-1"),
    )


def test_zoho_records_are_wrapped_and_take_the_account_s_own_fields() -> None:
    build = provider("zoho-recruit")
    built = tool(build, "create_candidate")
    assert body_of(built) == Body("application/json", whole="body", required=True, wrap="data")
    checks = jsonschema_rs.Draft202012Validator(orjson.loads(built.input_schema))
    assert checks.is_valid({"body": {"Last_Name": "Ng", "Our_Own_Field": 3}})
    assert not checks.is_valid({"body": {"First_Name": "Ada"}})
    json_writes = [
        t.http.body for t in build.tools if t.http and t.http.body and t.operation != _FILE_UPLOAD
    ]
    assert {body.wrap for body in json_writes} == {"data"}


_FILE_UPLOAD = "add_candidate_attachment"


def test_portable_names_are_the_same_with_every_provider() -> None:
    for manifest in MANIFESTS.values():
        assert {o.capability for o in manifest.operations} >= EVERYWHERE
    shared: dict[str, set[str]] = {}
    for manifest in MANIFESTS.values():
        for operation in manifest.operations:
            if operation.capability:
                shared.setdefault(operation.capability, set()).add(operation.effective_access)
    assert {name: access for name, access in shared.items() if len(access) > 1} == {}


def test_operations_are_described_well_enough_to_choose_by() -> None:
    operations = [each for manifest in MANIFESTS.values() for each in manifest.operations]
    assert [each.id for each in operations if not _is_described(each)] == []


def _is_described(operation: Entry) -> bool:
    described = [*operation.params, *(operation.body.properties.values() if operation.body else ())]
    dangerous = operation.effective_access == "dangerous"
    said = not operation.capability if dangerous else operation.returns
    return bool(
        said
        and len(operation.title) <= 48
        and operation.description.endswith(".")
        and (dangerous or len(operation.description) >= 35)
        and all(each.description for each in described)
    )


def test_portable_tool_is_the_same_tool_under_another_name() -> None:
    build = library()
    found = tool(build, "searchBooks")
    entry = orjson.dumps({**orjson.loads(found.entry), "name": "books_search_items"})
    cost = math.ceil(len(entry.decode()) / 4.6)
    other = replace(found, name="books_search_items", entry=entry, tokens=cost)
    assert portable_tools("books", build.tools) == [other]
    assert portable_tools("ats", [tool(build, "lendBook")]) == []  # it has no capability
