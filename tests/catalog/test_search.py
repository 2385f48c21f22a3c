"""What the tool search finds, and what it never shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.catalog.search import ENGLISH, ToolIndex, question_words, stem
from gateway.model import Tool
from tests.catalog.golden_questions import golden_questions, golden_tools, made_tool

TOOLS = golden_tools()
NAMES = frozenset(tool.name for tool in TOOLS)
INDEX = ToolIndex(TOOLS)
ONE, MANY = "/books/{id}", "/books"
BOOKS = list(
    enumerate([("DELETE", ONE), ("GET", ONE), ("GET", MANY), ("PATCH", ONE), ("POST", MANY)])
)


def first(query: str, tools: list[Tool], limit: int = 5) -> list[str]:
    return ToolIndex(tools).search(query, allowed=[tool.name for tool in tools], limit=limit)


def test_golden_set_is_large_enough_and_names_only_tools_that_exist() -> None:
    answers = frozenset(name for _, right in golden_questions() for name in right)
    assert answers - NAMES == frozenset()
    assert len(NAMES) == len(TOOLS) >= 150
    assert len(golden_questions()) == 40


def test_right_tool_is_in_the_first_five_for_nine_golden_questions_of_ten() -> None:
    missed = [
        question
        for question, right in golden_questions()
        if right.isdisjoint(INDEX.search(question, allowed=NAMES, limit=5))
    ]
    assert len(missed) <= 4, missed


def test_people_find_tools_by_their_own_words() -> None:
    tools = TOOLS + golden_tools("server_tools.txt")
    index, names = ToolIndex(tools), frozenset(tool.name for tool in tools)
    questions = golden_questions("server_questions.txt")
    assert {name for _, right in questions for name in right} <= names
    missed = [
        question
        for question, right in questions
        if right.isdisjoint(index.search(question, allowed=names, limit=5))
    ]
    assert len(missed) <= len(questions) // 10, missed


def test_words_of_the_lexicon_are_said_once_and_mean_others_than_themselves() -> None:
    assert len({stem(said) for said in ENGLISH["means"]}) == len(ENGLISH["means"])
    for said, meant in ENGLISH["means"].items():
        assert said not in meant.split(), said
        assert len(set(meant.split())) == len(meant.split()), said


@pytest.mark.parametrize(
    ("query", "name"),
    [
        pytest.param("deployments", "cluster_list_apps_v1_namespaced_deployment", id="plural"),
        pytest.param("readPodLog", "cluster_read_core_v1_namespaced_pod_log", id="camelCase"),
        pytest.param("repos/create-fork", "forge_repos_create_fork", id="operation id"),
        pytest.param("calendar_events_delete", "calendar_events_delete", id="tool name"),
        pytest.param("inviting collaborators", "forge_repos_add_collaborator", id="endings"),
        pytest.param("remove an email", "mail_delete_message", id="synonym of a verb"),
        pytest.param("get rid of an email", "mail_delete_message", id="phrase"),
        pytest.param("photo of a résumé", "recruiting_add_attachment", id="accents"),
        pytest.param("stop starring a repository", "forge_activity_unstar_repo", id="opposite"),
        pytest.param("merge two conta", "crm_contacts_merge", id="last word unfinished"),
        pytest.param("tailLines", "cluster_read_core_v1_namespaced_pod_log", id="parameter"),
        pytest.param("eviction", "cluster_create_core_v1_namespaced_pod_eviction", id="path"),
        pytest.param("knowledge base", "tickets_search_knowledge_base", id="upstream tool"),
    ],
)
def test_words_find_the_tool_however_they_are_written(query: str, name: str) -> None:
    assert name in INDEX.search(query, allowed=NAMES, limit=3)


@pytest.mark.parametrize(
    ("query", "method", "path"),
    [
        ("list all books", "GET", MANY),
        ("which books are there", "GET", MANY),
        ("get the book", "GET", ONE),
        ("add a book", "POST", MANY),
        ("change a book", "PATCH", ONE),
        ("delete a book", "DELETE", ONE),
    ],
)
def test_method_and_shape_decide_between_tools_of_equal_words(
    query: str, method: str, path: str
) -> None:
    tools = [made_tool("shop", *call, f"books{number}", "Books") for number, call in BOOKS]
    wanted = next(tool.name for tool in tools if (tool.method, tool.path) == (method, path))
    assert first(query, tools)[0] == wanted


def test_equal_tools_come_in_the_order_of_their_names_whatever_the_order_they_came_in() -> None:
    tools = [made_tool(name, "GET", "/books", "list", "List books") for name in ("b", "c", "a")]
    assert first("books", tools) == ["a_list", "b_list", "c_list"]
    assert first("books", tools[::-1]) == ["a_list", "b_list", "c_list"]


def test_tool_of_a_named_connection_comes_first() -> None:
    tools = [made_tool(name, "GET", "/books", "list", "List books") for name in ("a", "b", "shop")]
    assert first("list books in the shop", tools)[0] == "shop_list"


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("show the notes", "pad_list_notes"),
        ("write a note", "pad_create_note"),
        ("change a note", "pad_update_note"),
        ("get rid of a note", "pad_delete_note"),
    ],
)
def test_verb_of_a_name_stands_for_the_method_that_upstream_tools_lack(
    query: str, name: str
) -> None:
    verbs = ("create_note", "delete_note", "list_notes", "update_note")
    tools = [made_tool("pad", "", "", verb, "Notes") for verb in verbs]
    assert first(query, tools)[0] == name


def test_server_that_is_about_the_question_comes_before_one_that_mentions_it() -> None:
    letters = ("read_letter", "send_letter", "search_letters", "print_letter")
    post = [made_tool("post", "", "", name, "", f"{name} of the post") for name in letters]
    others = ("read_meter", "send_meter", "open_door", "close_door", "read_letter")
    house = [made_tool("house", "", "", name, "", f"{name} of the house") for name in others]
    assert first("read a letter", [*house, *post])[0] == "post_read_letter"


def test_many_alike_of_one_server_leave_room_for_another_server() -> None:
    crowd = [
        made_tool("forge", "", "", f"list_branch_{kind}", "List branches", f"Branches by {kind}.")
        for kind in ("age", "name", "owner", "size", "state", "topic")
    ]
    lone = made_tool("depot", "", "", "list_branch_heads", "List branches with heads")
    assert lone.name in first("list branches", [*crowd, lone])


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("Turn the hall light off", "disable the hall light"),
        ("take back a promise", "revoke remove a promise"),
        ("give a customer their money back", "give a customer their refund"),
        ("take one two three four five off", "take one two three four five off"),
    ],
)
def test_phrases_are_known_also_where_other_words_stand_between(question: str, words: str) -> None:
    assert question_words(question) == words.split()


def test_few_allowed_tools_are_found_among_thousands_of_better_ones() -> None:
    crowd = [
        replace(tool, name=f"{tool.name}_{number}", connection=f"{tool.connection}{number}")
        for number in range(2_000 // len(TOOLS) + 1)
        for tool in TOOLS
    ]
    poor = made_tool("archive", "GET", "/x", "x", "Something", "It can also send an email.")
    others = {tool.name for tool in crowd[:4]}
    index = ToolIndex([*crowd, poor])
    found = index.search("send an email", allowed={poor.name, *others}, limit=5)
    assert poor.name in found
    assert set(found) <= {poor.name, *others}


@pytest.mark.parametrize(
    "query", ["", "   ", "the of a", "???", '"', "xyzzy plugh", "* OR NEAR(", "\x00", "🦆"]
)
def test_question_without_known_words_finds_nothing(query: str) -> None:
    assert INDEX.search(query, allowed=NAMES, limit=5) == []


@pytest.mark.parametrize("allowed", [[], [next(iter(NAMES))], ["no_such_tool"]])
def test_nothing_is_shown_that_is_not_allowed(allowed: list[str]) -> None:
    for question, _ in golden_questions():
        assert set(INDEX.search(question, allowed=allowed, limit=5)) <= set(allowed)


def test_empty_index_and_no_room_are_answered_with_nothing() -> None:
    assert ToolIndex([]).search("send an email", allowed=NAMES, limit=5) == []
    assert INDEX.search("send an email", allowed=NAMES, limit=0) == []


def test_a_very_long_question_is_read_up_to_a_bound() -> None:
    words, tail = "send an email to everybody about the invoice ", "delete a book"
    names = {n: INDEX.search(words * n, allowed=NAMES, limit=5) for n in (1, 50_000)}
    assert INDEX.search(words + tail, allowed=NAMES, limit=5) != names[1]
    assert INDEX.search(words * 50_000 + tail, allowed=NAMES, limit=5) == names[50_000]
    assert names[50_000][0] == "payments_post_invoices_invoice_send"


@given(st.text(max_size=600), st.sets(st.sampled_from(sorted(NAMES))), st.integers(0, 30))
def test_any_text_is_a_question_and_stays_within_what_is_allowed(
    query: str, allowed: set[str], limit: int
) -> None:
    found = INDEX.search(query, allowed=allowed, limit=limit)
    assert set(found) <= allowed
    assert len(found) == len(set(found)) <= limit


@given(st.sampled_from(TOOLS))
def test_every_tool_is_found_by_its_own_name_and_title(tool: Tool) -> None:
    assert INDEX.search(f" {tool.name}\n", allowed=NAMES, limit=1) == [tool.name]
    assert INDEX.search(tool.operation or "", allowed=NAMES, limit=1) == [tool.name]
    assert tool.name in INDEX.search(f"{tool.connection} {tool.title}", allowed=NAMES, limit=5)
