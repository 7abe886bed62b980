"""What the ledger bars and the floor bars draw: positions in percent, colours as group names, and words beside them.

Pure data for the templates. Time that was not recorded is in the table but in no bar, for it is neither idle nor
busy. What could be wrong: a segment thinner than a pixel is there but cannot be seen; the table
below each drawing has every figure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from traceanalyzer.report import format as fmt
from traceanalyzer.report import rows, strings
from traceanalyzer.report.document import DecodeFloor, LedgerRow, PrefillIdeal, Report
from traceanalyzer.report.strings.page import text
from traceanalyzer.report.views.pieces import (
    LIMIT_TOLERANCE,
    Fact,
    Figure,
    floor_lead,
    limits_known,
    prefill_lead,
    share_figure,
    slope_lead,
)

_LABEL_FROM = 0.11  # a segment at least this wide has its share written inside
_SINGLE = ("busy_no_tensor_core", "tensor_core_useful")  # groups of one bucket, which need no second name
_NAMED_FROM = 0.01  # a bucket at least this large is named beside the bar


@dataclass(frozen=True, slots=True)
class Segment:
    """One piece of a stacked bar; `x` and `width` are percent of the bar, `kind` selects colour and pattern."""

    kind: str
    x: float
    width: float
    label: str
    title: str


@dataclass(frozen=True, slots=True)
class GroupLine:
    """One group beside a bar: its share, and its buckets in words."""

    kind: str
    label: str
    share: str
    buckets: str


@dataclass(frozen=True, slots=True)
class LedgerBar:
    """One phase (or the whole span) as a stacked bar of 100 %."""

    anchor: str
    label: str
    time: str
    share: str
    segments: tuple[Segment, ...]
    groups: tuple[GroupLine, ...]
    description: str


@dataclass(frozen=True, slots=True)
class LedgerTableRow:
    """One bucket in the exact table; `cells` has one time per phase, then the total and its share."""

    kind: str
    label: str
    meaning: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerView:
    """The ledger of the slowest device: bars, and the exact table."""

    bars: tuple[LedgerBar, ...]
    not_recorded: str
    columns: tuple[str, ...]
    table: tuple[LedgerTableRow, ...]
    sums: tuple[str, ...]
    has_unknown: bool


@dataclass(frozen=True, slots=True)
class FloorView:
    """A measured time against the least it could be; `segments` is empty where the least is not known."""

    lead: str
    slope: str
    above_limit: bool
    segments: tuple[Segment, ...]
    marker: float | None
    facts: tuple[Fact, ...]
    assumptions: tuple[str, ...]


def ledger_view(report: Report) -> LedgerView | None:
    """The ledger of the slowest device, or None when it has no row with time in it."""
    device = rows.slowest_device(report)
    ledger = [row for row in rows.ledger_of(report, device) if row.us > 0]
    total = sum(row.us for row in ledger)
    if not total:
        return None
    phases = [row.phase for row in rows.phases_of(report, device)]
    phases += sorted({row.phase for row in ledger} - set(phases))
    by_phase: dict[str, list[LedgerRow]] = {phase: [row for row in ledger if row.phase == phase] for phase in phases}
    by_phase = {phase: entries for phase, entries in by_phase.items() if entries}
    missing = sum(row.us for row in ledger if row.bucket == rows.NOT_RECORDED)
    drawn = {phase: [row for row in entries if row.bucket != rows.NOT_RECORDED] for phase, entries in by_phase.items()}
    drawn = {phase: entries for phase, entries in drawn.items() if entries}
    bars = []
    if len(drawn) > 1:
        whole = [row for entries in drawn.values() for row in entries]
        bars.append(_bar("ledger-whole", text("ledger.whole"), whole, total - missing))
    bars += [
        _bar(f"ledger-{phase}", strings.phase_label(phase), entries, total - missing)
        for phase, entries in drawn.items()
    ]
    table = [_table_row(bucket, by_phase, total) for bucket in _buckets(ledger)]
    sums = [sum(row.us for row in entries) for entries in by_phase.values()]
    return LedgerView(
        bars=tuple(bars),
        not_recorded=text("ledger.not_recorded", time=fmt.duration(missing)) if missing else "",
        columns=tuple(strings.phase_label(phase) for phase in by_phase),
        table=tuple(table),
        sums=(*(_exact(us) for us in sums), _exact(total), fmt.percent(1.0)),
        has_unknown=any(row.bucket == "tensor_core_unknown" for row in ledger),
    )


def floor_view(report: Report) -> FloorView | None:
    """One decode step against its floor, or None without a decode step."""
    floor = report.decode_floor
    if floor is None:
        return None
    scale = max(floor.measured_us, floor.floor_us or 0.0)
    marker = floor.floor_achievable_us
    return FloorView(
        lead=floor_lead(floor),
        slope=slope_lead(floor),
        above_limit=floor.floor_us is not None and floor.floor_us > LIMIT_TOLERANCE * floor.measured_us,
        segments=tuple(_floor_segments(floor, scale)),
        marker=100 * marker / scale if marker is not None and 0 < marker <= scale else None,
        facts=tuple(_floor_facts(floor)),
        assumptions=tuple(floor.assumptions),
    )


def prefill_view(report: Report) -> FloorView | None:
    """The measured prefill against its ideal, or None without one."""
    ideal = report.prefill_ideal
    if ideal is None or ideal.ideal_us is None:
        return None
    scale = max(ideal.measured_us, ideal.ideal_us)
    parts = [
        ("compute", ideal.ideal_us, text("floor.legend_flops", flops=fmt.work(ideal.flops))),
        ("rest", ideal.measured_us - ideal.ideal_us, text("floor.rest_ideal")),
    ]
    return FloorView(
        lead=prefill_lead(ideal, rows.step_count(report, "prefill")),
        slope="",
        above_limit=ideal.ideal_us > LIMIT_TOLERANCE * ideal.measured_us,
        segments=tuple(_stack(parts, scale)),
        marker=None,
        facts=tuple(_prefill_facts(ideal)),
        assumptions=tuple(ideal.assumptions),
    )


def limits_command(report: Report) -> str:
    """The command with which the user supplies the limits of the device, or nothing where they are known."""
    device = rows.slowest_device(report)
    if device is None or limits_known(device):
        return ""
    return text("limits.command", dtype="fp32" if device.kind == "cpu" else "bf16")


def _bar(anchor: str, label: str, entries: list[LedgerRow], span_us: float) -> LedgerBar:
    total = sum(row.us for row in entries)
    by_bucket = {bucket: sum(row.us for row in entries if row.bucket == bucket) for bucket in _buckets(entries)}
    group_of = {row.bucket: row.group for row in entries}
    segments = []
    x = 0.0
    for bucket, us in by_bucket.items():
        share = us / total
        title = text("ledger.segment", group=strings.group_label(group_of[bucket]), bucket=strings.bucket_label(bucket),
                     time=fmt.duration(us), share=fmt.percent(share))  # fmt: skip
        written = fmt.percent(share) if share >= _LABEL_FROM else ""
        segments.append(Segment(_kind(group_of[bucket]), 100 * x, 100 * share, written, title))
        x += share
    groups = tuple(_group_lines(by_bucket, group_of, total))
    parts = ", ".join(text("ledger.part", label=group.label, share=group.share) for group in groups)
    description = text("ledger.bar", phase=label, parts=parts)
    share_of_span = text("phases.share_of_span", share=fmt.percent(total / span_us))
    return LedgerBar(anchor, label, fmt.duration(total), share_of_span, tuple(segments), groups, description)


def _group_lines(by_bucket: dict[str, float], group_of: dict[str, str], total: float) -> Iterable[GroupLine]:
    for group in dict.fromkeys(group_of[bucket] for bucket in by_bucket):
        inside = {bucket: us for bucket, us in by_bucket.items() if group_of[bucket] == group}
        named = [
            text("ledger.part", label=strings.bucket_label(bucket), share=fmt.percent(us / total))
            for bucket, us in inside.items()
            if us / total >= _NAMED_FROM
        ]
        words = "" if group in _SINGLE else ", ".join(named)
        yield GroupLine(_kind(group), strings.group_label(group), fmt.percent(sum(inside.values()) / total), words)


def _table_row(bucket: str, by_phase: dict[str, list[LedgerRow]], total: float) -> LedgerTableRow:
    times = [sum(row.us for row in entries if row.bucket == bucket) for entries in by_phase.values()]
    group = next(row.group for entries in by_phase.values() for row in entries if row.bucket == bucket)
    cells = (*(_exact(us) for us in times), _exact(sum(times)), fmt.percent(sum(times) / total))
    label = strings.group_label(group)
    if group not in _SINGLE:
        label = text("ledger.row", group=label, bucket=strings.bucket_label(bucket))
    return LedgerTableRow(_kind(group), label, strings.bucket_meaning(bucket), cells)


def _buckets(entries: Iterable[LedgerRow]) -> list[str]:
    """The buckets that have time, in the order of the catalogue; ones it does not know come last."""
    present = {row.bucket for row in entries}
    return [bucket for bucket in strings.BUCKETS if bucket in present] + sorted(present - set(strings.BUCKETS))


def _kind(group: str) -> str:
    """The name that selects colour and pattern: the group's own where the page knows it."""
    return group if group in strings.GROUPS else "unknown"


def _exact(us: float) -> str:
    """A time to the nanosecond, in microseconds, as the ledger adds up to it."""
    return f"{us:,.3f}" if us else fmt.DASH


def _floor_segments(floor: DecodeFloor, scale: float) -> Iterable[Segment]:
    if floor.floor_us is None:
        return []
    weights, kv = floor.weight_bytes_read or 0.0, floor.kv_bytes or 0.0
    moved = weights + kv
    parts = [
        ("weights", floor.floor_us * weights / moved if moved else floor.floor_us,
         text("floor.legend_weights", bytes=fmt.size(floor.weight_bytes_read))),
        ("kv", floor.floor_us * kv / moved if moved else 0.0, text("floor.legend_kv", bytes=fmt.size(floor.kv_bytes))),
        ("rest", floor.measured_us - floor.floor_us, text("floor.rest")),
    ]  # fmt: skip
    return _stack(parts, scale)


def _stack(parts: list[tuple[str, float, str]], scale: float) -> list[Segment]:
    segments = []
    x = 0.0
    for kind, us, words in parts:
        if us <= 0:
            continue
        share = us / scale
        title = text("floor.segment", label=words, time=fmt.duration(us))
        segments.append(Segment(kind, 100 * x, 100 * share, fmt.duration(us) if share >= 0.16 else "", title))
        x += share
    return segments


def _floor_facts(floor: DecodeFloor) -> list[Fact]:
    facts = (
        ("floor.measured", Figure(fmt.duration(floor.measured_us))),
        ("floor.floor", Figure(fmt.duration(floor.floor_us))),
        ("floor.floor_achievable", Figure(fmt.duration(floor.floor_achievable_us))),
        ("floor.held", Figure(fmt.size(floor.weight_bytes_held))),
        ("floor.read", Figure(fmt.size(floor.weight_bytes_read))),
        ("floor.kv_read", Figure(fmt.size(floor.kv_bytes))),
        ("floor.mbu", share_figure(floor.mbu)),
        ("floor.mbu_busy", share_figure(floor.mbu_busy)),
        ("floor.slope_ideal", Figure(fmt.duration(floor.us_per_1k_context_ideal))),
        ("floor.slope_measured", Figure(fmt.duration(floor.us_per_1k_context_measured))),
        ("floor.source", Figure(strings.source_label(floor.source))),
        ("floor.confidence", Figure(fmt.percent(floor.confidence))),
    )
    return [Fact(text(key), figure) for key, figure in facts]


def _prefill_facts(ideal: PrefillIdeal) -> list[Fact]:
    facts = (
        ("floor.prefill_measured", Figure(fmt.duration(ideal.measured_us))),
        ("floor.prefill_ideal", Figure(fmt.duration(ideal.ideal_us))),
        ("floor.mfu", share_figure(ideal.mfu)),
        ("floor.source", Figure(strings.source_label(ideal.source))),
        ("floor.confidence", Figure(fmt.percent(ideal.confidence))),
    )
    return [Fact(text(key), figure) for key, figure in facts]
