"""What the API's requests and answers look like. Times are whole milliseconds since 1970, UTC.

What could be wrong: an answer quotes labels and names that a stranger chose; it is JSON, and whoever puts it into a
page must escape it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

from traceanalyzer.server.database.models import Link, Trace

Sha256 = Annotated[
    str, Path(pattern="^[0-9a-f]{64}$", description="the SHA-256 of the trace's bytes, in lower-case hexadecimal")
]
LinkId = Annotated[str, Path(pattern="^[0-9a-f]{12}$", description="the id of a link, not its secret")]
State = Literal["queued", "running", "analysed", "failed"]
Label = Annotated[str | None, Field(max_length=1000)]
LONGEST_S = 36_600 * 86_400 - 1
_LATEST_MS = 1 << 53


class LabelsQuery(BaseModel):
    """What is said about an upload; all of it optional."""

    model_config = ConfigDict(extra="forbid")

    name: Label = Field(None, description="the file's base name")
    model: Label = Field(None, description="the model that ran")
    engine: Label = Field(None, description="the engine that ran it")
    host: Label = Field(None, description="the host, best as a hash")
    revision: Label = Field(None, description="the revision of the code")
    environment: Label = Field(None, description="such as production; retention goes by it")
    recording: Label = Field(None, description="the recording it is a window of")
    weight_s: float | None = Field(None, ge=0, le=1e10, description="for how many seconds of the run it stands")
    pinned: bool | None = Field(None, description="keep it for good")


class SearchQuery(BaseModel):
    """What the list is asked for; conditions are combined by and."""

    model_config = ConfigDict(extra="forbid")

    q: Label = Field(None, description="words that must occur in names, labels or headlines")
    model: Label = None
    engine: Label = None
    environment: Label = None
    host: Label = None
    gpu: Label = None
    bound: Label = None
    recording: Label = None
    state: State | None = None
    since: int | None = Field(None, ge=0, le=_LATEST_MS, description="uploaded at or after this time")
    until: int | None = Field(None, ge=0, le=_LATEST_MS, description="uploaded before this time")
    size: int | None = Field(None, ge=1, description="traces per page; the server has a largest size")
    after: str | None = Field(None, max_length=200, description="the `next` of the page before")


class Stored(BaseModel):
    """The answer to an upload."""

    sha256: str
    state: State
    bytes: int
    url: str = Field(description="the trace's page")


class TraceState(BaseModel):
    """A trace without a report yet."""

    sha256: str
    state: State


class TraceInfo(BaseModel):
    """One trace in the list."""

    sha256: str
    bytes: int
    text_bytes: int = Field(description="after decompression")
    name: str
    uploaded_at: int
    uploaded_by: str | None = Field(description="the id of a token")
    state: State
    pinned: bool
    redaction: str | None
    model: str | None
    engine: str | None
    host: str | None
    revision: str | None
    environment: str | None
    recording: str | None
    weight_s: float | None
    gpu: str | None
    headline: str | None
    bound: str | None
    workload: str | None
    span_us: float | None
    decode_step_us: float | None
    tokens_per_s: float | None
    quality: str | None
    report_id: str | None
    analyser: str | None
    analysed_at: int | None
    error: str | None

    @classmethod
    def of(cls, row: Trace) -> TraceInfo:
        """The part of a row that callers see."""
        return cls(**{field: getattr(row, field) for field in cls.model_fields})


class TraceList(BaseModel):
    """One page of traces, newest first."""

    traces: list[TraceInfo]
    next: str | None = Field(description="ask for the next page with `after`; null: this is the last")
    total: int | None = Field(description="how many match; null: more than are counted")


class LinkRequest(BaseModel):
    """What a new link should be."""

    model_config = ConfigDict(extra="forbid")

    expires_s: float | None = Field(None, gt=0, le=LONGEST_S, description="seconds until it ends; null: never")


class LinkInfo(BaseModel):
    """One share link, without its secret."""

    id: str
    sha256: str
    created_at: int
    created_by: str | None
    expires_at: int | None
    revoked_at: int | None
    opened: int
    last_opened_at: int | None

    @classmethod
    def of(cls, row: Link) -> LinkInfo:
        """The part of a row that callers see."""
        return cls(**{field: getattr(row, field) for field in LinkInfo.model_fields})


class NewLink(LinkInfo):
    """A link that was just made."""

    url: str = Field(description="opens the report; it is told this once")


class LinkList(BaseModel):
    """Every link to one trace, oldest first."""

    links: list[LinkInfo]


class Health(BaseModel):
    """Whether the server can work."""

    status: Literal["ok"]


class Version(BaseModel):
    """What the server is and what it takes."""

    version: str
    api: int
    redacted_only: bool
    max_body_bytes: int
