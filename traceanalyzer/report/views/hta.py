"""What Holistic Trace Analysis says of the same trace, beside our figures of the same kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceanalyzer.report import format as fmt
from traceanalyzer.report import strings
from traceanalyzer.report.document import HTA, HTALaunches, HTAStream, HTATime, Report
from traceanalyzer.report.strings.page import text
from traceanalyzer.report.views.appendix import Table

MOST_ROWS = 48
"""Rows of a table that are shown; the document has them all."""
_WITH = " overlapping "


@dataclass(frozen=True, slots=True)
class HTAView:
    """The tables, each with the note on what differs; `omitted` says why there are no phases, or is empty."""

    lead: str
    tables: tuple[tuple[Table, str], ...]
    omitted: str


def hta_view(report: Report) -> HTAView | None:
    """The figures, or None where there are none."""
    found = report.hta
    if found is None:
        return None
    tables = [
        (_times(report, found), text("hta.times_note")),
        (_types(report, found), text("hta.types_note")),
        (_streams(report, found), text("hta.streams_note")),
        (_launches(report, found), text("hta.launches_note")),
    ]
    return HTAView(
        lead=text("hta.lead", source=found.source),
        tables=tuple((table, note) for table, note in tables if table.rows),
        omitted=text("hta.pieces_omitted", count=fmt.count(found.pieces_omitted)) if found.pieces_omitted else "",
    )


def _table(caption: str, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    return Table(
        caption=text(f"hta.{caption}"),
        columns=tuple(text(f"hta.{head}") for head in heads),
        numeric=frozenset(range(1, len(heads))),
        rows=tuple(rows[:MOST_ROWS]),
    )


def _part(report: Report, row: HTATime | HTAStream | HTALaunches, phase: str | None = None) -> str:
    """What a row is about; the device only where there are several."""
    name = strings.phase_label(phase) if phase else text("hta.whole")
    return name if len(report.devices) == 1 else f"{_device(row)}, {name}"


def _device(row: HTATime | HTAStream | HTALaunches) -> str:
    return f"{text('hta.device')} {row.device}" if row.rank is None else f"{row.rank}:{row.device}"


def _times(report: Report, found: HTA) -> Table:
    heads: tuple[str, ...] = (
        "part",
        "pieces",
        "kernel",
        "idle",
        "idle_ours",
        "compute",
        "compute_ours",
        "non_compute",
        "overlap",
    )
    if all(row.overlap_share is None for row in found.times):
        heads = heads[:-1]
    rows: list[tuple[str, ...]] = []
    for row in found.times:
        idle, kernels = _ours(report, row)
        rows.append((
            _part(report, row, row.phase), fmt.count(row.pieces), fmt.duration(row.kernel_us),
            fmt.duration(row.idle_us), fmt.duration(idle), fmt.duration(row.compute_us), fmt.duration(kernels),
            fmt.duration(row.non_compute_us), fmt.percent(row.overlap_share),
        )[: len(heads)])  # fmt: skip
    return _table("times", heads, rows)


def _ours(report: Report, row: HTATime) -> tuple[float, float]:
    """Idle time, recorded or not on the whole device, and time of kernels, from the ledger of the same part."""
    idle = kernels = 0.0
    for entry in report.ledger:
        if (entry.rank, entry.device) == (row.rank, row.device) and row.phase in (None, entry.phase):
            if entry.group == "idle" and (row.phase is None or entry.bucket != "idle_artefact"):
                idle += entry.us
            elif entry.group not in ("idle", "moving"):
                kernels += entry.us
    return idle, kernels


def _types(report: Report, found: HTA) -> Table:
    rows = []
    for row in found.times:
        total = sum(row.types_us.values())
        for name, us in sorted(row.types_us.items(), key=lambda item: -item[1]):
            if row.phase is None and total:
                kinds = text("hta.type.with").join(text(f"hta.type.{kind}") for kind in name.split(_WITH))
                part = kinds if len(report.devices) == 1 else f"{_device(row)}, {kinds}"
                rows.append((part, fmt.duration(us), fmt.percent(us / total)))
    return _table("types", ("type", "time", "share"), rows)


def _streams(report: Report, found: HTA) -> Table:
    heads: tuple[str, ...] = ("stream", "host_wait", "kernel_wait", "other")
    asked = any(row.queue_coverage is not None for row in found.streams)
    if asked:
        heads += ("queue_coverage", "queue_mean", "queue_p50", "queue_max")
    rows = []
    for row in found.streams:
        name = str(row.stream) if len(report.devices) == 1 else f"{_device(row)}, {row.stream}"
        cells = [name, *(fmt.duration(us) for us in (row.host_wait_us, row.kernel_wait_us, row.other_us))]
        if asked:
            cells += [fmt.percent(row.queue_coverage)]
            cells += [fmt.count(value) for value in (row.queue_mean, row.queue_p50, row.queue_max)]
        rows.append(tuple(cells))
    return _table("streams", heads, rows)


def _launches(report: Report, found: HTA) -> Table:
    heads = ("part", "count", "coverage", "cpu", "gpu", "delay", "delay_p50", "delay_p99")
    rows = [
        (
            _part(report, row), fmt.count(row.count), fmt.percent(row.coverage),
            *(fmt.duration(us) for us in (row.cpu_us_mean, row.gpu_us_mean, row.delay_us_mean, row.delay_us_p50,
                                          row.delay_us_p99)),
        )
        for row in found.launches
    ]  # fmt: skip
    return _table("launches", heads, rows)
