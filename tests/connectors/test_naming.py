"""Names are stable, distinct, and within what every client accepts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model import Access, Nameable, Override, Problem, Source
from gateway.naming import (
    NOT_AUTHENTICATED,
    collisions,
    local_name,
    override_for,
    short_name,
    snake_case,
    token_cost,
    tool_annotations,
    tool_description,
    tool_names,
    unmatched_patterns,
)
from tests.definitions import SOURCE

SNAKES = {
    "SendEmailV2": "send_email_v2",
    "users/list-repos": "users_list_repos",
    "CreateTask_V4": "create_task_v4",
    "HTTPRequest": "http_request",
    "listAPIKeys": "list_api_keys",
    "getV2Users": "get_v2_users",
    "__Grüße.an--alle__": "grue_an_alle",
    "ünïcödé": "unicode",
    "数据": "",
}


def test_operation_ids_become_snake_case() -> None:
    assert {text: snake_case(text) for text in SNAKES} == SNAKES


LOCAL_NAMES = {
    (None, "GET", "/pets/{id}"): "get_pets_by_id",
    (None, "GET", "/pets/{id}/toys/{toyId}"): "get_pets_by_id_toys_by_toy_id",
    (None, "POST", "/"): "post_root",
    (None, "GET", "/datasets('{dataset}')"): "get_datasets_by_dataset",
    ("数据", "GET", "/pets"): "get_pets",  # an id without letters counts as none
}


def test_operations_without_an_id_are_named_by_method_and_path() -> None:
    assert {key: local_name(Nameable(*key)) for key in LOCAL_NAMES} == LOCAL_NAMES


SHORT_NAMES = {
    ("create_flow_flows_post", "POST", "/flows"): "create_flow",
    ("read_user_api_v1_users__user_id__get", "GET", "/api/v1/users/{user_id}"): "read_user",
    ("read_items_items__get", "GET", "/items/"): "read_items",
    ("listRuns_flowRuns_get", "GET", "/flowRuns"): "list_runs",
    ("read_root__get", "GET", "/"): "read_root",
    ("drop-all_a-b_delete", "DELETE", "/a-b"): "drop_all",
    # What is not the whole tail, or all there is, is a name.
    ("widgets_get", "GET", "/"): "widgets_get",
    ("get_users", "GET", "/users"): "get_users",
    ("users_get", "GET", "/users"): "users_get",
    ("usersGet", "GET", "/users"): "users_get",
    ("create_flow_flows_put", "POST", "/flows"): "create_flow_flows_put",
    ("UsersController_findAll", "GET", "/users"): "users_controller_find_all",
    (None, "GET", "/users"): "get_users",
}


def test_short_names_lack_the_path_and_method_that_a_generator_put_behind() -> None:
    assert {key: short_name(Nameable(*key)) for key in SHORT_NAMES} == SHORT_NAMES


def test_long_names_are_cut_and_end_in_a_hash_of_method_and_path() -> None:
    operation = Nameable("x" * 80, "GET", "/long")

    (name,) = tool_names("shop_", [operation])

    assert re.fullmatch("shop_x{50}_[0-9a-f]{8}", name)
    assert tool_names("shop_", [operation]) == (name,)


def test_all_members_of_a_collision_get_the_suffix_and_others_keep_their_names() -> None:
    names = tool_names(
        "", [Nameable("getPet", "GET", "/a"), Nameable("get_pet", "GET", "/b"), _op("other")]
    )

    assert all(re.fullmatch("get_pet_[0-9a-f]{8}", name) for name in names[:2])
    assert names[0] != names[1]
    assert names[2] == "other"


def test_an_id_that_looks_like_a_suffixed_name_takes_nothing_from_another() -> None:
    twins = [Nameable("getPet", "GET", "/a"), Nameable("get_pet", "GET", "/b")]
    imitated = tool_names("", twins)[0]

    names = tool_names("", [*twins, _op(imitated)])

    assert len(set(names)) == 3


def _op(identity: str) -> Nameable:
    return Nameable(identity, "GET", f"/{identity}")


_OPERATIONS = st.builds(
    Nameable,
    st.none() | st.text(max_size=90),
    st.sampled_from(["GET", "POST"]),
    st.text(max_size=90).map(lambda text: f"/{text}"),
)


@given(
    st.from_regex(r"[a-z][a-z0-9_]{0,30}_|", fullmatch=True),
    st.lists(_OPERATIONS, max_size=12, unique_by=lambda each: (each.method, each.path)),
)
def test_names_are_always_distinct_and_within_bounds(
    prefix: str, operations: list[Nameable]
) -> None:
    names = tool_names(prefix, operations)
    short = tool_names(prefix, operations, {})

    for before, found in ((None, names), ({}, short)):
        assert len(set(found)) == len(operations)
        assert all(re.fullmatch("[a-z0-9_]{1,64}", name) for name in found)
        assert tool_names(prefix, operations[::-1], before) == found[::-1]


@pytest.mark.parametrize(("prefix", "wanted"), [("", "listConnections"), ("mcp_", "call_tool")])
def test_a_name_of_the_gateways_own_tools_gets_a_suffix(prefix: str, wanted: str) -> None:
    operations = [Nameable(wanted, "GET", "/a"), Nameable("other", "GET", "/b")]
    (name, other), own = tool_names(prefix, operations), prefix + snake_case(wanted)

    assert re.fullmatch(f"{own}_[0-9a-f]{{8}}", name)
    assert other == f"{prefix}other"
    told = "the gateway has a tool of this name: the operation's gets a suffix"
    assert collisions(prefix, operations) == [Problem("info", own, told)]


def test_names_that_several_operations_want_are_told() -> None:
    wanted = [Nameable(id, "GET", f"/{n}") for n, id in enumerate(("same", "Same", "x"))]
    told = "2 operations have this name: each gets a suffix"
    assert collisions("shop_", wanted) == [Problem("info", "shop_same", told)]


@pytest.mark.parametrize(
    ("rules", "access"),
    [
        ({}, None),
        ({"read_*": "read"}, "read"),
        ({"read_*": "read", "read_secret": "dangerous"}, "dangerous"),
        ({"read_secret": "read", "*": "dangerous"}, "read"),
        ({"*": "read", "read_*": "write", "read_s*": "delete"}, "delete"),
        ({"read_secre[a-z]": "write", "read_secre*": "delete"}, "write"),
        ({"read_secre?": "write", "read_secre*": "delete"}, "write"),
        ({"Read_*": "read"}, None),
        ({"as_given": "write", "read_secret": "dangerous"}, "dangerous"),
        ({"as_given": "write", "read_*": "read"}, "write"),
    ],
)
def test_the_most_exact_rule_counts(rules: dict[str, Access], access: Access | None) -> None:
    for order in (list(rules), list(reversed(rules))):
        operations = {pattern: Override(access=rules[pattern]) for pattern in order}
        assert override_for(operations, "read_secret", "as_given").access == access


def test_a_more_exact_rule_leaves_alone_what_it_does_not_speak_of() -> None:
    operations = {
        "delete*": Override(access="dangerous", risk="high"),
        "deleteBook": Override(description="Burns a book.", risk="low"),
    }
    whole = Override("dangerous", "low", "Burns a book.")
    assert override_for(operations, "deleteBook") == whole


def test_names_that_match_nothing_are_told_with_what_may_have_been_meant() -> None:
    source = replace(
        SOURCE,
        include=("*", "get*", "lst*"),
        exclude=("getBok",),
        operations={"getBook": Override(), "get?ook": Override(), "delete*": Override()},
    )
    told = {
        "include": "'lst*' matches no operation",
        "exclude": "'getBok' matches no operation (did you mean 'getBook'?)",
        "operations.delete*": "matches no operation",
    }
    assert unmatched_patterns(source, ["getBook", "listBooks"]) == [
        Problem("warning", where, words, configured=True) for where, words in told.items()
    ]


@pytest.mark.parametrize(
    ("display_name", "text", "authenticated", "limit", "description"),
    [
        ("Shop", "List books", True, 99, "[Shop] List books"),
        ("", "List books", True, 99, "List books"),
        ("Sh\u202eop", "List\u200b\n  all\n\n  books", True, 99, "[Shop] List all\nbooks"),
        ("Shop", "List all books", True, 16, "[Shop] List all…"),
        ("Shop", "List books", False, 999, f"[Shop] List books {NOT_AUTHENTICATED}"),
        ("Shop", "List books", False, 10, f"[Shop]  {NOT_AUTHENTICATED}"),
    ],
)
def test_description_names_the_connection_and_is_all_visible(
    display_name: str, text: str, authenticated: bool, limit: int, description: str
) -> None:
    source = Source(
        "s", "manifest", display_name, "", authenticated=authenticated, max_description_chars=limit
    )
    assert tool_description(source, {"description": text}, None, "") == description


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("access", get_args(Access))
def test_annotations_say_what_the_access_says(access: Access, method: str) -> None:
    assert tool_annotations("T", access, method) == {
        "title": "T",
        "readOnlyHint": access == "read",
        "destructiveHint": access in ("delete", "dangerous"),
        "idempotentHint": access == "read" or method in ("GET", "HEAD", "PUT", "DELETE"),
        "openWorldHint": True,
    }


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("abcd", 1), ("abcde", 2), ("é" * 46, 10)])
def test_tokens_count_characters_not_bytes(text: str, tokens: int) -> None:
    assert token_cost(text.encode()) == tokens
