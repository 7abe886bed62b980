"""The Report: the one document that everything user-visible is a rendering of.

Units are in the field names; None means unknown and is shown as unknown, never as zero. Fields may be added, never
renamed without a new `schema_version`. The JSON schema of this module is published as docs/report.schema.json.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from pydantic import Field

from traceanalyzer.report.beside import Counters, RecordedWindow, Recording, Redaction, StepLog
from traceanalyzer.report.closeup import CloseUp, CloseUpGaps, CloseUpRow
from traceanalyzer.report.hta import HTA, HTALaunches, HTAStream, HTATime
from traceanalyzer.report.idle import CriticalPart, CriticalPath, HostRead, IdleCause, Launches
from traceanalyzer.report.outlook import Batching, BatchPoint, Memory, Sensitivity
from traceanalyzer.report.ranks import (
    PipelineBubble,
    RankAlignment,
    RankImbalance,
    RankRow,
    Ranks,
    RankStep,
    Straggler,
)
from traceanalyzer.report.sections import (
    Bound,
    Cost,
    DecodeFloor,
    Device,
    DeviceKind,
    Finding,
    FindingKernel,
    Kernel,
    KernelBound,
    LedgerRow,
    ModelInfo,
    Options,
    Percentiles,
    Phase,
    PhaseName,
    PrefillIdeal,
    Profiling,
    QualityNote,
    Request,
    Run,
    Section,
    Service,
    Span,
    Step,
    Tool,
    TraceInfo,
    Verdict,
    Workload,
)
from traceanalyzer.report.unknown_work import UnknownWork

__all__ = [
    "HTA",
    "SCHEMA_VERSION",
    "BatchPoint",
    "Batching",
    "Bound",
    "CloseUp",
    "CloseUpGaps",
    "CloseUpRow",
    "Cost",
    "Counters",
    "CriticalPart",
    "CriticalPath",
    "DecodeFloor",
    "Device",
    "DeviceKind",
    "Finding",
    "FindingKernel",
    "HTALaunches",
    "HTAStream",
    "HTATime",
    "HostRead",
    "IdleCause",
    "Kernel",
    "KernelBound",
    "Launches",
    "LedgerRow",
    "Memory",
    "ModelInfo",
    "Options",
    "Percentiles",
    "Phase",
    "PhaseName",
    "PipelineBubble",
    "PrefillIdeal",
    "Profiling",
    "QualityNote",
    "RankAlignment",
    "RankImbalance",
    "RankRow",
    "RankStep",
    "Ranks",
    "RecordedWindow",
    "Recording",
    "Redaction",
    "Report",
    "Request",
    "Run",
    "Sensitivity",
    "Service",
    "Span",
    "Step",
    "StepLog",
    "Straggler",
    "Tool",
    "TraceInfo",
    "UnknownWork",
    "Verdict",
    "Workload",
    "content_id",
    "with_id",
]

SCHEMA_VERSION = 1


class Report(Section):
    """Everything one run's analysis says. `report_id` is the SHA-256 of the canonical JSON without it."""

    schema_version: int
    report_id: str
    tool: Tool
    options: Options
    run: Run
    traces: list[TraceInfo]
    devices: list[Device]
    quality: list[QualityNote]
    verdict: Verdict
    span: Span
    profiling: Profiling | None
    service: Service | None
    phases: list[Phase]
    request: Request | None
    ledger: list[LedgerRow]
    steps: list[Step]
    steps_omitted: int
    kernels: list[Kernel]
    decode_floor: DecodeFloor | None
    prefill_ideal: PrefillIdeal | None
    memory: Memory | None
    sensitivity: Sensitivity | None
    cost: Cost | None
    findings: list[Finding]
    batching: Batching | None = None
    steplog: StepLog | None = None
    counters: Counters | None = None
    recording: Recording | None = None
    redaction: Redaction | None = None
    hta: HTA | None = None
    idle_causes: list[IdleCause] = Field(default_factory=list)
    launches: list[Launches] = Field(default_factory=list)
    critical_path: list[CriticalPath] = Field(default_factory=list)
    ranks: Ranks | None = None
    closeups: list[CloseUp] = Field(default_factory=list)
    unknown_work: list[UnknownWork] = Field(default_factory=list)

    def to_json(self, indent: int | None = 2) -> str:
        """The document as JSON: keys in contract order, unknown as null, no NaN, ASCII-safe for any channel."""
        return json.dumps(self.model_dump(mode="json"), indent=indent, ensure_ascii=True, allow_nan=False)


def content_id(document: Mapping[str, object]) -> str:
    """SHA-256 of a document's canonical JSON without its `report_id`: what identifies its content."""
    body = {key: value for key, value in document.items() if key != "report_id"}
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def with_id(report: Report) -> Report:
    """The same report with the `report_id` of its content."""
    return report.model_copy(update={"report_id": content_id(report.model_dump(mode="json"))})
