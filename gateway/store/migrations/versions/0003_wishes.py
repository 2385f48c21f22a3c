"""What sessions want to hear of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "wishes",
        sa.Column("session", sa.Text(), primary_key=True),
        sa.Column("key", sa.Text(), primary_key=True),
        sa.Column("wish", sa.LargeBinary(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False, index=True),
    )
