"""What the console is built upon: the gateway's own functions, handed in once."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.edge.console.contacts import Contacts
from gateway.edge.console.sessions import Sessions
from gateway.edge.events import Feed
from gateway.edge.gateway import Gateway
from gateway.edge.health import Health
from gateway.edge.identity import Identity


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything a page may ask."""

    gateway: Gateway
    identity: Identity
    sessions: Sessions
    health: Health
    feed: Feed
    contacts: Contacts
    public_url: str
