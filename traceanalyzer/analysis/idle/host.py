"""What a host thread did in given intervals of time, from its runtime calls, ops and Python frames.

Each instant of an interval goes to the first of these that holds in it:

    artefact      the profiler was at work: it emptied its buffers or asked for new ones
    wait_rank     it was in a collective that the host itself carries out, or in a barrier
    sync          it was in a runtime call that waits for the device
    alloc         it was in a call that allocates or frees device memory
    wait_input    between two steps: no op and no call ran, and its Python stack waits for something to come
    host          between two steps: no op and no call ran
    host_in_step  inside a step: no op and no call ran for longer than the Python between two ops takes

What remains is launching: ops, other calls and the short Python between them.

What could be wrong: without Python frames nobody knows what a host waits for between two steps; and a thread that was
preempted looks like one that works.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.intervals import Ints, Union, covered, gaps, union
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.analysis.waits import waiting_calls
from traceanalyzer.trace.tables import Trace

Bools = npt.NDArray[np.bool_]

CAUSES = ("artefact", "wait_rank", "sync", "alloc", "wait_input", "host", "host_in_step")
"""What a host does instead of launching, in order of precedence."""
LONG_PYTHON_NS = 200_000
"""Between two ops of one step Python takes tens of microseconds; stretches longer than this are work of their own."""

_ALLOCATES = re.compile(r"^(cuda|hip|cu)(Malloc|Free|Mem(Alloc|Free|Map|Unmap|Create|Release|SetAccess))")
_COLLECTIVE = re.compile(r"^(gloo|mpi|ucc):|^c10d::(monitored_)?barrier$")
"""Collectives that block the thread that asks for them. Source: the names that torch.distributed's backends record."""
_PROFILER = re.compile(r"^(Activity )?Buffer (Request|Flush)$|^Instrumentation$")
"""The profiler's own overhead, as Kineto names CUPTI's kinds of it (CUpti_ActivityOverheadKind)."""
_WAITS_FOR_INPUT = re.compile(
    r"<built-in method (poll|select|control|accept|recv\w*|readline)\b"
    r"|^(selectors|socketserver|queue)\.py\(\d+\): (select|get)$|^(poll|socket)\.py\(\d+\): (poll|recv\w*)$"
)
"""Python's and ZeroMQ's ways to wait for a message. Source: the modules select, selectors, queue, socket; zmq.sugar."""


def named(trace: Trace, pattern: re.Pattern[str]) -> Bools:
    """Which codes of the trace's strings name something that matches; at least one element."""
    return np.array([pattern.search(text) is not None for text in trace.strings] or [False], np.bool_)


@dataclass(frozen=True)
class Host:
    """The host threads of one device's trace."""

    timeline: Timeline

    @property
    def trace(self) -> Trace:
        """What was recorded."""
        return self.timeline.trace

    @cached_property
    def waits(self) -> Bools:
        """Which launches waited for the device."""
        return waiting_calls(self.timeline)

    @cached_property
    def allocates(self) -> Bools:
        """Which launches allocated or freed device memory, without having been a wait."""
        name = self.trace.launches["name"].to_numpy(np.int64)
        return np.asarray(named(self.trace, _ALLOCATES)[name] & ~self.waits)

    @cached_property
    def collective(self) -> Bools:
        """Which ops are collectives that the host waits in."""
        return np.asarray(named(self.trace, _COLLECTIVE)[self.trace.ops["name"].to_numpy(np.int64)])

    @cached_property
    def for_input(self) -> Bools:
        """Which frames wait for something to come."""
        return np.asarray(named(self.trace, _WAITS_FOR_INPUT)[self.trace.frames["name"].to_numpy(np.int64)])

    @cached_property
    def profiled(self) -> Union:
        """When the profiler was at work."""
        frames = self.trace.frames
        return _union(frames[named(self.trace, _PROFILER)[frames["name"].to_numpy(np.int64)]])

    def did(self, thread: Ints, start: Ints, end: Ints, between_steps: Bools) -> Mapping[str, Ints]:
        """Nanoseconds of each interval by what its thread did, for each of `CAUSES`.

        Args:
            thread: the thread's code, MISSING for none: nothing is then known. Shape: (n,).
            start, end: the intervals, in nanoseconds. Shapes: (n,), (n,).
            between_steps: whether it lies between two steps. Shape: (n,).
        """
        found = {cause: np.zeros(len(thread), np.int64) for cause in CAUSES}
        for code in np.unique(thread[thread >= 0]):
            asked = np.flatnonzero(thread == code)
            parts = self._by_thread(int(code), start[asked], end[asked], between_steps[asked])
            for cause, ns in parts.items():
                found[cause][asked] = ns
        return found

    def _by_thread(self, code: int, start: Ints, end: Ints, between: Bools) -> dict[str, Ints]:
        launches, ops, frames = self.trace.launches, self.trace.ops, self.trace.frames
        call, op = launches["thread"].to_numpy() == code, ops["thread"].to_numpy() == code
        frame = (frames["thread"].to_numpy() == code) & self.for_input
        root = op & (ops["parent"].to_numpy() < 0)
        taken = [self.profiled, _union(ops[op & self.collective]), _union(launches[call & self.waits])]
        taken.append(_union(launches[call & self.allocates]))
        parts: dict[str, Ints] = {}
        union_of, before = union(np.empty(0, np.int64), np.empty(0, np.int64)), np.zeros(len(start), np.int64)
        for cause, these in zip(CAUSES[:4], taken, strict=True):
            union_of = joined(union_of, these)
            until = covered(union_of, start, end)
            parts[cause], before = until - before, until
        recorded = joined(_union(launches[call]), _union(ops[root]))
        outside = end - start - covered(joined(union_of, recorded), start, end)
        waiting = joined(recorded, _union(frames[frame]))
        silent = np.maximum(end - start - covered(joined(union_of, waiting), start, end), 0)
        parts["wait_input"] = np.where(between, outside - silent, 0)
        parts["host"] = np.where(between, silent, 0)
        long = _long_silence(joined(union_of, recorded), start, end)
        parts["host_in_step"] = np.where(between, 0, np.minimum(long, outside))
        return parts


def joined(one: Union, other: Union) -> Union:
    """The union of two unions."""
    return union(np.concatenate((one.starts, other.starts)), np.concatenate((one.ends, other.ends)))


def _union(rows: pd.DataFrame) -> Union:
    begin = rows["start_ns"].to_numpy(np.int64)
    return union(begin, begin + rows["duration_ns"].to_numpy(np.int64))


def _long_silence(recorded: Union, start: Ints, end: Ints) -> Ints:
    """How much of each interval lies in stretches of at least `LONG_PYTHON_NS` in which nothing was recorded."""
    begin, until = gaps(recorded)
    keep = until - begin >= LONG_PYTHON_NS
    return covered(union(begin[keep], until[keep]), start, end)
