"""Brings the tables up to date, inside the transaction and the lock its caller holds.

Alembic is imported only if there is something to do: it would cost every start a quarter second.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, text

from gateway.errors import ConfigInvalid

HEAD = "0004"
SCRIPTS = Path(__file__).parent / "migrations"


def migrate(connection: Connection) -> None:
    """Runs what is missing up to `HEAD`."""
    if not is_current(connection):
        _upgrade(connection)


def is_current(connection: Connection) -> bool:
    """Whether nothing is missing; refuses a store that a newer gateway has changed."""
    found = _version(connection)
    if found is not None and found > HEAD:
        raise ConfigInvalid(
            [f"store.url: the store is at version {found}, this gateway knows {HEAD}: update it"]
        )
    return found == HEAD


# SQLAlchemy's own look at the catalog costs half the time of an open.
_HAS_VERSION = {
    "sqlite": "SELECT count(*) FROM sqlite_master WHERE name = 'alembic_version'",
    "postgresql": "SELECT to_regclass('alembic_version') IS NOT NULL",
}


def _version(connection: Connection) -> str | None:
    if not connection.execute(text(_HAS_VERSION[connection.dialect.name])).scalar():
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _upgrade(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)
