"""How names and questions fall into words, and which words mean the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.catalog.search import question_words, singular, split_words, stem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SendEmailV2", ["send", "email", "v2"]),
        ("users/list-repos_for.org", ["user", "list", "repo", "for", "org"]),
        ("/v1/charges/{charge}/refunds", ["v1", "charge", "charge", "refund"]),
        ("HTTPServerURLs", ["http", "server", "url"]),
        ("Brønnøysund Straße é ﬁle", ["bronnoysund", "strasse", "e", "file"]),
        ("ファイルを開く", ["ファイルを開く"]),
        ("", []),
    ],
)
def test_text_falls_into_words(text: str, expected: list[str]) -> None:
    assert split_words(text) == expected


@pytest.mark.parametrize(
    ("many", "one"),
    [
        ("repositories", "repository"),
        ("branches", "branch"),
        ("statuses", "status"),
        ("addresses", "address"),
        ("boxes", "box"),
        ("messages", "message"),
        ("releases", "release"),
        ("people", "person"),
        ("status", "status"),
        ("access", "access"),
        ("is", "is"),
    ],
)
def test_plural_becomes_singular(many: str, one: str) -> None:
    assert singular(many) == one


@pytest.mark.parametrize(
    "family",
    [
        "invite invites invited inviting invitation invitations",
        "delete deletes deleted deleting deletion",
        "notify notifies notification notifications",
        "cancel cancelled canceled cancelling cancellation",
        "subscribe subscribed subscription subscriber",
        "organization organisation organizations",
        "run runs running",
        "assign assigned assignment assignee assignees",
        "review reviewer reviewing reviews",
    ],
)
def test_forms_of_a_word_share_a_stem(family: str) -> None:
    assert len({stem(word) for word in family.split()}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [("custom", "customer"), ("read", "ready"), ("set", "setting"), ("commit", "comment")],
)
def test_different_words_keep_different_stems(one: str, other: str) -> None:
    assert stem(one) != stem(other)


def test_phrases_of_people_become_words_of_definitions() -> None:
    assert question_words("Turn off my PRs?") == ["disable", "my", "pull", "request"]


@given(st.text(max_size=200))
def test_no_word_is_empty_or_longer_than_the_bound(text: str) -> None:
    for word in (*split_words(text), *question_words(text)):
        assert word and word == word.lower()
