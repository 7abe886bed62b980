"""Who made the gaps: the runtime call, the op around it and the Python frame, summed over gaps that look alike.

A wait or an allocation is named by its call, by the outermost op around it, and by the innermost Python frame that is
neither PyTorch's nor built in, with what that frame called. Work of the host between ops is named by the op before it,
the frame and the annotation around it. Launching is named by its call alone: its ops are those of the whole model.

What could be wrong: frames shorter than what the reader keeps are missing, so that a short gap is named by a frame
further out; texts come from the trace and are hostile until they are escaped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.attribution import innermost
from traceanalyzer.analysis.idle.divide import BUCKETS, Divided
from traceanalyzer.analysis.idle.host import Host
from traceanalyzer.analysis.intervals import Ints
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.trace.nesting import parents
from traceanalyzer.trace.tables import MISSING, USER, Trace

COLUMNS = ("phase", "cause", "bucket", "call", "op", "frame", "during", "ns", "gaps", "longest_ns", "others")
MOST_NAMED = 5
"""Culprits named per phase and cause, the longest; the others are one row."""

_OF_PYTHON = re.compile(
    r"^torch/|^<|^(threading|contextlib|functools|runpy|queue|selectors|asyncio)\.py\(|^nn\.Module: "
)
_BUILT_IN = re.compile(r"^<built-in (?:function|method) ([\w.]+)")
_STEP_LABELS = ("ta.step[", "ProfilerStep#", "execute_", "step[", "prefill[", "decode[")
_CALLED = ("sync", "sync_restart", "alloc")
_OWN = ("host", "host_in_step", "wait_input", "wait_rank")
_LAUNCHED = ("launch", "graph_launch")
_KEYS = ["phase", "cause", "call", "op", "frame", "during"]


def culprits(timeline: Timeline, divided: Divided) -> pd.DataFrame:
    """The causes of idle time by who made them, the longest of a phase and cause first.

    Returns:
        One row per phase, cause and culprit with the columns `COLUMNS`: `call`, `op`, `frame` and `during` are texts,
        "" where there is none; `ns` and `gaps` are sums, `longest_ns` the most of one gap; `others` is how many
        culprits a row without names stands for, 0 for a named one. The rows sum to the idle time exactly.
    """
    names = _Names(timeline, divided)
    pieces = [names.pieces(cause) for cause in divided.parts if (divided.parts[cause] > 0).any()]
    if not pieces:
        return pd.DataFrame(columns=list(COLUMNS))
    table = pd.concat(pieces, ignore_index=True)
    grouped = table.groupby(_KEYS, sort=True)["ns"].agg(ns="sum", gaps="size", longest_ns="max").reset_index()
    grouped = grouped.sort_values(["phase", "cause", "ns", *_KEYS[2:]], ascending=[True, True, False, *[True] * 4])
    place = grouped.groupby(["phase", "cause"]).cumcount()
    named = grouped[place < MOST_NAMED].assign(others=0)
    rest = grouped[place >= MOST_NAMED].groupby(["phase", "cause"], as_index=False)
    other = rest.agg(ns=("ns", "sum"), gaps=("gaps", "sum"), longest_ns=("longest_ns", "max"), others=("ns", "size"))
    rows = pd.concat([named, other.assign(**dict.fromkeys(_KEYS[2:], MISSING))], ignore_index=True)
    rows = rows.assign(
        phase=divided.phases[rows["phase"].to_numpy(np.int64)],
        bucket=rows["cause"].map(BUCKETS),
        **{key: names.texts(key, rows[key].to_numpy(np.int64)) for key in _KEYS[2:]},
    )
    return rows[list(COLUMNS)].reset_index(drop=True)


@dataclass(frozen=True)
class _Names:
    """Looks up who made a piece of a gap. Codes are those of the trace's strings; frames have codes of their own."""

    timeline: Timeline
    divided: Divided

    @cached_property
    def _host(self) -> Host:
        return Host(self.timeline)

    @property
    def _trace(self) -> Trace:
        return self.timeline.trace

    @cached_property
    def _frames(self) -> pd.DataFrame:
        frames = self._trace.frames
        start = frames["start_ns"].to_numpy(np.int64)
        end = start + frames["duration_ns"].to_numpy(np.int64)
        return frames.assign(parent=parents(frames["thread"].to_numpy(), start, end))

    @cached_property
    def _annotations(self) -> pd.DataFrame:
        """The host's annotations but for the marks of steps, in the order that `innermost` needs."""
        found = self._trace.annotations
        marks = [code for code in found["name"].unique() if self._trace.text(int(code)).startswith(_STEP_LABELS)]
        own = found[(found["kind"] == USER) & (found["thread"] >= 0) & ~found["name"].isin(marks)]
        own = own.assign(before=-own["duration_ns"]).sort_values(["thread", "start_ns", "before"], kind="stable")
        start = own["start_ns"].to_numpy(np.int64)
        end = start + own["duration_ns"].to_numpy(np.int64)
        return own.assign(parent=parents(own["thread"].to_numpy(), start, end)).reset_index(drop=True)

    @cached_property
    def _labels(self) -> dict[str, int]:
        """The code of every frame's label so far, in order of their codes."""
        return {}

    def pieces(self, cause: str) -> pd.DataFrame:
        """The parts of gaps that a cause has, each with the codes of who made it."""
        ns = self.divided.parts[cause]
        (gap,) = np.nonzero(ns > 0)
        none = np.full(len(gap), MISSING, np.int64)
        call, op, frame, during = none, none, none, none
        if cause in _CALLED:
            mask = self._host.allocates if cause == "alloc" else self._host.waits
            launch = self._last_call(gap, mask)
            call = _coded(self._trace.launches["name"], launch)
            at = _coded(self._trace.launches["start_ns"], launch)
            op, frame = self._outermost(gap, at), self._frame(gap, at)
        elif cause in _OWN:
            at = self.divided.until[gap] - ns[gap] // 2
            op, frame, during = self._op_before(gap, at), self._frame(gap, at), self._annotation(gap, at)
        elif cause in _LAUNCHED:
            launch = self.timeline.table["launch"].to_numpy(np.int64)[self.divided.row[gap]]
            call = _coded(self._trace.launches["name"], launch)
        return pd.DataFrame({
            "phase": self.divided.phase[gap], "cause": cause, "call": call, "op": op, "frame": frame,
            "during": during, "ns": ns[gap],
        })  # fmt: skip

    def texts(self, key: str, codes: Ints) -> npt.NDArray[np.object_]:
        """What the codes of a column stand for."""
        known: Sequence[str] = list(self._labels) if key == "frame" else self._trace.strings
        return np.array([known[code] if code >= 0 else "" for code in codes.tolist()], object)

    def _last_call(self, gap: Ints, mask: npt.NDArray[np.bool_]) -> Ints:
        """The row of the last of some calls on the gap's thread that began before the host went on to launch."""
        found = np.full(len(gap), MISSING, np.int64)
        launches = self._trace.launches
        of, begin = launches["thread"].to_numpy(np.int64), launches["start_ns"].to_numpy(np.int64)
        thread = self.divided.thread[gap]
        for code in np.unique(thread[thread >= 0]):
            rows = np.flatnonzero(mask & (of == code))
            asked = np.flatnonzero(thread == code)
            place = np.searchsorted(begin[rows], self.divided.until[gap[asked]], side="left") - 1
            found[asked] = np.where(place >= 0, rows[np.maximum(place, 0)] if len(rows) else MISSING, MISSING)
        return found

    def _outermost(self, gap: Ints, at: Ints) -> Ints:
        ops = self._trace.ops
        row = innermost(ops, self.divided.thread[gap], at)
        above = np.append(ops["parent"].to_numpy(np.int64), MISSING)  # a row that is MISSING takes the last
        while len(climbing := np.flatnonzero(above[row] >= 0)):
            row[climbing] = above[row[climbing]]
        return _coded(ops["name"], row)

    def _op_before(self, gap: Ints, at: Ints) -> Ints:
        """The last outermost op of the thread that began before a time."""
        ops = self._trace.ops
        found = np.full(len(gap), MISSING, np.int64)
        root, of = ops["parent"].to_numpy() < 0, ops["thread"].to_numpy(np.int64)
        begin, thread = ops["start_ns"].to_numpy(np.int64), self.divided.thread[gap]
        for code in np.unique(thread[thread >= 0]):
            rows = np.flatnonzero(root & (of == code))
            asked = np.flatnonzero(thread == code)
            place = np.searchsorted(begin[rows], at[asked], side="right") - 1
            found[asked] = np.where(place >= 0, rows[np.maximum(place, 0)] if len(rows) else MISSING, MISSING)
        return _coded(ops["name"], found)

    def _annotation(self, gap: Ints, at: Ints) -> Ints:
        return _coded(self._annotations["name"], innermost(self._annotations, self.divided.thread[gap], at))

    def _frame(self, gap: Ints, at: Ints) -> Ints:
        """Codes into `_labels`: the innermost frame that is not Python's or PyTorch's own, with what it called."""
        frames = self._frames
        row = innermost(frames, self.divided.thread[gap], at)
        above, name = frames["parent"].to_numpy(np.int64), frames["name"].to_numpy(np.int64)
        of: dict[int, int] = {int(one): self._label(int(one), above, name) for one in np.unique(row[row >= 0])}
        return np.array([of.get(one, MISSING) for one in row.tolist()], np.int64)

    def _label(self, row: int, above: Ints, name: Ints) -> int:
        inner = _BUILT_IN.match(self._trace.text(int(name[row])))
        while row >= 0 and _OF_PYTHON.search(self._trace.text(int(name[row]))):
            row = int(above[row])
        outer = self._trace.text(int(name[row])) if row >= 0 else ""
        label = " in ".join(part for part in (inner[1] if inner else "", outer) if part)
        if not label:
            return MISSING
        return self._labels.setdefault(label, len(self._labels))


def _coded(column: pd.Series, row: Ints) -> Ints:
    """The values of a column at some rows, MISSING for none."""
    return np.append(column.to_numpy(np.int64), MISSING)[row]
