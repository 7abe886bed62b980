"""What one change would save of a decode step, and what the memory of the device holds.

What a step takes with a change is taken off the mean step, which the shares are of. What could be wrong: the changes do
not add up; and where the parts of the memory come from different sources their sum may miss the whole, then the bar
shows them on the scale of their sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceanalyzer.report import format as fmt
from traceanalyzer.report import rows, strings
from traceanalyzer.report.document import Memory, Report
from traceanalyzer.report.strings.page import text
from traceanalyzer.report.views.bars import Segment
from traceanalyzer.report.views.pieces import Fact, Figure

_CHANGES = ("compute_2x", "bandwidth_2x", "launches_free", "weights_half", "kv_half")
_VISIBLE = 0.002  # of the bar: what is left out of the drawing


@dataclass(frozen=True, slots=True)
class Change:
    """One change alone: the share of a decode step it saves, from 0 to 1."""

    label: str
    saves: str
    share: float


@dataclass(frozen=True, slots=True)
class MemoryView:
    """The memory of a device as a bar (empty where its size is not known), and in figures."""

    lead: str
    segments: tuple[Segment, ...]
    facts: tuple[Fact, ...]
    assumptions: tuple[str, ...]


def changes_view(report: Report) -> tuple[Change, ...]:
    """What is known of the five changes, by saving."""
    if report.sensitivity is None:
        return ()
    measured = _mean_step_us(report)
    known = [(name, getattr(report.sensitivity, name)) for name in _CHANGES]
    changes = []
    for name, share in known:
        if share is None:
            continue
        saves = text("what_if.saves", share=fmt.percent(share))
        if measured is not None:
            step = fmt.duration(measured * (1.0 - share))
            saves = text("what_if.saves_step", share=fmt.percent(share), step=step)
        changes.append(Change(text(f"what_if.{name}"), saves, min(max(share, 0.0), 1.0)))
    return tuple(sorted(changes, key=lambda change: -change.share))


def _mean_step_us(report: Report) -> float | None:
    """The mean decode step: its period, or the step itself where only one was recorded."""
    phases = rows.phases_of(report, rows.slowest_device(report))
    decode = next((row for row in phases if row.phase == "decode"), None)
    if decode is None:
        return None
    alone = decode.step_us.p50 if decode.step_us and decode.steps == 1 else None
    return alone if decode.period_us_mean is None else decode.period_us_mean


def memory_view(report: Report) -> MemoryView | None:
    """The memory of the slowest device, or None where nothing of it is known."""
    memory = report.memory
    if memory is None:
        return None
    room = ""
    if memory.max_sequences is not None:
        room = text("memory.room", count=fmt.count(memory.max_sequences))
    return MemoryView(
        lead=text("memory.lead", room=room),
        segments=tuple(_segments(memory)),
        facts=tuple(_facts(report, memory)),
        assumptions=tuple(memory.assumptions),
    )


def _segments(memory: Memory) -> list[Segment]:
    """Weights, KV cache, the rest and what is free, as percent of the whole."""
    if memory.total_bytes is None or memory.weight_bytes is None:
        return []
    used = memory.kv_used_bytes or 0.0
    reserved = max((memory.kv_reserved_bytes or 0.0) - used, 0.0)
    parts = [("weights", "memory.weights", memory.weight_bytes), ("kv", "memory.kv_used", used)]
    parts.append(("band", "memory.kv_reserved", reserved))
    if memory.free_bytes is not None:
        known = memory.weight_bytes + used + reserved + memory.free_bytes
        parts.append(("rest", "memory.other", max(memory.total_bytes - known, 0.0)))
        parts.append(("unknown", "memory.free", memory.free_bytes))
    else:
        parts.append(("rest", "memory.other", max(memory.total_bytes - memory.weight_bytes - used - reserved, 0.0)))
    whole = max(memory.total_bytes, sum(size for _, _, size in parts))
    segments = []
    x = 0.0
    for kind, key, size in parts:
        share = size / whole
        if share < _VISIBLE:
            continue
        title = text("floor.segment", label=text(key), time=fmt.size(size))
        segments.append(Segment(kind, 100 * x, 100 * share, fmt.size(size) if share >= 0.11 else "", title))
        x += share
    return segments


def _facts(report: Report, memory: Memory) -> list[Fact]:
    floor = report.decode_floor
    facts = (
        ("memory.total", fmt.size(memory.total_bytes), memory.total_bytes),
        ("memory.held", fmt.size(memory.weight_bytes), memory.weight_bytes),
        ("memory.read", fmt.size(floor.weight_bytes_read if floor else None), floor and floor.weight_bytes_read),
        ("memory.kv_per_token", fmt.size(memory.kv_bytes_per_token), memory.kv_bytes_per_token),
        ("memory.kv_pool", fmt.size(memory.kv_reserved_bytes), memory.kv_reserved_bytes),
        ("memory.kv_used", fmt.size(memory.kv_used_bytes), memory.kv_used_bytes),
        ("memory.free", fmt.size(memory.free_bytes), memory.free_bytes),
        ("memory.max_sequences", fmt.count(memory.max_sequences), memory.max_sequences),
        ("floor.source", strings.source_label(memory.source), memory.source),
        ("floor.confidence", fmt.percent(memory.confidence), memory.confidence),
    )
    return [Fact(text(key), Figure(printed)) for key, printed, value in facts if value is not None]
