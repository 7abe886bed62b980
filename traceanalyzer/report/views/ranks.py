"""The ranks of a run beside each other: a bar and figures per rank, the steps that lost most, pipeline bubbles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from traceanalyzer.report import format as fmt
from traceanalyzer.report import strings
from traceanalyzer.report.document import PipelineBubble, RankRow, Ranks, RankStep, Report, Straggler
from traceanalyzer.report.strings.page import text
from traceanalyzer.report.views.appendix import Table
from traceanalyzer.report.views.bars import Segment

MOST_BARS = 16
MOST_STEPS = 20
_LABEL_FROM = 0.11
_UNEVEN = 0.01
_SHOWN = 0.002  # of a bar: less is no visible width


@dataclass(frozen=True, slots=True)
class RankBar:
    """One rank's span as a stacked bar of 100 %."""

    label: str
    time: str
    segments: tuple[Segment, ...]
    description: str


@dataclass(frozen=True, slots=True)
class RanksView:
    """Everything the section shows; empty texts and tables are left out."""

    lead: str
    notes: tuple[str, ...]
    legend: tuple[tuple[str, str], ...]
    bars: tuple[RankBar, ...]
    more_bars: str
    ranks: Table
    steps: Table | None
    steps_omitted: str
    bubbles: Table | None


def ranks_view(report: Report) -> RanksView | None:
    """The comparison, or None where there is one device only."""
    found = report.ranks
    if found is None:
        return None
    spans = {(device.rank, device.device): device.span_us for device in report.devices}
    parts = [(row, _parts(row, spans.get((row.rank, row.device), row.busy_us))) for row in found.ranks]
    present = [kind for kind in _KINDS if any(values[kind] > _SHOWN * sum(values.values()) for _, values in parts)]
    hidden = len(parts) - MOST_BARS
    return RanksView(
        lead=straggler_line(report) or _lead(found),
        notes=tuple(_notes(found)),
        legend=tuple((_KINDS[kind], text(f"ranks.{kind}")) for kind in present),
        bars=tuple(_bar(row, values) for row, values in parts[:MOST_BARS]),
        more_bars=text("ranks.more_bars", count=fmt.count(hidden)) if hidden > 0 else "",
        ranks=_ranks(found),
        steps=_steps(found),
        steps_omitted=text("ranks.steps_omitted", count=fmt.count(found.steps_omitted)) if found.steps_omitted else "",
        bubbles=_bubbles(found),
    )


def straggler_line(report: Report) -> str:
    """Who keeps the others waiting, and why; empty where nobody clearly does."""
    slow = report.ranks.straggler if report.ranks else None
    if slow is None:
        return ""
    said = text(
        "ranks.straggler",
        name=_name(slow),
        delay=fmt.duration(slow.delay_us),
        share=fmt.percent(slow.delay_share),
        slowest=fmt.count(slow.slowest_steps),
        steps=fmt.count(slow.steps),
    )
    return f"{said} {text(f'ranks.cause.{slow.cause}')}" if slow.cause else said


_KINDS = {
    "compute": "compute",
    "exposed": "moving",
    "passing": "rest",
    "waiting": "tensor_core_waiting",
    "copies": "busy_no_tensor_core",
    "idle": "idle",
}
"""Parts of a rank's span in the order they are drawn, and the pattern of each."""


def _name(row: RankRow | Straggler | PipelineBubble) -> str:
    if row.rank is None:
        return text("ranks.device", device=row.device)
    return text("ranks.name", rank=row.rank)


def _lead(found: Ranks) -> str:
    return text("ranks.even", steps=fmt.count(found.steps_matched)) if found.steps_matched else text("ranks.no_steps")


def _notes(found: Ranks) -> Iterable[str]:
    """What holds for all ranks: how even they are, and whose clock counts."""
    compute, busy = found.imbalance.compute, found.imbalance.busy
    if compute is not None and busy is not None:
        uneven = max(compute, busy) - 1.0 >= _UNEVEN
        said = {"compute": fmt.percent(compute - 1.0), "busy": fmt.percent(busy - 1.0)}
        yield text("ranks.imbalance", **said) if uneven else text("ranks.balanced")
    yield text(f"ranks.clock.{found.aligned.by or 'none'}")
    if found.aligned.spread_us is not None:
        yield text("ranks.spread", spread=fmt.duration(found.aligned.spread_us))
    if found.groups > 1:
        yield text("ranks.groups", count=fmt.count(found.groups))


def _parts(row: RankRow, span_us: float) -> dict[str, float]:
    """The span of a rank, each instant once."""
    waiting = row.comm_waiting_us or 0.0
    seen = row.compute_us + row.comm_exposed_us + row.comm_passing_us + waiting
    return {
        "compute": row.compute_us,
        "exposed": row.comm_exposed_us,
        "passing": row.comm_passing_us,
        "waiting": waiting,
        "copies": max(row.busy_us - seen, 0.0),
        "idle": max(span_us - max(row.busy_us, seen), 0.0),
    }


def _bar(row: RankRow, parts: dict[str, float]) -> RankBar:
    total = sum(parts.values())
    segments: list[Segment] = []
    at = 0.0
    for kind, us in parts.items():
        share = us / total if total else 0.0
        title = text("ranks.segment", label=text(f"ranks.{kind}"), time=fmt.duration(us), share=fmt.percent(share))
        label = fmt.percent(share) if share >= _LABEL_FROM else ""
        if us > 0:
            segments.append(Segment(_KINDS[kind], 100 * at, 100 * share, label, title))
        at += share
    return RankBar(
        label=_name(row),
        time=fmt.duration(total),
        segments=tuple(segments),
        description=f"{_name(row)}: {'; '.join(segment.title for segment in segments)}",
    )


def _table(caption: str, heads: Sequence[str], words: int, rows: Sequence[tuple[str, ...]]) -> Table:
    """A table whose first `words` columns are no numbers."""
    return Table(
        caption=text(f"ranks.{caption}"),
        columns=tuple(text(head if "." in head else f"ranks.{head}") for head in heads),
        numeric=frozenset(range(words, len(heads))),
        rows=tuple(rows),
    )


def _ranks(found: Ranks) -> Table:
    heads = ["rank", "compute", "hidden", "exposed", "waiting", "passing", "late", "delay", "last", "slowest", "offset"]
    rows = []
    for row in found.ranks:
        times = (row.compute_us, row.comm_hidden_us, row.comm_exposed_us, row.comm_waiting_us, row.comm_passing_us)
        cells = [fmt.duration(us) for us in (*times, row.late_us, row.delay_us)]
        counts = [fmt.count(row.last_to), fmt.count(row.slowest_steps)]
        rows.append([_name(row), *cells, *counts, fmt.duration(row.offset_us)])
    if found.groups > 1:
        heads.insert(1, "group")
        rows = [[cells[0], str(row.group), *cells[1:]] for row, cells in zip(found.ranks, rows, strict=True)]
    drop = {heads.index("passing")} if not any(row.comm_passing_us for row in found.ranks) else set()
    kept = [place for place in range(len(heads)) if place not in drop]
    return _table("table", [heads[at] for at in kept], 1, [tuple(cells[at] for at in kept) for cells in rows])


def _steps(found: Ranks) -> Table | None:
    shown = [step for step in found.steps if step.delay_us > 0][:MOST_STEPS]
    if not shown:
        return None
    heads = ("step", "phases.phase", "steps.duration", "wait_mean", "slowest_rank", "delay")
    rows = [
        (
            fmt.count(step.index), strings.phase_label(step.phase), fmt.duration(step.duration_us),
            fmt.duration(step.waiting_us), _slowest(step), fmt.duration(step.delay_us),
        )
        for step in shown
    ]  # fmt: skip
    return _table("steps", heads, 2, rows)


def _slowest(step: RankStep) -> str:
    rank = step.slowest_device if step.slowest_rank is None else step.slowest_rank
    return text("ranks.nobody") if rank is None else str(rank)


def _bubbles(found: Ranks) -> Table | None:
    if not found.bubbles:
        return None
    rows = [
        (_name(one), fmt.duration(one.idle_us), fmt.duration(one.passing_us), fmt.percent(one.share))
        for one in found.bubbles
    ]
    return _table("bubbles", ("rank", "idle", "passing", "bubble_share"), 1, rows)
