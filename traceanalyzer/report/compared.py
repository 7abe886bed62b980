"""The section of the Report that compares the ranks of a run: nanoseconds to microseconds."""

from __future__ import annotations

from typing import Any, Literal

from traceanalyzer.analysis import ranks as compared
from traceanalyzer.analysis.pipeline import Analysis
from traceanalyzer.report import document as doc
from traceanalyzer.report.values import us

MAX_STEPS = 100
MAX_RANKS = 1024


def section(analysis: Analysis) -> doc.Ranks | None:
    """The comparison, or None for one device."""
    found = analysis.ranks
    if found is None:
        return None
    steps = [_step(place, group, step) for place, group in enumerate(found.groups) for step in group.steps]
    shown = sorted(steps, key=lambda row: (-row.delay_us, -row.waiting_us, row.index))[:MAX_STEPS]
    return doc.Ranks(
        aligned=doc.RankAlignment(by=_by(found), spread_us=us(found.spread_ns)),
        groups=len(found.groups),
        steps_matched=found.steps_matched,
        ranks=[_row(found, share) for share in found.shares[:MAX_RANKS]],
        imbalance=doc.RankImbalance(compute=found.imbalance_compute, busy=found.imbalance_busy),
        straggler=_straggler(found.straggler) if found.straggler else None,
        steps=shown,
        steps_omitted=len(steps) - len(shown),
        bubbles=[_bubble(bubble) for bubble in found.bubbles],
    )


def _by(found: compared.Ranks) -> Literal["host", "collectives", "mixed"] | None:
    told = {share.member.by for share in found.shares} - {"reference"}
    if None in told:
        return None
    return "mixed" if len(told) > 1 else "collectives" if "collectives" in told else "host"


def _place(calls: compared.Calls) -> dict[str, Any]:
    info = calls.line.device
    return {"rank": info.rank, "device": info.device}


def _row(found: compared.Ranks, share: compared.RankShare) -> doc.RankRow:
    member = share.member
    return doc.RankRow(
        **_place(member.calls),
        group=share.group,
        offset_us=us(member.offset_ns),
        offset_by=member.by,
        busy_us=share.busy_ns / 1e3,
        compute_us=share.compute_ns / 1e3,
        comm_us=share.comm_ns / 1e3,
        comm_hidden_us=share.hidden_ns / 1e3,
        comm_exposed_us=share.exposed_ns / 1e3,
        comm_waiting_us=us(share.waiting_ns),
        comm_passing_us=share.passing_ns / 1e3,
        late_us=us(share.late_ns),
        delay_us=us(share.delay_ns),
        last_to=share.last,
        slowest_steps=_slowest_steps(found.groups[share.group], share),
        collectives=share.calls,
        collectives_matched=share.matched_calls,
    )


def _slowest_steps(group: compared.GroupSteps, share: compared.RankShare) -> int | None:
    """In how many matched steps a device was the slowest; None where none is matched."""
    if not group.steps:
        return None
    column = next(place for place, member in enumerate(group.group.members) if member is share.member)
    return sum(step.slowest == column for step in group.steps)


def _step(place: int, group: compared.GroupSteps, step: compared.RankStep) -> doc.RankStep:
    members = group.group.members
    slowest = members[step.slowest].calls.line.device if step.slowest is not None else None
    return doc.RankStep(
        index=step.labels[0],
        group=place,
        phase=step.phase,
        start_us=(step.start_ns - members[0].calls.line.start_ns) / 1e3,
        duration_us=step.duration_ns / 1e3,
        waiting_us=step.waiting_ns / 1e3,
        slowest_rank=slowest.rank if slowest else None,
        slowest_device=slowest.device if slowest else None,
        delay_us=step.delay_ns / 1e3,
    )


def _straggler(found: compared.Straggler) -> doc.Straggler:
    return doc.Straggler(
        **_place(found.share.member.calls),
        delay_us=found.delay_ns / 1e3,
        delay_share=found.delay_share,
        slowest_steps=found.steps,
        steps=found.of_steps,
        cause=found.cause,
    )


def _bubble(found: compared.Bubble) -> doc.PipelineBubble:
    return doc.PipelineBubble(
        **_place(found.calls),
        idle_us=found.idle_ns / 1e3,
        passing_us=found.passing_ns / 1e3,
        span_us=found.span_ns / 1e3,
        share=found.share,
    )
