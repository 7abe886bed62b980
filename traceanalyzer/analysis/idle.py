"""Why a device was idle: every gap between its activities, divided among causes.

A gap is looked at from the launch call of the activity that ends it.

Where that call was in time (see `late`), the work was queued and the device took its time: `idle_latency`, up
to 20 us, which is longer than any device needs between two queued kernels; what is longer is `idle_unknown`.

Else the host was late, and up to the call the gap goes to what its thread did meanwhile:
    idle_sync      it waited for the device: a synchronising call, or a copy whose call returned after the copy ended
    idle_alloc     it allocated or freed device memory
    idle_host      between two steps only: none of the host's ops or runtime calls ran (scheduler, Python, sampling)
The rest, until a kernel normally starts (20 us after the call returned), is the launch:
    idle_graph_launch  the gap ends with a graph's kernel
    idle_sync          the host had waited and went straight on: it has to fill the queue anew
    idle_launch        the launch call came late. Inside a step this holds Python between ops too: replaying the step
                       as a graph would remove both
What is longer than that is `idle_unknown`, as is a gap whose ending activity has no recorded launch.

`idle_artefact` is unrecorded time (see `timeline`): the recording was cut, the device was not idle. On a CPU device all
time outside ops is `idle_host`.

The phase of a gap is that of the step it lies in, between steps that of the following step, and `other` outside the
first and last complete step and between two windows.

What could be wrong: a launch may wait for an event of another stream or rank, which looks like latency, then unknown;
work that another thread prepares for the launching one counts as what the launching thread did.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis import intervals
from traceanalyzer.analysis.attribution import GRAPH_LAUNCH
from traceanalyzer.analysis.intervals import Ints
from traceanalyzer.analysis.late import late
from traceanalyzer.analysis.timeline import Timeline, counted_steps, following
from traceanalyzer.analysis.waits import waiting_calls
from traceanalyzer.trace.tables import KERNEL, MISSING, Trace

LAUNCH_LATENCY_NS = 20_000
"""Within this time after its launch call returns, a kernel on an empty queue starts."""

_ALLOCATES = re.compile(r"^(cuda|hip|cu)(Malloc|Free|Mem(Alloc|Free|Map|Unmap|Create|Release|SetAccess))")

Bools = npt.NDArray[np.bool_]


def causes(timeline: Timeline) -> list[pd.DataFrame]:
    """Rows phase, bucket, ns: one per phase and cause, zeros among them. They sum to the idle time exactly."""
    gap_start, gap_end = intervals.gaps(timeline.busy)
    phases = _phases(counted_steps(timeline.steps), gap_start)
    phases[intervals.covered(timeline.between, gap_start, gap_end) > 0] = "other"
    phase, names = pd.factorize(phases)
    length = gap_end - gap_start
    unrecorded = intervals.covered(timeline.unrecorded, gap_start, gap_end)
    if timeline.device.kind == "cpu":
        host, artefact = length - unrecorded, unrecorded
        return [per_phase(phase, names, "idle_host", host), per_phase(phase, names, "idle_artefact", artefact)]
    parts = _divided(timeline, gap_start, gap_end) if len(length) else {}
    parts = {bucket: np.where(unrecorded > 0, 0, ns) for bucket, ns in parts.items()}
    unknown = length - unrecorded - sum(parts.values())
    every = parts | {"idle_artefact": unrecorded, "idle_unknown": unknown}
    return [per_phase(phase, names, bucket, ns) for bucket, ns in every.items()]


def per_phase(phase: Ints, names: npt.ArrayLike, bucket: str, ns: Ints) -> pd.DataFrame:
    """Whole nanoseconds of one bucket summed per phase, as rows phase, bucket, ns.

    Exact: sums stay far below 2**53.

    Args:
        phase: the phase of each value, an index into `names`.
        names: of the phases.
        bucket: what the values are.
        ns: the values.
    """
    labels = np.asarray(names, object)
    total = np.bincount(phase, weights=ns, minlength=len(labels))
    return pd.DataFrame({"phase": labels, "bucket": bucket, "ns": total.astype(np.int64)})


def _divided(timeline: Timeline, gap_start: Ints, gap_end: Ints) -> Mapping[str, Ints]:
    """Nanoseconds of each gap by cause; what no cause explains is left out."""
    table = timeline.table
    row = following(table["start_ns"].to_numpy(np.int64), gap_end)
    call = table["launch"].to_numpy(np.int64)[row]
    called, returned = (table[name].to_numpy(np.int64)[row] for name in ("launch_start_ns", "launch_end_ns"))
    is_kernel = table["kind"].to_numpy()[row] == KERNEL
    behind = late(called, returned, is_kernel, gap_start)
    queued = (called != MISSING) & ~behind
    free = np.where(behind, np.clip(called, gap_start, gap_end), gap_start)  # up to here the host did something else
    step = table["step"].to_numpy(np.int64)
    waited, allocated, outside = _host(timeline, np.where(behind, call, MISSING), gap_start, free)
    outside = np.where(step[row] != step[row - 1], outside, 0)
    launching = np.where(
        behind, np.minimum(gap_end, returned + LAUNCH_LATENCY_NS) - gap_start - waited - allocated - outside, 0
    )
    graph = _named(timeline.trace, re.compile(GRAPH_LAUNCH))[timeline.trace.launches["name"].to_numpy(np.int64)]
    by_graph = np.zeros(len(row), np.bool_)
    by_graph[call >= 0] = graph[call[call >= 0]]
    again = (waited > 0) & (outside == 0) & ~by_graph
    return {
        "idle_latency": np.where(queued, np.minimum(gap_end - gap_start, LAUNCH_LATENCY_NS), 0),
        "idle_sync": waited + np.where(again, launching, 0),
        "idle_alloc": allocated,
        "idle_host": outside,
        "idle_graph_launch": np.where(by_graph, launching, 0),
        "idle_launch": np.where(again | by_graph, 0, launching),
    }


def _host(timeline: Timeline, call: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """What the launching thread did in each interval: waited, allocated, ran nothing that was recorded.

    Args:
        timeline: of the device.
        call: the launch whose thread is asked about, MISSING for none. Shape: (n,).
        start, end: the intervals, in nanoseconds. Shapes: (n,), (n,).
    """
    trace, launches = timeline.trace, timeline.trace.launches
    waited, allocated, outside = np.zeros((3, len(call)), np.int64)
    if not (call >= 0).any():
        return waited, allocated, outside
    waits = waiting_calls(timeline)
    allocates = _named(trace, _ALLOCATES)[launches["name"].to_numpy(np.int64)] & ~waits
    of, op_of = launches["thread"].to_numpy(np.int64), trace.ops["thread"].to_numpy(np.int64)
    root = trace.ops["parent"].to_numpy() < 0
    thread = np.where(call >= 0, of[call], MISSING)
    for code in np.unique(thread[call >= 0]):
        asked = np.flatnonzero(thread == code)
        share = _share(start[asked], end[asked])
        mine = of == code
        waited[asked] = share(launches[mine & waits])
        allocated[asked] = share(launches[mine & allocates])
        did = pd.concat([launches.loc[mine, _TIMES], trace.ops.loc[root & (op_of == code), _TIMES]])
        outside[asked] = end[asked] - start[asked] - share(did)
    return waited, allocated, outside


_TIMES = ["start_ns", "duration_ns"]


def _share(start: Ints, end: Ints) -> Callable[[pd.DataFrame], Ints]:
    """How much of each interval the union of some calls covers."""

    def share(calls: pd.DataFrame) -> Ints:
        begin = calls["start_ns"].to_numpy(np.int64)
        return intervals.covered(intervals.union(begin, begin + calls["duration_ns"].to_numpy(np.int64)), start, end)

    return share


def _named(trace: Trace, pattern: re.Pattern[str]) -> Bools:
    """Which codes of the trace's strings name something that matches."""
    return np.array([pattern.search(text) is not None for text in trace.strings] or [False], np.bool_)


def _phases(steps: pd.DataFrame, gap_start: Ints) -> npt.NDArray[np.object_]:
    """The phase of each gap: of the step it lies in, else of the step that follows, else `other`."""
    phase = np.full(len(gap_start), "other", dtype=object)
    if not len(steps) or not len(gap_start):
        return phase
    ordered = steps.sort_values("start_ns", kind="stable")
    first, last = ordered["start_ns"].to_numpy(np.int64), ordered["end_ns"].to_numpy(np.int64)
    names = ordered["phase"].to_numpy(object)
    reach = np.maximum.accumulate(last)
    inside_or_next = np.searchsorted(reach, gap_start, side="right")
    within = (gap_start >= first[0]) & (inside_or_next < len(names))
    phase[within] = names[inside_or_next[within]]
    return phase
