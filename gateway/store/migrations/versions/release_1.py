"""The tables of the first release, as `tables` declares them.

Until there is a release, `tables` and this script change together. After it a change is a script of
its own, and this one then lists the tables as they were released.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gateway.store.tables import metadata

revision = "release_1"
down_revision = None


def upgrade() -> None:
    metadata.create_all(op.get_bind())
    op.execute(sa.text("INSERT INTO revision (id, value) VALUES (1, 0)"))
