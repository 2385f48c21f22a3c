"""Principals, roles, bundles and routes in the console: lists, forms, what a change would do."""

from __future__ import annotations

import json
import re
from typing import Any

from starlette.responses import Response

from gateway.config.settings import new_token
from gateway.console.pages import Visit, fragment, is_partial, page
from gateway.errors import Fixable
from gateway.limits import NAME_CHARS


async def make_token(visit: Visit) -> Response:
    """A token for a principal, shown this once, with the table that config.toml needs for it."""
    visit.inquiry.require_admin()
    name, given = visit.form.get("name", "").strip(), visit.form
    if not name or len(name) > NAME_CHARS:
        raise Fixable("invalid_arguments", "Say whom the token is for.")
    token, digest = new_token()
    key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)
    known = name in visit.snapshot.settings.principals
    lines = [f"[principals.{key}]", f'token_sha256 = "{digest}"']
    if not known:
        texts = ("role", "organization", "access")
        lines += [
            f"{each} = {json.dumps(given[each].strip())}" for each in texts if given.get(each)
        ]
        lines += ["admin = true"] if given.get("admin") else []
    shown: dict[str, Any] = {
        "name": name,
        "token": token,
        "lines": "\n".join(lines),
        "known": known,
    }
    if is_partial(visit.request):
        return fragment(visit, "_token.html", **shown)
    return await page(visit, "token.html", "A new token", **shown)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
