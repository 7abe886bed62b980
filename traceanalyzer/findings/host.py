"""Waiting for the host: kernels launched one by one, and a synchronisation after every token.

Only idle time that a change removes counts. A gap inside a step that ends with a kernel whose launch call came late is
the host being slower than the device; a replayed graph launches the whole step at once. A gap after the host has read a
token is the host starting over; work submitted ahead fills it, as far as the host's own work allows: the host is free
for as long as it waited, so no more than that can be gained.
"""

from __future__ import annotations

import re

import numpy as np

from traceanalyzer.analysis import intervals
from traceanalyzer.analysis.forecast.model import StepModel
from traceanalyzer.findings.answer import Answer, passed, proposal
from traceanalyzer.findings.change import less_idle
from traceanalyzer.findings.model import Fact
from traceanalyzer.findings.subject import Bools, Floats, PhaseSubject
from traceanalyzer.trace.tables import MEMCPY

MOST_WAITING = 0.10
SHORT_KERNEL_NS = 10_000
"""Graphs help where the device waits for launches for more than a tenth of a step of short kernels (method: advice)."""
QUEUE_EMPTY_NS = 10_000
"""A kernel that starts within this time after its launch call found the queue empty."""
LEFT_BY_GRAPHS = 0.1
"""Share of the waiting that stays with graphs (method: advice)."""
STACKS_DOUBT = 0.6
"""Recording Python stacks slows the host, so idle time measured with them is overstated."""
SYNC_MATTERS = 0.02

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
    late = subject.launching & subject.is_kernel
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
        *said,
    )
    after = _less_waiting(subject, waits * (1.0 - LEFT_BY_GRAPHS))
    assumptions = ("graphs_leave_a_tenth", "shapes_repeat")
    return proposal(subject, after, late, evidence, 0.9 * trust, assumptions)


def _less_waiting(subject: PhaseSubject, ns: float) -> StepModel:
    """The step with less waiting for launches; what the causes of idle time call it depends on what was recorded."""
    return less_idle(subject.model, ns, "idle_launch", "idle_host", "idle_sync", "idle_unknown")


def sync_per_token(subject: PhaseSubject) -> Answer:
    """Does the host wait for the device every step, and the device then for the host?"""
    begin, end = _blocking_calls(subject)
    inside = _in_steps(subject, end)
    begin, end = begin[inside], end[inside]
    if len(begin) < 0.9 * subject.count:
        return passed("no_sync_every_step", count=len(begin) / subject.count)
    idle, waited = _idle_around(subject, begin, end)
    gained = float(np.minimum(idle, waited).sum()) / subject.count
    share = float(idle.sum()) / subject.count / subject.step_ns
    if share < SYNC_MATTERS:
        return passed("idle_after_sync_small", share=share)
    trust, said = doubt(subject)
    evidence = (
        Fact("waits_for_token", {"count": len(begin) / subject.count, "ns": float(waited.sum()) / subject.count}),
        Fact("idle_after_token", {"share": share, "ns": float(idle.sum()) / subject.count}),
        *said,
    )
    buckets = ("idle_sync", "idle_host", "idle_launch", "idle_graph_launch", "idle_unknown")
    after = less_idle(subject.model, gained, *buckets)
    return proposal(subject, after, _to_host(subject), evidence, 0.7 * trust, ("next_step_submitted_ahead",))


def _to_host(subject: PhaseSubject) -> Bools:
    """Copies from the device to the host."""
    strings = subject.timeline.trace.strings
    codes = {code for code in subject.rows["name"].unique() if _TO_HOST.search(strings[code])}
    return np.asarray((subject.rows["kind"] == MEMCPY) & subject.rows["name"].isin(codes))


def _blocking_calls(subject: PhaseSubject) -> tuple[intervals.Ints, intervals.Ints]:
    """Calls that return only after the device has done something: synchronisation, and copies that wait.

    A copy's call waited where it returned no earlier than the copy ended.
    """
    trace, table = subject.timeline.trace, subject.timeline.table
    launches = trace.launches
    names = {code: trace.text(int(code)) for code in launches["name"].unique()}
    sync = {code for code, name in names.items() if "Synchronize" in name}
    start = launches["start_ns"].to_numpy(np.int64)
    stop = start + launches["duration_ns"].to_numpy(np.int64)
    waits = launches["name"].isin(sync).to_numpy(np.bool_).copy()
    copies = table[(table["kind"] == MEMCPY) & (table["launch"] >= 0)]
    done = (copies["start_ns"] + copies["duration_ns"]).to_numpy(np.int64)
    call = copies["launch"].to_numpy(np.int64)
    waits[call[stop[call] >= done]] = True
    return start[waits], stop[waits]


def _in_steps(subject: PhaseSubject, time_ns: intervals.Ints) -> Bools:
    """Which instants lie in a step of the phase or between it and the next one."""
    steps = subject.steps
    start = steps["start_ns"].to_numpy(np.int64)
    last = (steps["start_ns"] + steps["period_ns"].fillna(steps["duration_ns"])).to_numpy(np.float64)
    place = np.searchsorted(start, time_ns, side="right") - 1
    inside: Bools = (place >= 0) & (time_ns < last[np.maximum(place, 0)])
    return inside


def _idle_around(subject: PhaseSubject, begin: intervals.Ints, end: intervals.Ints) -> tuple[Floats, Floats]:
    """For each gap of the device in which a blocking call returned: its length, and how long the host had waited."""
    gap_start, gap_end = intervals.gaps(subject.timeline.busy)
    if not len(gap_start):
        return np.zeros(0), np.zeros(0)
    place = np.searchsorted(gap_end, end, side="right")
    safe = np.minimum(place, len(gap_start) - 1)
    hit = (place < len(gap_start)) & (gap_start[safe] <= end) & (gap_start[safe] >= begin)
    which, back = np.unique(safe[hit], return_inverse=True)
    waited = np.zeros(len(which), np.float64)
    np.add.at(waited, back, (gap_start[safe[hit]] - begin[hit]).astype(np.float64))
    unrecorded = subject.timeline.unrecorded_between(gap_start[which], gap_end[which])
    return (gap_end[which] - gap_start[which] - unrecorded).astype(np.float64), waited
