"""The first tables: traces, jobs, links, tokens, audit."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_FILTERS = ("model", "engine", "environment", "host", "gpu", "bound", "state", "recording")


def upgrade() -> None:
    """Make the tables."""
    _traces()
    _jobs()
    _links()
    _tokens()
    _audit()


def _needed(name: str, kind: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def _optional(kind: type[sa.types.TypeEngine[Any]], *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind(), nullable=True) for name in names]


def _traces() -> None:
    op.create_table(
        "traces",
        _needed("sha256", sa.String(64)),
        _needed("bytes", sa.BigInteger()),
        _needed("text_bytes", sa.BigInteger()),
        _needed("name", sa.Text()),
        _needed("uploaded_at", sa.BigInteger()),
        sa.Column("uploaded_by", sa.String(12), nullable=True),
        _needed("state", sa.String(16)),
        _needed("pinned", sa.Boolean()),
        *_optional(sa.Text, "redaction", "model", "engine", "host", "revision", "environment", "recording"),
        *_optional(sa.Float, "weight_s"),
        *_optional(sa.Text, "gpu", "headline", "bound", "workload"),
        *_optional(sa.Float, "span_us", "decode_step_us", "tokens_per_s"),
        *_optional(sa.Text, "quality", "report_id", "analyser"),
        *_optional(sa.BigInteger, "report_bytes", "analysed_at"),
        *_optional(sa.Text, "error"),
        _needed("words", sa.Text()),
        sa.PrimaryKeyConstraint("sha256", name="pk_traces"),
    )
    op.create_index("ix_traces_newest", "traces", ["uploaded_at", "sha256"])
    op.create_index("ix_traces_recording", "traces", ["recording", "uploaded_at", "sha256"])
    op.create_index("ix_traces_host", "traces", ["host", "uploaded_at", "sha256"])
    if op.get_context().dialect.name == "sqlite":
        op.create_index("ix_traces_list", "traces", ["uploaded_at", "sha256", *_FILTERS, "words"])
    op.create_index("ix_traces_stored", "traces", ["pinned", "uploaded_at", "bytes", "report_bytes"])
    op.create_index("ix_traces_analyser", "traces", ["analyser"])


def _jobs() -> None:
    op.create_table(
        "jobs",
        _needed("id", sa.Integer()),
        _needed("sha256", sa.String(64)),
        _needed("reason", sa.String(16)),
        _needed("state", sa.String(16)),
        _needed("attempts", sa.Integer()),
        _needed("not_before", sa.BigInteger()),
        _needed("created_at", sa.BigInteger()),
        *_optional(sa.BigInteger, "started_at", "finished_at"),
        *_optional(sa.Text, "error", "output"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.ForeignKeyConstraint(["sha256"], ["traces.sha256"], name="fk_jobs_sha256", ondelete="CASCADE"),
    )
    op.create_index("ix_jobs_sha256", "jobs", ["sha256"])
    op.create_index("ix_jobs_finished_at", "jobs", ["finished_at"])
    op.create_index("ix_jobs_state_id", "jobs", ["state", "id"])


def _links() -> None:
    op.create_table(
        "links",
        _needed("id", sa.String(12)),
        _needed("sha256", sa.String(64)),
        _needed("hash", sa.String(64)),
        *_optional(sa.Text, "created_by"),
        _needed("created_at", sa.BigInteger()),
        *_optional(sa.BigInteger, "expires_at", "revoked_at"),
        _needed("opened", sa.Integer()),
        *_optional(sa.BigInteger, "last_opened_at"),
        sa.PrimaryKeyConstraint("id", name="pk_links"),
        sa.UniqueConstraint("hash", name="uq_links_hash"),
        sa.ForeignKeyConstraint(["sha256"], ["traces.sha256"], name="fk_links_sha256", ondelete="CASCADE"),
    )
    op.create_index("ix_links_sha256", "links", ["sha256"])


def _tokens() -> None:
    op.create_table(
        "tokens",
        _needed("id", sa.String(12)),
        _needed("name", sa.Text()),
        _needed("hash", sa.String(64)),
        _needed("scopes", sa.Text()),
        _needed("created_at", sa.BigInteger()),
        *_optional(sa.BigInteger, "expires_at", "revoked_at", "last_used_at"),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
    )


def _audit() -> None:
    op.create_table(
        "audit",
        _needed("id", sa.Integer()),
        _needed("at", sa.BigInteger()),
        *(_needed(name, sa.Text()) for name in ("actor", "action", "subject", "detail")),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_index("ix_audit_subject", "audit", ["subject"])
