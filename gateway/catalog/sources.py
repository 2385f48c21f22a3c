"""From a connection's settings to what its connector is told, without any secret."""

from __future__ import annotations

import msgspec

from gateway import __version__
from gateway.catalog.fetch import is_inline, is_url, place_of
from gateway.config.connection import (
    ApiKeyAuth,
    ArmConnection,
    Connection,
    ManifestConnection,
    McpConnection,
    OpenApiConnection,
)
from gateway.model import BUILD_CODEC_VERSION, Kind, Override, Source, Status, digest

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def source_of(
    name: str, settings: Connection, *, location: str, max_description_chars: int
) -> Source:
    """What a connector needs to know of this connection."""
    auth = settings.auth
    return Source(
        connection=name,
        kind=kind_of(settings),
        display_name=settings.display_name or "",
        prefix=prefix_of(name, settings),
        location=location,
        base_url=settings.base_url if isinstance(settings, OpenApiConnection) else None,
        include=settings.include,
        exclude=settings.exclude,
        blocklist=settings.blocklist,
        inject=tuple(sorted(settings.inject)),
        operations={
            key: Override(value.access, value.risk, value.description, value.headers_out)
            for key, value in settings.operations.items()
        },
        trust=settings.trust,
        auth_type=auth.type,
        auth_name=auth.name if isinstance(auth, ApiKeyAuth) else None,
        auth_in=auth.place if isinstance(auth, ApiKeyAuth) else None,
        headers=tuple(sorted(settings.headers)),
        idempotency_header=(
            settings.idempotency_header if isinstance(settings, OpenApiConnection) else None
        ),
        region=settings.region if isinstance(settings, ManifestConnection) else None,
        on_behalf_of=settings.on_behalf_of if isinstance(settings, ManifestConnection) else None,
        max_description_chars=max_description_chars,
        carries_secrets=bool(
            auth.type != "none" or settings.headers or settings.inject or settings.tls.cert_file
        ),
    )


def kind_of(settings: Connection) -> Kind:
    """The kind a connection was declared with."""
    assert isinstance(
        settings, OpenApiConnection | ManifestConnection | McpConnection | ArmConnection
    )
    return settings.kind


def location_of(settings: Connection) -> str:
    """Names where a connection's definition comes from: another one makes a cached copy useless."""
    if isinstance(settings, OpenApiConnection):
        return place_of(settings.spec)
    if isinstance(settings, ManifestConnection):
        return place_of(settings.manifest)
    if isinstance(settings, McpConnection):
        args = digest("\0".join(settings.args).encode())
        return place_of(settings.url) if settings.url else f"{settings.command} {args}"
    return settings.resource_id or "" if isinstance(settings, ArmConnection) else ""


def is_active(settings: Connection) -> bool:
    """Whether a connection is to be looked at and called at all."""
    return settings.enabled and settings.access != "disabled"


def resting(settings: Connection) -> Status:
    """How a connection is before anything is known of it."""
    return "pending" if is_active(settings) else "disabled"


def file_of(settings: Connection) -> str | None:
    """The path of the file that a connection's definition is read from, where there is one."""
    if isinstance(settings, OpenApiConnection):
        path = settings.spec
    elif isinstance(settings, ManifestConnection) and not is_built_in(settings.manifest):
        path = settings.manifest
    else:
        return None
    return None if is_inline(path) or is_url(path) else path


def is_built_in(manifest: str) -> bool:
    """Whether this names a manifest that comes with the gateway, rather than a file."""
    return "/" not in manifest and not manifest.endswith(".toml")


def is_local(settings: Connection) -> bool:
    """Whether a connection's definition is read without a network."""
    if isinstance(settings, OpenApiConnection):
        return is_inline(settings.spec) or not is_url(settings.spec)
    return isinstance(settings, ManifestConnection) and not is_url(settings.manifest)


def is_lazy(settings: Connection) -> bool:
    """Whether a connection waits until somebody needs it."""
    return isinstance(settings, McpConnection) and settings.lazy


def prefix_of(name: str, settings: Connection) -> str:
    """The prefix of a connection's tool names: its own name unless another was chosen."""
    return settings.prefix if settings.prefix is not None else f"{name.replace('-', '_')}_"


def build_key(sha256: str, source: Source) -> str:
    """Names what a build was made from: the same key, the same tools, on every replica."""
    version = f"{__version__}/{BUILD_CODEC_VERSION}".encode()
    return digest(b"\0".join((version, sha256.encode(), _encode(source))))
