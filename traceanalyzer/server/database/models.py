"""The tables. Times are whole milliseconds since 1970, UTC; durations are microseconds where the name ends in `_us`.

Nothing here is bound to one database: strings, numbers and plain indexes. What few traces share (recording, host) has
an index in the list's own order, so that a page needs no sort. On SQLite one wide index holds all that the list filters
and searches, in its order: whatever the filters are, a page reads at most that index, at some 300 bytes a trace,
and then the rows it shows. PostgreSQL limits what an index may hold for a row, and is left without it.

What could be wrong: the clock of the machine makes the times. After it jumped, the list is in the order of what the
clock said, not of what happened; no row depends on that order.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Float, ForeignKey, Index, Integer, MetaData, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

FILTERS = ("model", "engine", "environment", "host", "gpu", "bound", "state", "recording")
"""The columns that the list filters by equality."""


class Base(DeclarativeBase):
    """The tables of this server; constraints have names, so that a later migration can change them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Trace(Base):
    """One trace, named by the SHA-256 of the bytes that were sent."""

    __tablename__ = "traces"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    bytes: Mapped[int] = mapped_column(BigInteger)
    text_bytes: Mapped[int] = mapped_column(BigInteger)
    name: Mapped[str] = mapped_column(Text)
    uploaded_at: Mapped[int] = mapped_column(BigInteger)
    uploaded_by: Mapped[str | None] = mapped_column(String(12))
    state: Mapped[str] = mapped_column(String(16))
    """queued, running, analysed or failed."""
    pinned: Mapped[bool] = mapped_column(default=False)
    redaction: Mapped[str | None] = mapped_column(Text)
    """The level the file says it was redacted with; None: it says nothing."""

    model: Mapped[str | None] = mapped_column(Text)
    engine: Mapped[str | None] = mapped_column(Text)
    host: Mapped[str | None] = mapped_column(Text)
    revision: Mapped[str | None] = mapped_column(Text)
    environment: Mapped[str | None] = mapped_column(Text)
    recording: Mapped[str | None] = mapped_column(Text)
    weight_s: Mapped[float | None] = mapped_column(Float)

    gpu: Mapped[str | None] = mapped_column(Text)
    headline: Mapped[str | None] = mapped_column(Text)
    bound: Mapped[str | None] = mapped_column(Text)
    workload: Mapped[str | None] = mapped_column(Text)
    span_us: Mapped[float | None] = mapped_column(Float)
    decode_step_us: Mapped[float | None] = mapped_column(Float)
    tokens_per_s: Mapped[float | None] = mapped_column(Float)
    quality: Mapped[str | None] = mapped_column(Text)
    """info, warning or error: the worst note on the trace's quality."""
    report_id: Mapped[str | None] = mapped_column(Text)
    analyser: Mapped[str | None] = mapped_column(Text)
    report_bytes: Mapped[int | None] = mapped_column(BigInteger)
    analysed_at: Mapped[int | None] = mapped_column(BigInteger)
    error: Mapped[str | None] = mapped_column(Text)

    words: Mapped[str] = mapped_column(Text, default="")
    """What the text search looks into, case folded; the repository keeps it."""

    __table_args__ = (
        Index("ix_traces_newest", "uploaded_at", "sha256"),
        Index("ix_traces_recording", "recording", "uploaded_at", "sha256"),
        Index("ix_traces_host", "host", "uploaded_at", "sha256"),
        Index("ix_traces_list", "uploaded_at", "sha256", *FILTERS, "words").ddl_if(dialect="sqlite"),
        Index("ix_traces_stored", "pinned", "uploaded_at", "bytes", "report_bytes"),
        Index("ix_traces_analyser", "analyser"),
    )


class Job(Base):
    """One analysis that is to be done or was."""

    __tablename__ = "jobs"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    sha256: Mapped[str] = mapped_column(ForeignKey("traces.sha256", ondelete="CASCADE"), index=True)
    reason: Mapped[str] = mapped_column(String(16))
    """upload, version or manual."""
    state: Mapped[str] = mapped_column(String(16))
    """queued, running, done, failed (it will be tried again) or dead."""
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    not_before: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[int] = mapped_column(BigInteger)
    started_at: Mapped[int | None] = mapped_column(BigInteger)
    finished_at: Mapped[int | None] = mapped_column(BigInteger, index=True)
    error: Mapped[str | None] = mapped_column(Text)
    output: Mapped[str | None] = mapped_column(Text)

    __table_args__ = (Index("ix_jobs_state_id", "state", "id"),)


class Token(Base):
    """One API token; of its secret only the SHA-256 is here."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(12), primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    hash: Mapped[str] = mapped_column(String(64))
    scopes: Mapped[str] = mapped_column(Text)
    """Separated by commas."""
    created_at: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[int | None] = mapped_column(BigInteger)
    revoked_at: Mapped[int | None] = mapped_column(BigInteger)
    last_used_at: Mapped[int | None] = mapped_column(BigInteger)


class Link(Base):
    """One share link: who has its secret may read one report."""

    __tablename__ = "links"

    id: Mapped[str] = mapped_column(String(12), primary_key=True)
    sha256: Mapped[str] = mapped_column(ForeignKey("traces.sha256", ondelete="CASCADE"), index=True)
    hash: Mapped[str] = mapped_column(String(64), unique=True)
    created_by: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[int | None] = mapped_column(BigInteger)
    revoked_at: Mapped[int | None] = mapped_column(BigInteger)
    opened: Mapped[int] = mapped_column(Integer, default=0)
    last_opened_at: Mapped[int | None] = mapped_column(BigInteger)


class Audit(Base):
    """One thing that somebody did."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    at: Mapped[int] = mapped_column(BigInteger, index=True)
    actor: Mapped[str] = mapped_column(Text)
    action: Mapped[str] = mapped_column(Text)
    subject: Mapped[str] = mapped_column(Text, index=True)
    detail: Mapped[str] = mapped_column(Text)
