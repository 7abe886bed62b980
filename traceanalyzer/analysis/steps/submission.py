"""Where and when each piece of device work was submitted by the host, and which host interval that lies in.

A kernel belongs to the step whose code launched it, however much later it ran: with asynchronous scheduling a step's
host code can end before its first kernel starts. So every activity row gets the (thread, time) of its launch; on a CPU
device, of the op itself. Rows without a recorded launch have no such point and are placed otherwise (`join`).

What could be wrong with it: launches from helper threads carry no step of their own; see `SpanMap.locate`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.attribution import GRAPH_LAUNCH, replayed
from traceanalyzer.analysis.steps.model import Bools, Ints
from traceanalyzer.trace.tables import MISSING, Trace

_KERNEL_LAUNCH = re.compile(rf"Launch(?:Cooperative)?Kernel|{GRAPH_LAUNCH}")


@dataclass(frozen=True)
class Submission:
    """Aligned to activity rows: `thread` (MISSING: not known) and `time_ns` of the launch or the op."""

    thread: Ints
    time_ns: Ints

    @property
    def known(self) -> Bools:
        """Which rows have a point of submission."""
        known: Bools = self.thread != MISSING
        return known


def submissions(trace: Trace, activity: Activity) -> Submission:
    """The submission point of every activity row: its launch, else (no launch recorded) the op that owns it."""
    table = activity.table
    launch, op = table["launch"].to_numpy(np.int64), table["op"].to_numpy(np.int64)
    thread = np.full(len(table), MISSING, np.int64)
    time = np.zeros(len(table), np.int64)
    owned = op >= 0
    thread[owned] = trace.ops["thread"].to_numpy(np.int64)[op[owned]]
    if activity.on_cpu:
        return Submission(thread, table["start_ns"].to_numpy(np.int64))
    time[owned] = trace.ops["start_ns"].to_numpy(np.int64)[op[owned]]
    launched = launch >= 0
    thread[launched] = trace.launches["thread"].to_numpy(np.int64)[launch[launched]]
    time[launched] = trace.launches["start_ns"].to_numpy(np.int64)[launch[launched]]
    return Submission(thread, time)


def launch_names(trace: Trace, pattern: re.Pattern[str]) -> Bools:
    """Which rows of `trace.launches` call an API whose name matches; tested once per distinct name."""
    names = trace.launches["name"].to_numpy(np.int64)
    codes = np.unique(names)
    matching = [code for code in codes.tolist() if pattern.search(trace.text(code))]
    return np.isin(names, matching)


def unanswered_launches(trace: Trace, activity: Activity) -> Ints:
    """Rows of `trace.launches` that started a kernel or graph of which nothing was recorded.

    Empty where no activity has a launch at all: then the trace has no correlations, and absence says nothing.
    """
    launch = activity.table["launch"].to_numpy(np.int64)
    answered = np.zeros(len(trace.launches), np.bool_)
    answered[launch[launch >= 0]] = True
    if activity.on_cpu or not answered.any():
        return np.empty(0, np.int64)
    return np.flatnonzero(launch_names(trace, _KERNEL_LAUNCH) & ~answered)


def graph_launched(trace: Trace, activity: Activity) -> Bools:
    """Which activity rows a recorded graph launch replayed."""
    launch = activity.table["launch"].to_numpy(np.int64)
    if activity.on_cpu:
        return np.zeros(len(launch), np.bool_)
    found: Bools = replayed(trace, launch) & (launch >= 0)
    return found


class SpanMap:
    """For each thread, which of some properly nested host intervals is the innermost around a time.

    Args:
        spans: a frame with thread, start_ns, end_ns and owner (int >= 0); intervals are half open.
    """

    def __init__(self, spans: pd.DataFrame) -> None:
        """Sort the intervals once, thread by thread."""
        threads = spans["thread"].to_numpy(np.int64)
        self._edges = {key: _edges(spans[threads == key]) for key in np.unique(threads).tolist()}

    def locate(self, thread: npt.NDArray[np.int64], time_ns: npt.NDArray[np.int64]) -> Ints:
        """The owner of the innermost interval around each (thread, time), MISSING outside all."""
        out = np.full(len(thread), MISSING, np.int64)
        for key, (times, owners) in self._edges.items():
            rows = np.flatnonzero(thread == key)
            out[rows] = owners[np.searchsorted(times, time_ns[rows], side="right")]
        return out


def _edges(spans: pd.DataFrame) -> tuple[Ints, Ints]:
    """Times at which the innermost owner changes, and the owner before each (one more than times)."""
    ordered = spans.sort_values(["start_ns", "end_ns"], ascending=[True, False], kind="stable")
    times: list[int] = []
    owners: list[int] = [MISSING]
    stack: list[tuple[int, int]] = []

    def close(until: int) -> None:
        while stack and stack[-1][0] <= until:
            times.append(stack.pop()[0])
            owners.append(stack[-1][1] if stack else MISSING)

    columns = (ordered["start_ns"].tolist(), ordered["end_ns"].tolist(), ordered["owner"].tolist())
    for start, end, owner in zip(*columns, strict=True):
        if end <= start:
            continue
        close(start)
        end = min(end, stack[-1][0]) if stack else end
        times.append(start)
        owners.append(owner)
        stack.append((end, owner))
    close(max((end for end, _ in stack), default=0))
    return np.array(times, np.int64), np.array(owners, np.int64)
