"""Decides which principals may change whose rights. Pure.

An admin of no organization may change everything that config.toml does not own. An admin of an
organization manages the principals of that organization, and gives none of them more than it has.
Nobody takes their own rights away: the admin who makes the change always stays one.
"""

from __future__ import annotations

from gateway.config.settings import Settings
from gateway.errors import Fixable, Refused
from gateway.model import Principal
from gateway.policy.access import principal_now

# Reserved names: of everybody where no token is needed, of a start, of an edit of the file.
OWN_NAMES = ("local", "start", "config.toml")


def refuse_change(by: Principal, kind: str, name: str, before: Settings, after: Settings) -> None:
    """Raises where this principal may not turn `before` into `after` by changing this row."""
    now, then = principal_now(before, by), principal_now(after, by)
    if now is None or not (now.admin and by.admin):
        raise Refused("access_denied", "only an admin may do this", "Ask an admin of the gateway.")
    if now.organization is not None:
        _refuse_beyond(now, kind, name, before, after)
    if then is None or not then.admin or then.organization != now.organization:
        hint = "Have another admin do it, so that nobody is locked out by accident."
        raise Fixable("invalid_arguments", "that would take away your own rights", hint)


def _refuse_beyond(by: Principal, kind: str, name: str, before: Settings, after: Settings) -> None:
    """Keeps an admin of an organization to its principals, and to the rights it has itself."""
    if kind != "principal":
        words = f"{kind}s are for admins of no organization to change"
        raise Refused("access_denied", words, "Ask one of them.")
    if people_are_claimed(before):
        words = "principals are known by the identity provider here, whatever their organization"
        raise Refused("access_denied", words, "Ask an admin of no organization.")
    old, new = before.principals.get(name), after.principals.get(name)
    if name in OWN_NAMES or (old is not None and old.organization != by.organization):
        raise Fixable("invalid_arguments", "this name can't be used", "Choose another name.")
    if new is None:
        return
    if new.organization != by.organization:
        hint = f'Set organization = "{by.organization}".'
        raise Refused("access_denied", "that is not a principal of your organization", hint)
    if by.role is not None and new.role != by.role:
        hint = f'Set role = "{by.role}".'
        raise Refused("access_denied", "you may give no role but your own", hint)


def people_are_claimed(settings: Settings) -> bool:
    """Whether principals may be people without a row: putting one would change who they are."""
    auth = settings.auth
    oauth = auth.oauth if auth.mode == "oauth" else None
    by_provider = oauth is not None and (oauth.sign_in == "oidc" or oauth.enterprise is not None)
    return auth.mode == "jwt" or by_provider
