"""Every test here runs over both stores."""

from __future__ import annotations

from tests.databases import db, other_db, own_postgres, postgres, store_url

__all__ = ["db", "other_db", "own_postgres", "postgres", "store_url"]
