"""Slow tests take their stores from here."""

from __future__ import annotations

from tests.databases import migrated_file, own_postgres, postgres, store_url

__all__ = ["migrated_file", "own_postgres", "postgres", "store_url"]
