"""The table of kernels whose work is not known, and the shares that are, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass

from traceanalyzer.report import format as fmt
from traceanalyzer.report import rows, strings
from traceanalyzer.report.document import Report, UnknownWork
from traceanalyzer.report.strings.page import text
from traceanalyzer.report.views.kernel_names import SHOWN, labels


@dataclass(frozen=True, slots=True)
class UnknownRow:
    """One kernel, printed."""

    label: str
    name: str
    note: str
    phase: str
    phase_label: str
    op: str
    lacks: str
    count: str
    total: str
    share: str


@dataclass(frozen=True, slots=True)
class UnknownView:
    """What each phase knows, in words, and the rows."""

    phases: tuple[str, ...]
    rows: tuple[UnknownRow, ...]


def unknown_view(report: Report) -> UnknownView | None:
    """The kernels without work of the slowest device; None where there is none."""
    if not report.unknown_work:
        return None
    called = labels([row.name for row in report.unknown_work], SHOWN)
    device = rows.slowest_device(report)
    told = [
        text("unknown.by_phase", phase=strings.phase_label(phase.phase), flops=fmt.percent(phase.flops_known_share),
             bytes=fmt.percent(phase.bytes_known_share))
        for phase in report.phases
        if device and (phase.rank, phase.device) == (device.rank, device.device) and phase.flops_known_share is not None
    ]  # fmt: skip
    return UnknownView(
        tuple(told), tuple(_row(row, name) for row, name in zip(report.unknown_work, called, strict=True))
    )


def _row(row: UnknownWork, label: str) -> UnknownRow:
    kind = row.category if row.role in (None, row.category) else f"{row.category}, {row.role}"
    return UnknownRow(
        label=label,
        name=row.name,
        note=kind if row.rule else text("unknown.no_rule"),
        phase=row.phase,
        phase_label=strings.phase_label(row.phase),
        op=row.op or fmt.UNKNOWN,
        lacks=text(f"unknown.{row.lacks}"),
        count=fmt.count(row.count),
        total=fmt.duration(row.total_us),
        share=fmt.percent(row.share),
    )
