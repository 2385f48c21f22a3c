"""A definition that tries in every field to run, to load, to hide and to burst the page."""

from __future__ import annotations

from typing import Any

MARK = "window.pwned=1"
WORDS = (
    f"<script>{MARK}</script>",
    f'"><img src=x onerror={MARK}>',
    f"'><svg/onload={MARK}>",
    f"</textarea></title></style><script>{MARK}</script>",
    f"javascript:{MARK}",
    f'<a href="javascript:{MARK}">click</a>',
    '<hx-partial hx-target="#main">gone</hx-partial>',
    f'<div hx-get="/console" hx-trigger="load" hx-on:load="{MARK}">',
    '<meta http-equiv="refresh" content="0;url=http://elsewhere.invalid/">',
    '<link rel=stylesheet href="http://elsewhere.invalid/x.css">',
    '<iframe src="http://elsewhere.invalid/"></iframe><base href="http://elsewhere.invalid/">',
    "{{ 7 * 7 }}{% raw %}${7*7}<%= 7*7 %>",
    "left\u202etfel\u2066hidden\u200bchars\ufeff\u0000end",
    "]]>--><!--",
    "x" * 100_000,
    "\u0301" * 3000,
)
ALL = " ".join(WORDS[:-2])


def hostile_api(url: str) -> dict[str, Any]:
    """An API whose every word is one of these; `everything` has them all in one tool."""
    paths: dict[str, Any] = {}
    for i, word in enumerate(WORDS):
        path = f"/p{i}/{word[:300].replace('{', '(').replace('}', ')')}"
        paths[path] = {"post": _operation(f"{word[:200]}{i}", word, _parameters(i, word))}
    plain = [{"name": "q", "in": "query", "schema": {"type": "string"}}]
    every = [each for i, word in enumerate(WORDS) for each in _parameters(i, word)]
    paths["/steady"] = {
        "get": _operation("steady", ALL, plain),
        "delete": _operation("drop", ALL, plain),
        "put": _operation("everything", ALL, every),
    }
    return {
        "openapi": "3.0.3",
        "info": {"title": ALL, "version": ALL, "description": ALL},
        "servers": [{"url": url, "description": ALL}],
        "tags": [{"name": ALL}],
        "paths": paths,
    }


def _operation(id: str, word: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "operationId": id,
        "summary": word,
        "description": word,
        "tags": [word],
        "parameters": parameters,
        "responses": {"200": {"description": word}},
    }


def _parameters(i: int, word: str) -> list[dict[str, Any]]:
    choice = {"type": "string", "enum": [word, "plain"], "default": "plain"}
    free = {"type": "string", "example": word}
    return [
        {"name": word[:100], "in": "query", "description": word, "schema": choice},
        {"name": f"q{i}", "in": "query", "description": word, "schema": free},
    ]
