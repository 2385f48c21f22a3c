"""Journeys that need a store of their own choosing take it from here."""

from __future__ import annotations

from tests.databases import migrated_file, own_postgres, postgres, store_url

__all__ = ["migrated_file", "own_postgres", "postgres", "store_url"]
