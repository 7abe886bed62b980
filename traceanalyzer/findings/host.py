"""Waiting for the host: kernels launched one by one, and a synchronisation after every token.

Only idle time that a change removes counts. A gap inside a step that ends with a kernel whose launch call came late is
the host being slower than the device; a replayed graph launches the whole step at once. A gap after the host has read a
token is the host starting over; work submitted ahead fills it, as far as the host's own work allows: the host is free
for as long as it waited, so no more than that can be gained.

Neither saves more than the step's critical path has of it: where the device, a wait or the host's other work would hold
the step up next, gaps alone promise too much.
"""

from __future__ import annotations

import re

import numpy as np

from traceanalyzer.analysis.phases import STACKS_DOUBT
from traceanalyzer.findings import blocking
from traceanalyzer.findings.answer import Answer, passed, saved
from traceanalyzer.findings.model import Fact
from traceanalyzer.findings.subject import Bools, PhaseSubject
from traceanalyzer.trace.tables import MEMCPY

MOST_WAITING = 0.10
SHORT_KERNEL_NS = 10_000
"""Graphs help where the device waits for launches for more than a tenth of a step of short kernels (method: advice)."""
QUEUE_EMPTY_NS = 10_000
"""A kernel that starts within this time after its launch call found the queue empty."""
LEFT_BY_GRAPHS = 0.1
"""Share of the waiting that stays with graphs (method: advice), or what the device itself leaves between kernels."""
SYNC_MATTERS = 0.02
MOST_STEPS = 0.9
"""Share of the steps that must wait for it to be every step; the last one's wait ends outside the window."""

_TO_HOST = re.compile(r"DtoH|DeviceToHost|D2H")


def doubt(subject: PhaseSubject) -> tuple[float, tuple[Fact, ...]]:
    """How far idle time can be believed, and what to say about it."""
    if subject.timeline.trace.metadata.with_stack:
        return STACKS_DOUBT, (Fact("stacks_recorded"),)
    return 1.0, ()


def launch_bound(subject: PhaseSubject) -> Answer:
    """Does the device wait for kernels that are launched one by one?"""
    if subject.run.graph_mode == "full":
        return passed("replayed_graphs")
    late = subject.late & subject.is_kernel
    waits = subject.per_step(subject.gap_before, late)
    share = waits / subject.step_ns
    if share <= MOST_WAITING:
        return passed("hardly_waits_for_launches", share=share)
    short = float((subject.duration[subject.is_kernel] < SHORT_KERNEL_NS).mean())
    if short < 0.5:
        return passed("kernels_are_long", share=short)
    started = subject.column("start_ns") - subject.column("launch_end_ns")
    prompt = subject.per_step(subject.gap_before, late & (started <= QUEUE_EMPTY_NS)) / waits
    if prompt < 0.5:
        return passed("late_kernels_wait_elsewhere", share=1.0 - prompt)
    trust, said = doubt(subject)
    evidence = (
        Fact("waits_for_launches", {"share": share, "ns": waits}),
        Fact("short_kernels", {"count": float(subject.is_kernel.sum()) / subject.count, "share": short}),
        *launching(subject),
        *said,
    )
    left = max(LEFT_BY_GRAPHS * waits, late.sum() / subject.count * _queued_gap(subject))
    assumptions = ("graphs_leave_a_tenth", "shapes_repeat")
    gained = subject.on_path("launches", max(waits - left, 0.0))
    return saved(subject, gained, late, evidence, 0.9 * trust, assumptions)


def launching(subject: PhaseSubject) -> tuple[Fact, ...]:
    """What the launches of a step cost the host, where that is known."""
    stats = subject.launching
    if stats is None or stats.calls is None or stats.cost_ns is None or stats.queue_empty_share is None:
        return ()
    return (Fact("launch_calls", {"count": stats.calls, "ns": stats.cost_ns, "share": stats.queue_empty_share}),)


def _queued_gap(subject: PhaseSubject) -> float:
    """What the device leaves idle between two kernels that were both queued: the median, 0 where none was."""
    queued = subject.is_kernel & ~subject.late & (subject.gap_before > 0)
    return float(np.median(subject.gap_before[queued])) if queued.any() else 0.0


def sync_per_token(subject: PhaseSubject) -> Answer:
    """Does the host wait for the device every step, and the device then for the host?"""
    waits = subject.waits
    each = len(waits.begin) / subject.count
    if len(waits.begin) < MOST_STEPS * (subject.count - 1) or not len(waits.begin):
        return passed("no_sync_every_step", count=each)
    idle, waited = blocking.idle_after(subject.timeline, waits)
    gained = subject.on_path("sync", float(np.minimum(idle, waited).sum()) / subject.count)
    share = float(idle.sum()) / subject.count / subject.step_ns
    if share < SYNC_MATTERS:
        return passed("idle_after_sync_small", share=share)
    trust, said = doubt(subject)
    evidence = (
        Fact("waits_for_token", {"count": each, "ns": float(waited.sum()) / subject.count}),
        Fact("idle_after_token", {"share": share, "ns": float(idle.sum()) / subject.count}),
        *said,
    )
    return saved(subject, gained, _to_host(subject), evidence, 0.7 * trust, ("next_step_submitted_ahead",))


def _to_host(subject: PhaseSubject) -> Bools:
    """Copies from the device to the host."""
    strings = subject.timeline.trace.strings
    codes = {code for code in subject.rows["name"].unique() if _TO_HOST.search(strings[code])}
    return np.asarray((subject.rows["kind"] == MEMCPY) & subject.rows["name"].isin(codes))
