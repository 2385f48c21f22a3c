"""The next page of a look-up: a link in an answer, followed on the API's own host only. Pure.

A link is an API's word, not ours: it becomes a request under the connection's own base URL again,
checked like any other, or it is not followed.
"""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import parse_qsl, urljoin, urlsplit

from gateway.blocklist import decodings
from gateway.catalog.snapshot import ConnectionState
from gateway.invoke.lookup_arguments import Call
from gateway.model import Parameter, Tool, digest

MAX_LINK = 4096
_PORTS = {"https": 443, "http": 80}


def following(tool: Tool, link: str, state: ConnectionState) -> Call | None:
    """The call that reads the next page; None where the link leads somewhere else."""
    http, build = tool.http, state.build
    if http is None or build is None or tool.method != "GET" or len(link) > MAX_LINK:
        return None
    base = build.links_base or http.base_url
    path = _path_below(base, urljoin(f"{base}/", link))
    if path is None or "{" in path or _climbs(path):
        return None
    if build.links_base and tool.path.lstrip("/").startswith("{connectionId}"):
        path = "/" + path.removeprefix("/").partition("/")[2]  # its key, which Azure fills in
    query = tuple(
        Parameter(name, "query", style="form", explode=True, constant=value)
        for name, value in parse_qsl(urlsplit(link).query, keep_blank_values=True)
    )
    headers = tuple(p for p in http.parameters if p.place == "header" and p.argument is None)
    onward = replace(http, path=path, parameters=query + headers, body=None)
    # Its arguments are all in the link, so it is not checked against the tool's own schema.
    fingerprint = digest(f"{tool.fingerprint} next".encode())
    paged = replace(tool, http=onward, input_schema=b'{"type":"object"}', fingerprint=fingerprint)
    return Call(paged, {})


def _path_below(base: str, link: str) -> str | None:
    """What follows the base in a link to the same host."""
    home, there = urlsplit(base), urlsplit(link)
    try:
        ports = [part.port or _PORTS.get(part.scheme) for part in (home, there)]
    except ValueError:
        return None
    same = (home.scheme, home.hostname) == (there.scheme, there.hostname) and not there.username
    prefix = home.path.rstrip("/") + "/"
    if not same or ports[0] != ports[1] or not there.path.startswith(prefix):
        return None
    return "/" + there.path.removeprefix(prefix)


def _climbs(path: str) -> bool:
    segments = (
        segment.partition(";")[0].strip()
        for text in decodings(path)
        for segment in text.replace("\\", "/").split("/")
    )
    return any(segment in (".", "..") for segment in segments)
