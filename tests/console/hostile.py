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
    """An API whose every word is one of these."""
    paths: dict[str, Any] = {}
    for i, word in enumerate(WORDS):
        paths[f"/p{i}/{word[:300].replace('{', '(').replace('}', ')')}"] = {
            "post": {
                "operationId": f"{word[:200]}{i}",
                "summary": word,
                "description": word,
                "tags": [word],
                "parameters": [
                    {
                        "name": f"{word[:100]}",
                        "in": "query",
                        "description": word,
                        "schema": {
                            "type": "string",
                            "enum": [word, "plain"],
                            "default": "plain",
                        },
                    },
                    {
                        "name": f"q{i}",
                        "in": "query",
                        "description": word,
                        "schema": {"type": "string", "example": word},
                    },
                ],
                "responses": {"200": {"description": word}},
            }
        }
    paths["/steady"] = {
        "get": {
            "operationId": "steady",
            "summary": ALL,
            "parameters": [{"name": "q", "in": "query", "schema": {"type": "string"}}],
            "responses": {"200": {"description": "ok"}},
        },
        "delete": {
            "operationId": "drop",
            "summary": ALL,
            "parameters": [{"name": "q", "in": "query", "schema": {"type": "string"}}],
            "responses": {"200": {"description": "ok"}},
        },
    }
    return {
        "openapi": "3.0.3",
        "info": {"title": ALL, "version": ALL, "description": ALL},
        "servers": [{"url": url, "description": ALL}],
        "tags": [{"name": ALL}],
        "paths": paths,
    }
