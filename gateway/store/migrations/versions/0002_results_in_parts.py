"""Large answers in rows that are read one by one.

Answers kept until now are dropped: they would be gone within the hour, and their callers are told
to call again.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

TEXT = sa.Text()
BLOB = sa.LargeBinary()
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.drop_table("results")
    op.create_table(
        "results",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("principal", TEXT, nullable=False, index=True),
        sa.Column("bytes", COUNT, nullable=False),
        sa.Column("shown", BLOB),
        sa.Column("root", BLOB),
        sa.Column("expires_at", sa.Double(), nullable=False, index=True),
    )
    op.create_table(
        "result_parts",
        sa.Column("result_id", TEXT, primary_key=True),
        sa.Column("number", COUNT, primary_key=True, autoincrement=False),
        sa.Column("text", BLOB, nullable=False),
    )
