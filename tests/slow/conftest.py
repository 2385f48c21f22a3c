"""Slow tests take their stores from here."""

from __future__ import annotations

from tests.databases import own_postgres, postgres, store_url

__all__ = ["own_postgres", "postgres", "store_url"]
