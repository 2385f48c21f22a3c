"""Arguments that were checked become the one request that will be sent.

Pure, and written so that a value can't reach out of its place: not out of its path segment, not
into another parameter, header or cookie, and never to another host, because the base URL is put in
front of a path that is known to begin with a slash. The template's own text is sent as the
definition spells it. What comes out is the very text that goes on the wire.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

from gateway.blocklist import blocked_by, decodings, may_reroute
from gateway.calls.arguments import problem
from gateway.calls.encode import (
    DELIMITERS,
    encode_body,
    is_json,
    join_value,
    name_value_pairs,
    parameter_name,
    percent_but_reserved,
    percent_encode,
    scalar_text,
)
from gateway.errors import Fixable, Refused
from gateway.limits import MAX_REMEMBERED
from gateway.model import HttpOperation, Parameter
from gateway.outbound.client import Request


def build_request(
    operation: HttpOperation, arguments: Mapping[str, Any], blocklist: Sequence[str] = ()
) -> Request:
    """The request that this operation makes of these arguments."""
    if not operation.base_url:
        raise Fixable(
            "connection_invalid",
            "The connection's definition does not say where the API is",
            "An operator must give base_url.",
        )
    path = _path(operation, arguments)
    if blocklist and blocked_by(blocklist, operation.base_url, path):
        raise Refused(
            "blocked_path",
            "Access to this endpoint is not allowed",
            "The operator of the gateway has blocked this path; use another tool.",
        )
    texts: dict[str, list[str]] = {"query": [], "cookie": []}
    headers = {"Accept": operation.accept}
    for parameter in operation.parameters:
        value = None if parameter.place == "path" else _value(parameter, arguments)
        if value is None:
            continue
        if parameter.place == "header":
            headers[parameter.name] = _header_text(parameter, value)
        else:
            texts[parameter.place] += _texts(operation, parameter, value)
    if texts["cookie"]:
        headers["Cookie"] = "; ".join(texts["cookie"])
    body = encode_body(operation.body, arguments) if operation.body else None
    if body:
        headers.setdefault("Content-Type", body[0])
    # No slash is added or lost, except the slash that must stand between base URL and path.
    url = f"{operation.base_url.removesuffix('/')}/{path.removeprefix('/')}"
    if texts["query"]:
        url += f"{'&' if '?' in url else '?'}{'&'.join(texts['query'])}"
    content = body[1] if body else None
    return Request(operation.method.upper(), url, tuple(headers.items()), content)


def with_headers(request: Request, headers: Sequence[tuple[str, str]]) -> Request:
    """The request with these headers in place of any it had by the same names."""
    if not headers:
        return request
    names = {name.lower() for name, _ in headers}
    old_headers = [pair for pair in request.headers if pair[0].lower() not in names]
    return Request(request.method, request.url, (*old_headers, *headers), request.body)


def _value(parameter: Parameter, arguments: Mapping[str, Any]) -> Any:
    value = arguments.get(parameter.argument) if parameter.argument is not None else None
    return parameter.constant if value is None else value


def _content(parameter: Parameter, value: Any) -> Any:
    """The value; as text where the definition gives it a media type of its own."""
    if not parameter.media_type:
        return value
    # \u00e9 for é: a header has only ASCII.
    needs_json = is_json(parameter.media_type)
    return json.dumps(value, separators=(",", ":")) if needs_json else scalar_text(value)


def _argument_name(parameter: Parameter) -> str:
    return parameter.argument or parameter.name


# --- path -----------------------------------------------------------------------------------------

_VARIABLE = re.compile(r"\{([^{}/]*)\}")
_TEMPLATE_SAFE = "/%!$&'()*+,;=:@?[]~"
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")  # characters that no server reads as anything else
Variables = tuple[tuple[str, str], ...]  # names, each with the literal text behind it


def _path(operation: HttpOperation, arguments: Mapping[str, Any]) -> str:
    params = {p.name: p for p in operation.parameters if p.place == "path"}
    segments = [
        _segment(text, variables, params, arguments) if variables else text
        for text, variables in _segments(operation.path)
    ]
    return "/".join(segments)


@lru_cache(maxsize=MAX_REMEMBERED)
def _segments(path: str) -> list[tuple[str, Variables]]:
    """The segments of a path as they are sent: a text, then variables with the text behind each."""
    split = [_VARIABLE.split(template) for template in path.split("/")]
    return [(_literal(s[0]), (*zip(s[1::2], map(_literal, s[2::2]), strict=True),)) for s in split]


def _literal(text: str) -> str:
    return quote(text, safe=_TEMPLATE_SAFE)


def _segment(
    text: str, variables: Variables, params: Mapping[str, Parameter], arguments: Mapping[str, Any]
) -> str:
    """One segment of the path, with its variables filled in."""
    encoded = wire_text = text
    for name, literal in variables:
        parameter = params.get(name) or Parameter(name, "path", name)
        value = _path_value(parameter, arguments)
        value_text = join_value(parameter.style, parameter.explode, name, value, percent_encode)
        encoded += value_text + literal
        wire_text += (
            percent_encode(value_text) if parameter.double_encoded else value_text
        ) + literal
    if not _PLAIN.fullmatch(encoded):
        names = [_argument_name(params[name]) if name in params else name for name, _ in variables]
        _check_segment(", ".join(names), unquote(encoded))
    return wire_text


def _path_value(parameter: Parameter, arguments: Mapping[str, Any]) -> Any:
    value, name = _value(parameter, arguments), _argument_name(parameter)
    if value is None:
        raise problem(name, "is required: it is part of the path")
    value = _content(parameter, value)
    text = value if isinstance(value, str) else join_value("simple", False, "", value, str)
    if not text.strip(" ,"):
        raise problem(name, "can't be empty: it is part of the path")
    return value


def _check_segment(name: str, text: str) -> None:
    """Refuses a value that some server on the way could take for more than part of a segment."""
    for decoded in decodings(text):
        plain = unicodedata.normalize("NFKC", decoded).replace("\\", "/")
        if any(unicodedata.category(c) == "Cc" for c in plain):
            raise problem(name, "can't hold control characters: it is part of the path")
        segments = [part.partition(";")[0].strip() for part in plain.split("/")]
        if "." in segments or ".." in segments:
            raise problem(name, "can't be or hold '.' or '..' as a path segment")
        if decoded is not text and len(segments) > 1 + text.count("/") + text.count("\\"):
            raise problem(name, "can't hold an encoded slash; give the plain text")


# --- query, headers, cookies ----------------------------------------------------------------------


def _texts(operation: HttpOperation, parameter: Parameter, value: Any) -> list[str]:
    """`name=text` of a query or of cookies, as often as the style has it."""
    place, is_cookie = parameter.place, parameter.place == "cookie"
    is_plain = isinstance(value, (str, int)) and not (parameter.media_type or parameter.reserved)
    if is_plain and not is_cookie:  # as most values are
        return [f"{parameter_name(parameter.name)}={percent_encode(scalar_text(value))}"]
    encode = percent_but_reserved if parameter.reserved else percent_encode
    write, encode = (percent_encode, _cookie_value) if is_cookie else (parameter_name, encode)
    style = "form" if is_cookie or parameter.style == "simple" else parameter.style
    texts, value = [], _content(parameter, value)
    for name, text in name_value_pairs(style, parameter.explode, parameter.name, value, encode):
        # The keys of an exploded object are the caller's: no key may pass for another parameter.
        rivals = (p.name for p in operation.parameters if p.place == place and p is not parameter)
        if name != parameter.name and (name in rivals or may_reroute(name, place)):
            raise problem(_argument_name(parameter), f"can't hold the key {name!r} here")
        texts.append(f"{write(name)}={text}")
    return texts


_HEADER_TEXT = re.compile(r"[\t\x20-\x7e]*")


def _header_text(parameter: Parameter, value: Any) -> str:
    value = _content(parameter, value)
    style = parameter.style if parameter.style in DELIMITERS else "simple"
    text = join_value(style, parameter.explode, parameter.name, value, str).strip(" \t")
    if not _HEADER_TEXT.fullmatch(text):
        raise problem(
            _argument_name(parameter), "must be plain ASCII on one line: it is sent as a header"
        )
    return text


def _cookie_value(text: str) -> str:
    """Percent-encoded where a cookie has no other way; `%` stays, values often are encoded."""
    return quote(scalar_text(text), safe="!#$%&'()*+-./:<=>?@[]^_`{|}~")
