"""A principal as configuration has it now, for calls that waited since they came in. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.config.settings import PrincipalSettings, Settings
from gateway.model import Principal


def principal_now(settings: Settings, known: Principal) -> Principal | None:
    """The same principal with the rights it has now; None: it has none any more."""
    configured = settings.principals.get(known.name)
    auth = settings.auth
    if auth.mode == "tokens":
        return None if configured is None else configured_principal(known.name, configured)
    if auth.mode == "none":
        return known if configured is None else configured_principal(known.name, configured)
    # What its token claimed can't be asked again; what is configured beside it can.
    claimed: dict[str, Any] = {}
    for claim, field in (
        (auth.role_claim, "role"),
        (auth.organization_claim, "organization"),
        (auth.admin_claim, "admin"),
    ):
        if claim:
            claimed[field] = getattr(known, field)
    base = (
        Principal(known.name)
        if configured is None
        else configured_principal(known.name, configured)
    )
    return replace(base, **claimed)


def configured_principal(name: str, settings: PrincipalSettings) -> Principal:
    """A principal with all that its table says."""
    return Principal(
        name,
        admin=settings.admin,
        organization=settings.organization,
        role=settings.role,
        access=settings.access,
        connections=dict(settings.connections),
    )
