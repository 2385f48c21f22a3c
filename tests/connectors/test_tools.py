"""What every HTTP tool shows, whatever it was made from."""

from __future__ import annotations

from typing import get_args

import pytest

from gateway.model import Access, Source
from gateway.naming import NOT_AUTHENTICATED, token_cost, tool_annotations, tool_description


@pytest.mark.parametrize(
    ("display_name", "text", "authenticated", "limit", "description"),
    [
        ("Shop", "List books", True, 99, "[Shop] List books"),
        ("", "List books", True, 99, "List books"),
        ("Sh\u202eop", "List\u200b\n\n  books", True, 99, "[Shop] List books"),
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
