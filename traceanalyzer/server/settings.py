"""How one server is set up: folders, limits, retention; plain values, so that a test builds them directly.

What could be wrong: the defaults are for one team on one machine. The memory limit of an analysis is per child, so
`workers` children may use that many times as much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request and one token may ask for. Sizes are bytes, times seconds, lengths characters."""

    max_body_bytes: int = 256 << 20
    max_text_bytes: int = 4 << 30
    max_ratio: float = 100.0
    """Decompressed over compressed bytes; real traces have 12 to 31."""
    max_members: int = 65_536
    """gzip members or zstd frames of one file: each costs time even where it holds nothing."""
    max_depth: int = 64
    """Nested lists and objects; real traces have 10 to 26."""
    max_string_bytes: int = 500_000
    """One string or name; the longest in real traces have 20 000."""
    max_events: int = 8_000_000
    slow_body_s: float = 30.0
    """No byte of a body for that long ends the request."""
    min_rate_bytes: int = 1024
    """Per second, averaged, once a body has taken 30 s."""
    requests_per_minute: int = 600
    upload_bytes_per_hour: int = 20 << 30
    failures_per_minute: int = 60
    """Requests without a good token, per address."""
    min_free_bytes: int = 1 << 30
    parallel_uploads: int = 64
    label_chars: int = 200
    page_size: int = 50
    max_page_size: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long traces stay; None keeps them for good. Pinned traces always stay."""

    keep_days: float | None = 90
    keep_days_by_environment: Mapping[str, float] = field(default_factory=dict)
    quota_bytes: int | None = None
    min_free_bytes: int = 1 << 30
    sweep_s: float = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisLimits:
    """What the child that analyses one trace may use, and how often it is tried."""

    memory_bytes: int = 8 << 30
    cpu_s: int = 600
    wall_s: float = 900
    file_bytes: int = 64 << 20
    attempts: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One server: `folder` holds everything that has no address of its own."""

    folder: Path
    database_url: str | None = None
    blob_url: str | None = None
    host: str = "127.0.0.1"
    port: int = 8321
    public_url: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    retention: Retention = field(default_factory=Retention)
    analysis: AnalysisLimits = field(default_factory=AnalysisLimits)
    redacted_only: bool = False
    workers: int = 1

    @property
    def database_file(self) -> Path | None:
        """The SQLite file in the folder, or None where the database has an address of its own."""
        return None if self.database_url else self.folder / "server.sqlite3"

    @property
    def database(self) -> str:
        """The address of the database as SQLAlchemy writes it."""
        return self.database_url or f"sqlite:///{self.folder / 'server.sqlite3'}"

    @property
    def blobs(self) -> Path | None:
        """The folder of the blobs, or None where they have an address of their own."""
        return None if self.blob_url else self.folder / "blobs"

    @property
    def incoming(self) -> Path:
        """Bodies on their way; on the file system of the blobs, so that putting one in place copies nothing."""
        return self.folder / "incoming"

    @property
    def work(self) -> Path:
        """One folder per running analysis."""
        return self.folder / "work"

    @property
    def secret_path(self) -> Path:
        """The file with what signs sessions."""
        return self.folder / "secret"
