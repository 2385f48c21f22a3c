"""Where an operation is to be found: one base URL out of servers, hosts, and where we got it.

Configuration wins over everything, an operation's own server over its path's, that one over the
document's. Relative ones count from where the definition was fetched. Where calls carry secrets,
all of them go to one host: a definition can't name another one for some operation to draw them out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

from gateway.connectors.openapi.document import Document, Operation, mapping, sequence, text_of
from gateway.model import Source

MAX_URL = 2_000
MAX_SERVERS = 5
_ODD = re.compile(r"[\s{}]")
_VARIABLE = re.compile(r"\{([^{}]*)\}")


def base_url_of(document: Document, source: Source) -> str:
    """The definition's own base URL, or the configured one; "" if there is none."""
    if source.base_url:
        return source.base_url.rstrip("/")
    if document.swagger:
        return _swagger_url(document.root, source.location)
    listed = document.root.get("servers")
    return _first_usable(listed if listed else [{"url": "/"}], source.location)


def operation_base_url(
    document: Document, operation: Operation, source: Source, default: str
) -> str:
    """The operation's base URL: its own server or its path's, unless one is configured."""
    if source.base_url or document.swagger:
        return default
    for listed in (operation.raw.get("servers"), operation.item.get("servers")):
        if listed and (url := _first_usable(listed, default + "/" if default else source.location)):
            return url
    return default


def home_of(document: Document, source: Source, default: str) -> str:
    """The base URL that credentials are meant for; "" where the first operation decides it."""
    return default if source.base_url or document.swagger or document.root.get("servers") else ""


def elsewhere(source: Source, home: str, base_url: str) -> str | None:
    """Why an operation at this base URL is no tool of a connection whose secrets are for `home`."""
    if not source.carries_secrets or _origin(home) == _origin(base_url):
        return None
    there = urlsplit(base_url).netloc or "nowhere"
    return f"its server ({there}) is not the one that the connection's credentials are for"


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, port


def _first_usable(servers: Any, location: str) -> str:
    for server in sequence(servers)[:MAX_SERVERS]:
        if url := _server_url(mapping(server), location):
            return url
    return ""


def _server_url(server: Mapping[str, Any], location: str) -> str:
    variables = mapping(server.get("variables"))
    url = _VARIABLE.sub(
        lambda found: _default_of(mapping(variables.get(found[1])), found[0]),
        text_of(server.get("url"))[:MAX_URL].strip(),
    )
    return _absolute(url, location)


def _default_of(variable: Mapping[str, Any], unknown: str) -> str:
    value = variable.get("default", next(iter(sequence(variable.get("enum"))), unknown))
    return str(value) if isinstance(value, (str, int)) else unknown


def _swagger_url(root: Mapping[str, Any], location: str) -> str:
    host = text_of(root.get("host")).strip()
    path = text_of(root.get("basePath")).strip()
    schemes = [scheme for scheme in sequence(root.get("schemes")) if scheme in ("https", "http")]
    origin = urlsplit(location)
    if not host:
        return _absolute(path or "/", location)
    default = origin.scheme if origin.scheme == "http" and origin.netloc == host else "https"
    scheme = "https" if "https" in schemes else next(iter(schemes), default)
    if root.get("schemes") and not schemes:
        return ""
    return _absolute(f"{scheme}://{host}/{path.lstrip('/')}", "")


def _absolute(url: str, location: str) -> str:
    """The URL against where the definition came from, "" unless it is plain http or https."""
    try:
        joined = urljoin(location, url) if location.startswith(("http://", "https://")) else url
        parts = urlsplit(joined)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return ""
    if (
        not usable
        or len(joined) > MAX_URL
        or "@" in parts.netloc
        or "{" in joined
        or any(c.isspace() for c in joined)
    ):
        return ""
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
