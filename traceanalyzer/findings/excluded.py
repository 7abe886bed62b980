"""What would hardly help, with its number: from the sensitivities of the decode step and from rules that passed.

A figure of the decode step rules something out only where decode is what the run's verdict is about; elsewhere it would
be true and beside the point.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from traceanalyzer.analysis import beside
from traceanalyzer.analysis.pipeline import Analysis
from traceanalyzer.findings.model import Fact, Finding

HARDLY = 0.05
"""Share of a decode step below which a change is not worth making."""
IDLE_MATTERS = 0.25
"""Share of idle time above which it is the reason why smaller weights do not help."""


def excluded(analysis: Analysis, findings: Iterable[Finding]) -> tuple[Fact, ...]:
    """What would hardly help: another GPU, launches, smaller weights, a larger batch; and what counters rule out."""
    phase = analysis.verdict.phase
    counted = tuple(_beside(analysis))
    if phase is None or phase.phase != "decode":
        return counted
    return (*_hardly(analysis), *_batch(findings), *counted)


def _beside(analysis: Analysis) -> Iterator[Fact]:
    """What the GPU's own counters rule out as a reason; nothing where they say nothing."""
    trace = analysis.main.timeline.trace
    clock = beside.clock(trace)
    if clock.is_full:
        yield Fact("not_throttled", {"mhz": clock.mhz or 0.0, "most": clock.highest_mhz or 0.0})
    if beside.other_processes(trace) == 0:
        yield Fact("gpu_not_shared", {})


def _hardly(analysis: Analysis) -> Iterator[Fact]:
    figures = analysis.sensitivity
    if figures is None:
        return
    phase = analysis.verdict.phase
    idle = phase.idle_share if phase else None
    for code in ("compute_2x", "bandwidth_2x", "launches_free", "weights_half", "kv_half"):
        share = getattr(figures, code)
        if share is None or share >= HARDLY:
            continue
        if code == "weights_half" and idle is not None and idle > IDLE_MATTERS:
            yield Fact("weights_half_idle", {"share": share, "idle": idle})
        else:
            yield Fact(code, {"share": share})


def _batch(findings: Iterable[Finding]) -> Iterator[Fact]:
    """The rule passes from half the ridge on, where a larger batch is not worth advising; it helps up to the ridge."""
    for finding in findings:
        if finding.id != "decode_batch_below_ridge" or finding.status != "passed" or finding.reason is None:
            continue
        values = finding.reason.values
        if finding.reason.code == "memory_full":
            yield Fact("larger_batch_memory", values)
        elif finding.reason.code == "batch_at_ridge" and float(values["sequences"]) >= float(values["ridge"]):
            yield Fact("larger_batch", values)
