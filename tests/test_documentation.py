"""Whatever the code offers has words: keys, errors, addresses, tools, commands, records."""

from __future__ import annotations

from pathlib import Path

from docs import config_keys, reference
from gateway.config.file import read_settings
from gateway.errors import CODES
from gateway.web.rest import ADDRESSES

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "config.toml"


def test_the_shipped_configuration_says_what_every_key_means() -> None:
    said = config_keys.sentences(CONFIG.read_text(encoding="utf-8"))
    tables = list(config_keys.config_tables(said))
    assert len(tables) > 25
    silent = [f"[{path}] {row[0]}" for path, _, rows in tables for row in rows if not row[-1]]
    assert silent == []  # a comment in config.toml behind the key, or behind an example of it


def test_every_error_says_what_to_do() -> None:
    assert set(reference.WORDS["errors"]) == CODES


def test_every_address_says_what_it_does() -> None:
    words = reference.WORDS["addresses"]
    assert words.keys() <= {*ADDRESSES, "GET /events"}
    silent = [at for at, run in ADDRESSES.items() if not (words.get(at) or run.__doc__)]
    assert silent == []


def test_every_command_and_option_says_what_it_does() -> None:
    for words, command in reference.command_tree():
        assert command.help, words
        assert [each.name for each in command.params if not (each.help or each.hidden)] == []


def test_every_field_of_a_record_says_what_it_holds() -> None:
    page = reference.records_page()
    assert "|  |" not in page, page


def test_the_shipped_configuration_is_valid_and_local() -> None:
    settings = read_settings(CONFIG, {})
    assert settings.auth.mode == "none"
    assert settings.server.host == "127.0.0.1"
    assert settings.demo.enabled
