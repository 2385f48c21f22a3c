"""A gateway that signs people in, a person, and a client written by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from tests.conftest import GatewayMaker, Running, gateway_on
from tests.databases import postgres, store_url
from tests.oauth.people import OAUTH, TOKENS, Person, Program

__all__ = ["postgres", "store_url"]

NewPerson = Callable[..., Person]


@pytest.fixture(scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """For all tests of a module."""
    async with gateway_on(tmp_path_factory.mktemp("gateway") / "config.toml", OAUTH) as made:
        yield made


@pytest.fixture
async def new_person(gateway: Running) -> AsyncIterator[NewPerson]:
    """Makes people by their name, each with a browser of their own."""
    async with AsyncExitStack() as stack:

        def make(name: str = "ann", url: str = gateway.url) -> Person:
            made = Person(url, TOKENS.get(name, name))
            stack.push_async_callback(made.http.aclose)
            return made

        yield make


@pytest.fixture
def person(new_person: NewPerson) -> Person:
    return new_person()


@pytest.fixture
async def program(gateway: Running) -> AsyncIterator[Program]:
    made = Program(gateway.url)
    async with made.http:
        yield made


@pytest.fixture
async def lone_program(make_gateway: GatewayMaker) -> AsyncIterator[Program]:
    """A client at a gateway of its own: it uses up what an address may do in a minute."""
    made = Program((await make_gateway(OAUTH)).url)
    async with made.http:
        yield made
