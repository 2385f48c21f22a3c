"""What a page lists, also as JSON and as CSV: the same rows, behind the same filter.

A CSV cell that a spreadsheet would run as a formula is written as text.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
from starlette.responses import Response

from gateway.edge.console.visit import Visit, link
from gateway.errors import Fixable
from gateway.store.columns import json_bytes

FORMATS = ("json", "csv")
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")


def download(
    visit: Visit, name: str, rows: Sequence[Mapping[str, Any]], **beside: Any
) -> Response | None:
    """The rows in the format the address asks for; None: as a page."""
    wanted = visit.query("format")
    if not wanted:
        return None
    if wanted not in FORMATS:
        raise Fixable("invalid_arguments", f"format must be one of {', '.join(FORMATS)}")
    file = {"content-disposition": f'attachment; filename="{name}.{wanted}"'}
    if wanted == "csv":
        return Response(as_csv(rows), 200, file, "text/csv; charset=utf-8")
    body = orjson.dumps({name: list(rows), **beside}, option=orjson.OPT_INDENT_2)
    return Response(body, 200, {"content-disposition": "inline"}, "application/json")


def file_links(path: str, **filter: str) -> dict[str, str]:
    """Where a page's rows are in each format, behind the page's filter."""
    return {name: link(path, **filter, format=name) for name in FORMATS}


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV; the first row names the columns."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    names = list(rows[0]) if rows else []
    writer.writerow(cell(name) for name in names)
    for row in rows:
        writer.writerow(cell(row.get(name)) for name in names)
    return out.getvalue()


def cell(value: Any) -> str:
    """A value as text that no spreadsheet runs."""
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return str(value)
    text = value if isinstance(value, str) else json_bytes(value).decode("utf-8", "replace")
    text = text.replace("\0", "\ufffd")
    return f"'{text}" if text.lstrip(" ").startswith(FORMULA) else text


def matching(rows: Iterable[Mapping[str, Any]], **wanted: str) -> list[Mapping[str, Any]]:
    """The rows that have these values; an empty one is no wish."""
    wishes = {key: value for key, value in wanted.items() if value}
    return [row for row in rows if all(str(row.get(k)) == v for k, v in wishes.items())]


def containing(
    rows: Iterable[Mapping[str, Any]], words: str, *keys: str
) -> list[Mapping[str, Any]]:
    """The rows that hold every word in one of these columns."""
    wanted = words.lower().split()
    return [
        row
        for row in rows
        if all(any(word in str(row.get(key, "")).lower() for key in keys) for word in wanted)
    ]
