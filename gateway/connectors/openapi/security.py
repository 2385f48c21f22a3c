"""What a definition says about credentials, next to what the connection itself provides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.connectors.openapi.document import (
    Document,
    Operation,
    Unusable,
    mapping,
    resolved,
    sequence,
    text_of,
)
from gateway.connectors.text import cut
from gateway.model import DEFAULT_KEY_HEADER, Source

MAX_ALTERNATIVES = 20
MAX_SECURITY = 1_000  # characters of the canonical spelling


def sent_with_every_call(document: Document, source: Source) -> frozenset[tuple[str, str]]:
    """Place and name of what the connection itself sends: nobody's to fill in."""
    sent = {("header", name) for name in source.headers}
    keys = declared_keys(document, source)
    if source.auth_type == "api-key":
        name, place = keys[0] if len(keys) == 1 else (DEFAULT_KEY_HEADER, "header")
        sent.add((source.auth_in or place, source.auth_name or name))
    elif source.auth_type != "none":
        sent.add(("header", "Authorization"))
    if source.kind == "arm":  # Azure holds what a connector asks for
        sent.update((place, name) for name, place in keys)
    return frozenset((place, folded(place, name)) for place, name in sent)


def declared_keys(document: Document, source: Source) -> list[tuple[str, str]]:
    """Name and place of each API key of the definition that the connection's may be."""
    schemes = (_scheme(document, name) for name in _schemes(document))
    found = (
        (text_of(scheme.get("name")), text_of(scheme.get("in")))
        for scheme in schemes
        if scheme.get("type") == "apiKey" and scheme.get("in") in ("header", "query")
    )
    return [
        (name, place)
        for name, place in dict.fromkeys(found)
        if source.auth_name in (None, name) and source.auth_in in (None, place)
    ]


def folded(place: str, name: str) -> str:
    """The name as it is compared: headers know no case."""
    return name.lower() if place == "header" else name


def required_credentials(document: Document, operation: Operation) -> str:
    """The credentials an operation asks for, always spelled the same: a change is a risk."""
    own = operation.raw.get("security")
    listed = own if isinstance(own, list) else document.root.get("security")
    if id(listed) not in document.credentials:
        alternatives = sequence(listed)[:MAX_ALTERNATIVES]
        spelled = sorted({_spelled(document, mapping(each)) for each in alternatives})
        document.credentials[id(listed)] = (listed, cut(" or ".join(spelled), MAX_SECURITY))
    return document.credentials[id(listed)][1]


def _spelled(document: Document, requirement: Mapping[str, Any]) -> str:
    names = sorted(requirement)[:MAX_ALTERNATIVES]
    return " and ".join(_words(_scheme(document, name)) for name in names) or "none"


def _words(scheme: Mapping[str, Any]) -> str:
    parts = [text_of(scheme.get(key)) for key in ("type", "scheme", "in", "name")]
    return " ".join([part for part in parts if part] + sorted(_addresses(scheme)))


def _addresses(scheme: Mapping[str, Any]) -> Iterator[str]:
    """Where tokens come from: an address that changed would get the client's secret."""
    for each in (scheme, *mapping(scheme.get("flows")).values()):
        for key in ("tokenUrl", "authorizationUrl", "openIdConnectUrl"):
            if address := text_of(mapping(each).get(key)):
                yield cut(address, 200)


def _schemes(document: Document) -> Mapping[str, Any]:
    root = document.root
    components = mapping(root.get("components"))
    return mapping(root.get("securityDefinitions")) or mapping(components.get("securitySchemes"))


def _scheme(document: Document, name: str) -> Mapping[str, Any]:
    try:
        return resolved(document, _schemes(document).get(name))
    except Unusable:
        return {}
