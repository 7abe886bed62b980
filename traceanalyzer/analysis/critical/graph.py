"""One step as events that wait for each other: host calls in the order of their thread, activity in that of its stream.

    a call begins      after the one before it on its thread, and what the host did in between
    a call returns     after its own time; a call that waited for the device, when that activity had ended
    an activity starts when the one before it on its stream has ended and its launch call has come through; where it was
                       queued and its stream had long been free, when what ended last on another stream had
    an activity ends   after its duration

Every event holds what it takes from each event that it waits for. These times are such that the events, worked out one
after the other, come when they were recorded; what no dependency explains stays as a delay. Taking times away and
working them out again says when the step would have ended.

What could be wrong: dependencies between streams are seen only where they delayed something; the host is taken to do
the same things whatever the device does; threads wait for each other only through the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from traceanalyzer.analysis.critical.calls import Calls, calls_of
from traceanalyzer.analysis.idle import LAUNCH_LATENCY_NS
from traceanalyzer.analysis.intervals import Ints
from traceanalyzer.analysis.late import late
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.trace.tables import KERNEL, MISSING

MOST_ACTIVITY, MOST_CALLS = 10_000, 100_000
"""A step with more activity, or during the launching of which more calls were made, is not taken apart."""
MOST_QUEUE_NS = 5_000
"""A kernel that was queued starts within this time of the one before it."""

Part = tuple[str, int]
"""A kind of time, and nanoseconds of it."""

_RETURNS, _STARTS, _BEGINS = range(3)
_SPAN = ("start_ns", "end_ns")


@dataclass(frozen=True, slots=True)
class Edge:
    """What lies between an event and the one `on` which it waits. `blocked`: the host waits for the device there."""

    on: int
    parts: tuple[Part, ...]
    blocked: bool = False


@dataclass(slots=True)
class Event:
    """Something at one instant, as recorded, and what it waits for. Without that it comes when it was recorded."""

    at: int
    after: list[Edge] = field(default_factory=list)


@dataclass(frozen=True)
class Graph:
    """The events of one step, each after those it waits for.

    The step's time lies between the events `first`, its first activity's start, and `last`, that of the next step, or
    where none follows the end of its last activity.
    """

    events: list[Event]
    first: int
    last: int

    @property
    def step_ns(self) -> int:
        """The time of the step."""
        return self.events[self.last].at - self.events[self.first].at


def graph(line: Timeline, step: int) -> Graph | None:
    """The events of one step of a device; None where it has too many, or none of its launches was recorded.

    Args:
        line: the device.
        step: label of one of `line.steps` that is no part of another one.
    """
    begin, end, follows = _interval(line, step)
    start = line.table["start_ns"].to_numpy(np.int64)
    first, last = np.searchsorted(start, [begin, end])
    rows = line.table.iloc[first : last + follows]
    launched = rows["launch"].to_numpy(np.int64)
    launched = launched[launched >= 0]
    if not 0 < len(rows) <= MOST_ACTIVITY or not len(launched):
        return None
    if launched.max() - launched.min() > MOST_CALLS:  # rows of the trace's calls, which are in order of time
        return None
    return _Builder(line, rows, follows).build()


def _interval(line: Timeline, step: int) -> tuple[int, int, bool]:
    """From the step's start to the next one's, or to its own end where none follows."""
    begin, own_end = (int(line.steps[column].to_numpy(np.int64)[line.steps.index == step][0]) for column in _SPAN)
    whole = line.steps.loc[line.steps["parent_step"] < 0, "start_ns"].to_numpy(np.int64)
    later = whole[whole > begin]
    if line.steps.loc[[step], "period_ns"].isna().any() or not len(later):
        return begin, own_end, False
    return begin, int(later.min()), True


class _Builder:
    """Puts the events of one step together, in order of their recorded times."""

    def __init__(self, line: Timeline, rows: pd.DataFrame, follows: bool) -> None:
        self._start = rows["start_ns"].to_numpy(np.int64)
        self._stop = self._start + rows["duration_ns"].to_numpy(np.int64)
        self._launch = rows["launch"].to_numpy(np.int64)
        self._kernel = (rows["kind"] == KERNEL).to_numpy()
        self._follows = follows
        named = np.where(self._kernel, rows["category"].to_numpy(object), "memcpy")
        self._kinds = [str(name) if name in ("comm", "memcpy") else f"kernels.{name}" for name in named]
        self._idle_since = np.maximum.accumulate(np.concatenate((self._start[:1], self._stop[:-1])))
        called, returned = (rows[c].to_numpy(np.int64) for c in ("launch_start_ns", "launch_end_ns"))
        self._cut = line.unrecorded_between(self._idle_since, np.maximum(self._start, self._idle_since)) > 0
        behind = late(called, returned, self._kernel, self._idle_since) & (self._start > self._idle_since)
        self._late = behind & ~self._cut
        self._previous = _previous(rows["stream"].to_numpy(np.int64))
        following = int(self._launch[-1]) if follows and self._launch[-1] >= 0 else None
        self._calls: Calls = calls_of(line, np.unique(self._launch[self._launch >= 0]), following)
        gaps = (self._start - self._idle_since)[1:][~self._late[1:]]
        queued = gaps[(gaps > 0) & (gaps <= MOST_QUEUE_NS)]
        self._usual = int(np.median(queued)) if len(queued) else 0
        self._events: list[Event] = []
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._begun: dict[int, int] = {}
        self._returned: dict[int, int] = {}
        self._thread: dict[int, int] = {}

    def build(self) -> Graph:
        """The finished graph."""
        agenda = [(at, _STARTS, row) for row, at in enumerate(self._start.tolist())]
        for place, (begin, end) in enumerate(zip(self._calls.start.tolist(), self._calls.end.tolist(), strict=True)):
            agenda += [(begin, _BEGINS, place), (max(end, begin + 1), _RETURNS, place)]
        for _, what, place in sorted(agenda):
            if what == _STARTS:
                self._activity(place)
            elif what == _BEGINS:
                self._call_begins(place)
            else:
                self._call_returns(place)
        row = len(self._start) - 1
        last = self._starts[row] if self._follows else self._ends[int(np.argmax(self._stop))]
        return Graph(self._events, self._starts[0], last)

    def _add(self, at: int, *edges: Edge) -> int:
        self._events.append(Event(at, list(edges)))
        return len(self._events) - 1

    def _call_begins(self, place: int) -> None:
        thread, calls = int(self._calls.thread[place]), self._calls
        event = self._begun[place] = self._add(int(calls.start[place]))
        if thread in self._thread:
            own, gap = int(calls.own[place]), int(calls.gap[place])
            self._events[event].after.append(Edge(self._thread[thread], (("launch", gap - own), ("host", own))))

    def _call_returns(self, place: int) -> None:
        calls = self._calls
        begin, end, kind = int(calls.start[place]), int(calls.end[place]), str(calls.kind[place])
        held = self._held_by(begin, end) if kind in ("sync", "alloc") else None
        took = end - begin if held is None else min(end - int(self._stop[held]), end - begin)
        event = self._add(end, Edge(self._begun[place], ((kind, took),)))
        if held is not None:
            self._events[event].after.append(Edge(self._ends[held], ((kind, took),), blocked=True))
        self._returned[place] = self._thread[int(calls.thread[place])] = event

    def _held_by(self, begin: int, end: int) -> int | None:
        """The activity that a blocking call waited for: the last one that ended in it."""
        (inside,) = np.nonzero((self._stop > begin) & (self._stop <= end))
        known = [row for row in inside.tolist() if row in self._ends]
        return max(known, key=lambda row: int(self._stop[row])) if known else None

    def _activity(self, row: int) -> None:
        start, stop = int(self._start[row]), int(self._stop[row])
        edges = [*self._after_stream(row), *self._after_launch(row)] if row else []
        self._starts[row] = self._add(start, *edges)
        self._ends[row] = self._add(stop, Edge(self._starts[row], ((self._kinds[row], stop - start),)))

    def _after_stream(self, row: int) -> list[Edge]:
        """Wait for the activity before it on its stream, or for one of another stream that held it up."""
        start = int(self._start[row])
        previous = int(self._previous[row]) if self._previous[row] != MISSING else 0
        gap = start - int(self._stop[previous])
        if self._late[row]:
            return [Edge(self._ends[previous], (("latency", min(gap, self._usual)),))]
        if self._cut[row]:
            return [Edge(self._ends[previous], (("artefact", gap),))]
        if gap <= LAUNCH_LATENCY_NS:
            return [Edge(self._ends[previous], (("latency", gap),))]
        (ended,) = np.nonzero(self._stop[:row] <= start)
        other = int(ended[np.argmax(self._stop[ended])])
        near = start - int(self._stop[other])
        held = Edge(self._ends[other], (("latency" if near <= LAUNCH_LATENCY_NS else "unknown", near),))
        return [held, Edge(self._ends[previous], (("latency", min(gap, self._usual)),))]

    def _after_launch(self, row: int) -> list[Edge]:
        place = self._calls.place_of.get(int(self._launch[row]))
        if place is None or place not in self._begun:
            return []
        on = self._returned.get(place, self._begun[place]) if self._kernel[row] else self._begun[place]
        took = max(int(self._start[row]) - self._events[on].at, 0)
        kind = str(self._calls.kind[place])
        told = "graph_launch" if kind == "graph_launch" else "launch"
        if not self._late[row]:
            return [Edge(on, ((told, min(took, MOST_QUEUE_NS)),))]
        usual = min(took, LAUNCH_LATENCY_NS) if on != self._begun[place] else took
        return [Edge(on, ((told, usual), ("unknown", took - usual)))]


def _previous(stream: Ints) -> Ints:
    """The row before each one on the same stream, MISSING for none."""
    rows = pd.Series(np.arange(len(stream)))
    return rows.groupby(stream).shift(1).fillna(MISSING).to_numpy(np.int64)
