"""HTML in descriptions becomes text, and what only looks like it stays."""

from __future__ import annotations

import orjson
import pytest

from gateway.markup import plain_text
from tests.definitions import only_tool, openapi, operation


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>One <b>bold</b></p>\n<p>Two &amp; three&nbsp;four</p>", "One bold\nTwo & three four"),
        ("first<br>second<BR />third", "first\nsecond\nthird"),
        ("<ul><li>one</li><li><p>two</p></li></ul>end", "- one\n- two\nend"),
        ("<tr><th>k</th><th>v</th></tr><tr><td>1</td><td>2</td></tr>", "k | v\n1 | 2"),
        ("<dl><dt>open</dt><dd>it is open</dd></dl>", "open: it is open"),
        (
            "Set <code>a&lt;b</code>:<pre><code>x = 1\ny = 2</code></pre>",
            "Set `a<b`:\nx = 1\ny = 2",
        ),
        ('<h1 class="t">T</h1>wrapped\nline', "T\nwrapped line"),
        ('See <a href="https://x.example/d">the docs</a>.', "See the docs (https://x.example/d)."),
        ('<a href="https://x.example">https://x.example</a>', "https://x.example"),
        ('<a href="#errors">errors</a>, <a href="/docs">docs</a>', "errors, docs"),
        ('<img src="https://x.example/i.png" alt="A chart">', "A chart"),
        ("10<sup>6</sup>, <del>old</del>", "10^6, ~~old~~"),
        ("<!-- note --><style>p {color: red}</style><span style='a'>Words</span>", "Words"),
    ],
)
def test_html_becomes_text(html: str, text: str) -> None:
    assert plain_text(html) == text


@pytest.mark.parametrize(
    "words",
    [
        "a < b and c > d",
        "List<string>, Map<String, List<int>>, Vec<a>",
        "<your-id>, <id> or <https://x.example>",
        "Replace <code> with what <title> and <b> say",
        "if x <b and c=1> d",
        "`<b>bold</b>` and ``&lt;`` in code",
        "?a=1&copy=2&lt=3, AT&T, &bogus;",
        "<script> and </p",
        "[a link](https://x.example/?a=<id>&b=2)",
    ],
)
def test_what_only_looks_like_html_stays(words: str) -> None:
    assert plain_text(words) == words


def test_every_description_of_a_tool_is_text() -> None:
    html = "<p>Its <code>key</code></p><p>&#8203;more</p>"
    definition = openapi(
        {
            "/a/{id}": {
                "post": operation(
                    summary="<b>Does</b> it",
                    description=html,
                    parameters=[{"name": "id", "in": "path", "description": html}],
                    requestBody={
                        "content": {
                            "application/json": {
                                "schema": {"properties": {"name": {"description": html}}}
                            }
                        }
                    },
                    responses={
                        "200": {
                            "content": {
                                "application/json": {
                                    "schema": {"type": "object", "description": html}
                                }
                            }
                        }
                    },
                )
            }
        }
    )
    tool = only_tool(definition)
    text = "Its `key`\nmore"

    assert (tool.title, tool.description) == ("Does it", f"[Shop] Does it — {text}")
    inputs = orjson.loads(tool.input_schema)["properties"]
    assert [inputs[name]["description"] for name in ("id", "name")] == [text, text]
    assert orjson.loads(tool.output_schema or b"{}")["description"] == text


@pytest.mark.parametrize(
    "piece",
    [
        "<",
        "<a ",
        "`",
        "`a``",
        "<!--",
        "<script>",
        "&#",
        '<a href="',
        "<li><td>",
        "\n -<",
        "<pre>\n ",
    ],
)
def test_hostile_words_take_no_longer_than_others(piece: str) -> None:
    plain_text(piece * 50_000)  # part of a second; the square of that would never end
