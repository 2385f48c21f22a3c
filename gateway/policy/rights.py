"""Who may change who may do what: pure.

An admin of no organization may change everything that config.toml does not own. An admin of an
organization manages the principals of that organization, and gives none of them more than it has.
Nobody takes their own rights away: of the admins there are, the one who asks always stays.
"""

from __future__ import annotations

from gateway.config.settings import Settings
from gateway.errors import Fixable, Refused
from gateway.model import Principal
from gateway.policy.access import principal_now

# Names of the gateway's own: everybody where no token is needed, a start, an edit of the file.
OWN_NAMES = ("local", "start", "config.toml")


def refuse_change(who: Principal, kind: str, name: str, before: Settings, after: Settings) -> None:
    """Raises where this principal may not turn the one into the other by changing this row."""
    now, then = principal_now(before, who), principal_now(after, who)
    if now is None or not (now.admin and who.admin):
        raise Refused("access_denied", "only an admin may do this", "Ask an admin of the gateway.")
    if now.organization is not None:
        _refuse_beyond(now, kind, name, before, after)
    if then is None or not then.admin or then.organization != now.organization:
        hint = "Have another admin do it, so that nobody is locked out by accident."
        raise Fixable("invalid_arguments", "that would take away your own rights", hint)


def _refuse_beyond(me: Principal, kind: str, name: str, before: Settings, after: Settings) -> None:
    """Keeps an admin of an organization to its principals, and to what it has itself."""
    if kind != "principal":
        words = f"{kind}s are for admins of no organization to change"
        raise Refused("access_denied", words, "Ask one of them.")
    if people_are_claimed(before):
        words = "principals are known by the identity provider here, whatever their organization"
        raise Refused("access_denied", words, "Ask an admin of no organization.")
    old, new = before.principals.get(name), after.principals.get(name)
    if name in OWN_NAMES or (old is not None and old.organization != me.organization):
        raise Fixable("invalid_arguments", "this name can't be used", "Choose another name.")
    if new is None:
        return
    if new.organization != me.organization:
        hint = f'Set organization = "{me.organization}".'
        raise Refused("access_denied", "that is not a principal of your organization", hint)
    if me.role is not None and new.role != me.role:
        hint = f'Set role = "{me.role}".'
        raise Refused("access_denied", "you may give no role but your own", hint)


def people_are_claimed(settings: Settings) -> bool:
    """Whether principals may be people whom nobody put here: a row would change who they are."""
    auth = settings.auth
    oauth = auth.oauth if auth.mode == "oauth" else None
    vouched = oauth is not None and (oauth.sign_in == "oidc" or oauth.enterprise is not None)
    return auth.mode == "jwt" or vouched
