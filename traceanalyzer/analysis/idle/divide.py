"""Divides every gap of a device among causes, each nanosecond once.

A gap is looked at from the launch call of the activity that ends it.

Where that call was in time (see `late`), the work was queued and the device took its time: `latency`, up to 20 us,
which is longer than any device needs between two queued kernels; what is longer is `unknown`.

Else the host was late, and up to the call the gap goes to what its thread did meanwhile (see `host`). The rest, until a
kernel normally starts (20 us after the call returned), is launching:
    graph_launch   the gap ends with a graph's kernel
    sync_restart   the host had waited and went straight on: it has to fill the queue anew
    launch         the launch call came late; the ops and the short Python before it are part of that
What is longer than that is `unknown`, as is a gap whose ending activity has no recorded launch.

`artefact` is unrecorded time (see `timeline`): the recording was cut, the device was not idle; and time in which the
profiler held the host up. On a CPU device all other time outside ops is the host's.

The phase of a gap is that of the step it lies in, between steps that of the following step, and `other` outside the
first and last complete step and between two windows.

What could be wrong: a launch may wait for an event of another stream or rank, which looks like latency, then unknown;
work that another thread prepares for the launching one counts as what the launching thread did.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis import intervals
from traceanalyzer.analysis.attribution import GRAPH_LAUNCH
from traceanalyzer.analysis.idle.host import Host, named
from traceanalyzer.analysis.intervals import Ints
from traceanalyzer.analysis.late import late
from traceanalyzer.analysis.timeline import Timeline, counted_steps, following
from traceanalyzer.trace.tables import KERNEL, MISSING

LAUNCH_LATENCY_NS = 20_000
"""Within this time after its launch call returns, a kernel on an empty queue starts."""

BUCKETS = MappingProxyType({
    "launch": "idle_launch", "graph_launch": "idle_graph_launch", "sync": "idle_sync", "sync_restart": "idle_sync",
    "alloc": "idle_alloc", "host": "idle_host", "host_in_step": "idle_host", "wait_input": "idle_no_work",
    "wait_rank": "idle_wait_rank", "latency": "idle_latency", "artefact": "idle_artefact", "unknown": "idle_unknown",
})  # fmt: skip
"""The ledger's bucket of each cause."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Divided:
    """The gaps of one device and what they are made of. Times in nanoseconds; arrays have one element per gap.

    Args:
        start, end: where the gaps are.
        phase: an index into `phases`.
        phases: names of the phases.
        row: of the timeline's table, the activity that ends the gap.
        thread: the code of the host thread that launched it, on a CPU device that runs it; MISSING unknown.
        until: up to here the host did something else than launching.
        parts: by cause; they sum to the gaps.
        known: which gaps end with an activity whose launch is known.
    """

    start: Ints
    end: Ints
    phase: Ints
    phases: npt.NDArray[np.object_]
    row: Ints
    thread: Ints
    until: Ints
    parts: Mapping[str, Ints]
    known: Bools

    @property
    def length(self) -> Ints:
        """How long each gap is."""
        return self.end - self.start

    def table(self) -> pd.DataFrame:
        """Rows phase, cause, bucket, ns, gaps: one per phase and cause that has any time."""
        rows = [
            pd.DataFrame({
                "phase": self.phases, "cause": cause, "bucket": BUCKETS[cause],
                "ns": _per_phase(self.phase, ns, len(self.phases)),
                "gaps": np.bincount(self.phase[ns > 0], minlength=len(self.phases)),
            })
            for cause, ns in self.parts.items()
        ]  # fmt: skip
        table = pd.concat(rows, ignore_index=True)
        return table[table["ns"] > 0].reset_index(drop=True)


def _per_phase(phase: Ints, ns: Ints, count: int) -> Ints:
    """Sums by phase; exact, for they stay far below 2**53."""
    return np.bincount(phase, weights=ns, minlength=count).astype(np.int64)


def divide(timeline: Timeline) -> Divided:
    """All gaps of a device, each divided among its causes."""
    start, end = intervals.gaps(timeline.busy)
    phases = _phases(counted_steps(timeline.steps), start)
    phases[intervals.covered(timeline.between, start, end) > 0] = "other"
    phase, names = pd.factorize(phases)
    table = timeline.table
    row = following(table["start_ns"].to_numpy(np.int64), end)
    unrecorded = intervals.covered(timeline.unrecorded, start, end)
    on_cpu = timeline.device.kind == "cpu"
    call = table["launch"].to_numpy(np.int64)[row] if len(row) else row
    thread = table["stream"].to_numpy(np.int64)[row] if on_cpu else _threads(timeline, call)
    parts, until = (_on_cpu if on_cpu else _divided)(timeline, start, end, row, thread)
    parts = {cause: np.where(unrecorded > 0, 0, ns) for cause, ns in parts.items()}
    parts["artefact"] = parts["artefact"] + unrecorded
    parts["unknown"] = end - start - sum(parts.values())
    known = np.ones(len(row), np.bool_) if on_cpu else call >= 0
    return Divided(start, end, phase, np.asarray(names, object), row, thread, until, parts, known)


def _threads(timeline: Timeline, call: Ints) -> Ints:
    thread = np.full(len(call), MISSING, np.int64)
    thread[call >= 0] = timeline.trace.launches["thread"].to_numpy(np.int64)[call[call >= 0]]
    return thread


def _between_steps(timeline: Timeline, row: Ints) -> Bools:
    step = timeline.table["step"].to_numpy(np.int64)
    return np.asarray(step[row] != step[row - 1], np.bool_)


def _on_cpu(timeline: Timeline, start: Ints, end: Ints, row: Ints, thread: Ints) -> tuple[dict[str, Ints], Ints]:
    """On a CPU device nothing is launched: what is not in ops is the host's own."""
    between = _between_steps(timeline, row)
    did = Host(timeline).did(thread, start, end, np.ones(len(row), np.bool_))
    rest = end - start - did["wait_rank"] - did["wait_input"] - did["artefact"]
    parts = {
        "artefact": did["artefact"],
        "wait_rank": did["wait_rank"],
        "wait_input": did["wait_input"],
        "host": np.where(between, rest, 0),
        "host_in_step": np.where(between, 0, rest),
    }
    return parts, end


def _divided(timeline: Timeline, start: Ints, end: Ints, row: Ints, thread: Ints) -> tuple[dict[str, Ints], Ints]:
    """Nanoseconds of each gap by cause; what no cause explains is left out."""
    table = timeline.table
    called, returned = (table[name].to_numpy(np.int64)[row] for name in ("launch_start_ns", "launch_end_ns"))
    behind = late(called, returned, table["kind"].to_numpy()[row] == KERNEL, start)
    free = np.where(behind, np.clip(called, start, end), start)  # up to here the host did something else
    between = _between_steps(timeline, row)
    host = Host(timeline)
    did = host.did(np.where(behind, thread, MISSING), start, free, between)
    elsewhere = sum(did.values(), np.zeros(len(row), np.int64))
    started = np.where(behind, np.minimum(end, returned + LAUNCH_LATENCY_NS), start)
    profiled = intervals.covered(host.profiled, free, started)  # inside the launch call
    launching = started - start - elsewhere - profiled
    by_graph = _by_graph(timeline, table["launch"].to_numpy(np.int64)[row])
    own = did["host"] + did["wait_input"] + did["host_in_step"]
    again = (did["sync"] > 0) & (own == 0) & ~by_graph
    return {
        **did,
        "artefact": did["artefact"] + profiled,
        "latency": np.where((called != MISSING) & ~behind, np.minimum(end - start, LAUNCH_LATENCY_NS), 0),
        "sync_restart": np.where(again, launching, 0),
        "graph_launch": np.where(by_graph, launching, 0),
        "launch": np.where(again | by_graph, 0, launching),
    }, free


def _by_graph(timeline: Timeline, call: Ints) -> Bools:
    graph = named(timeline.trace, re.compile(GRAPH_LAUNCH))[timeline.trace.launches["name"].to_numpy(np.int64)]
    found = np.zeros(len(call), np.bool_)
    found[call >= 0] = graph[call[call >= 0]]
    return found


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
