"""Large answers are kept whole; those kept until now are dropped: they would be gone in an hour."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.drop_table("result_parts")
    op.drop_table("results")
    op.create_table(
        "results",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("principal", sa.Text(), nullable=False, index=True),
        sa.Column("bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("media_type", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False, index=True),
    )
