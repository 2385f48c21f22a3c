"""REST: executions."""

from __future__ import annotations

import math
from typing import Any

from starlette.requests import Request

from gateway.edge import history
from gateway.edge.meta_tools import Asked
from gateway.edge.rest import Handler, whole_number
from gateway.errors import Fixable
from gateway.store.history import MAX_PAGE

FILTERS = ("status", "tool", "connection", "principal", "token", "cursor")


async def list_executions(asked: Asked, request: Request, body: Any) -> dict[str, Any]:
    query = request.query_params
    wanted: dict[str, Any] = {name: query[name] for name in FILTERS if name in query}
    if "since" in query:
        wanted["since"] = _seconds(query["since"])
    wanted["limit"] = whole_number(request, "limit", history.DEFAULT_LIMIT, MAX_PAGE)
    return await history.list_executions(asked, wanted)


async def get_execution(asked: Asked, request: Request, body: Any) -> dict[str, Any]:
    return await history.get_execution(asked, {"id": request.path_params["id"]})


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Fixable("invalid_arguments", "since must be a time in seconds since 1970")
    return value


ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", "/executions", list_executions),
    ("GET", "/executions/{id}", get_execution),
]
