"""What is always allowed, with for whom, since when and for what; what was allowed before ends."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.drop_table("grants")
    op.create_table(
        "standing_grants",
        *(
            sa.Column(name, sa.Text(), primary_key=True)
            for name in ("principal", "tool", "fingerprint", "session", "client")
        ),
        sa.Column("id", sa.Text(), nullable=False, index=True, unique=True),
        *(
            sa.Column(name, sa.Text(), nullable=False)
            for name in ("connection", "request", "granted_by")
        ),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False, index=True),
    )
