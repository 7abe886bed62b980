"""The communication kernels of one device, as the comparison of ranks needs them, with the device's other work beside.

Whether a send-and-receive kernel connects pipeline stages or exchanges experts (NCCL runs an all-to-all as sends and
receives) is told by the op that launched it, else by how many of them a step has: stages exchange once or twice.

What could be wrong: kernels that compute and communicate at once count as communication, so that what they compute is
missing from `compute`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceanalyzer.analysis.intervals import Ints, Union, union
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.trace.tables import KERNEL, MISSING, Trace

Bools = npt.NDArray[np.bool_]

LEAVE_TOGETHER = frozenset((
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "dispatch", "combine", "collective",
))  # fmt: skip
"""Roles of communication that no rank leaves before all have come."""
UNKNOWN = 1 << 62
"""Slack of what is not known to wait for its launch."""
_STAGES_PER_STEP = 4
"""A step with more sends and receives than this exchanges experts: it has at least two per layer then."""
_BETWEEN_STAGES = re.compile(r"(?<![a-z])i?(?:send|recv)_?(?![a-z_])", re.IGNORECASE)
_ALL_TO_ALL = re.compile(r"all_?to_?all|alltoall", re.IGNORECASE)


@dataclass(frozen=True)
class Calls:
    """The communication of one device.

    Args:
        line: the device.
        base_ns: what turns its times into times of its host's clock.
        key: per call of a collective the text that is the same on all ranks, as a code common to all devices.
        start, end: ns on the trace's clock, in order of `start`.
        slack: by how much the call could have ended earlier, and all that follows up to the next one with it.
        step: row label in `line.steps`, MISSING where none.
        together: calls that no rank leaves before all have come.
        compute: union of the kernels that are no communication.
        collective: union of the collectives.
        passing: union of the kernels between pipeline stages.
    """

    line: Timeline
    base_ns: int
    key: Ints
    start: Ints
    end: Ints
    slack: Ints
    step: Ints
    together: Bools
    compute: Union
    collective: Union
    passing: Union

    @property
    def rank(self) -> int | None:
        """The device's rank."""
        return self.line.device.rank

    @property
    def length(self) -> Ints:
        """Duration of every call, ns."""
        lengths: Ints = self.end - self.start
        return lengths


def of_device(line: Timeline, keys: dict[str, int]) -> Calls:
    """The communication of a device.

    Args:
        line: the device.
        keys: code of every text seen on any device so far; texts of this one are added.
    """
    table, trace = line.table, line.trace
    start = table["start_ns"].to_numpy(np.int64)
    end = start + table["duration_ns"].to_numpy(np.int64)
    kernel = (table["kind"] == KERNEL).to_numpy()
    comm = kernel & (table["category"] == "comm").to_numpy()
    passing = comm & _between_stages(line, comm)
    collective = comm & ~passing
    (rows,) = np.nonzero(collective)
    roles = table["role"].to_numpy(object)[rows]
    names = table["name"].to_numpy(np.int64)[rows]
    code = {int(name): keys.setdefault(trace.text(int(name)), len(keys)) for name in np.unique(names)}
    return Calls(
        line=line,
        base_ns=trace.metadata.base_time_ns,
        key=np.array([code[int(name)] for name in names], np.int64),
        start=start[rows],
        end=end[rows],
        slack=_slack(line, rows),
        step=table["step"].to_numpy(np.int64)[rows],
        together=np.isin(roles.astype(str), list(LEAVE_TOGETHER)),
        compute=union(start[kernel & ~comm], end[kernel & ~comm]),
        collective=union(start[collective], end[collective]),
        passing=union(start[passing], end[passing]),
    )


def _slack(line: Timeline, rows: Ints) -> Ints:
    """The least time that an activity after each row, up to the next row, had been launched for before it started.

    What it takes to start an activity on an idle device does not count. Times that are not known are large.
    """
    if not len(rows):
        return rows
    started, launched = (line.table[name].to_numpy(np.int64) for name in ("start_ns", "launch_end_ns"))
    known = launched != MISSING
    ahead = np.where(known, started - launched, UNKNOWN)
    ahead -= max(0, int(ahead.min()))
    own: Ints = np.minimum.reduceat(np.append(ahead, UNKNOWN), rows + 1)
    upcoming = np.append(ahead[rows[1:]], UNKNOWN)
    slack: Ints = np.minimum(own, upcoming)
    return slack


def _between_stages(line: Timeline, comm: Bools) -> Bools:
    """Which rows are sends and receives between pipeline stages."""
    table = line.table
    exchanged = comm & (table["role"] == "send_recv").to_numpy()
    out = np.zeros(len(table), np.bool_)
    (rows,) = np.nonzero(exchanged)
    if not len(rows):
        return out
    owner = table["op"].to_numpy(np.int64)[rows]
    told = {int(op): _told(line.trace, int(op)) for op in np.unique(owner)}
    steps = max(1, len(np.unique(table["step"].to_numpy()[rows])))
    by_count = len(rows) / steps <= _STAGES_PER_STEP
    out[rows] = [by_count if (said := told[int(op)]) is None else said for op in owner]
    return out


def _told(trace: Trace, op: int) -> bool | None:
    """Whether an op or what encloses it names a send or a receive (True) or an all-to-all (False); None: neither."""
    parents = trace.ops["parent"].to_numpy()
    while op != MISSING:
        text = " ".join(trace.text(int(trace.ops[column].iloc[op])) for column in ("name", "concrete"))
        if _ALL_TO_ALL.search(text):
            return False
        if _BETWEEN_STAGES.search(text):
            return True
        op = int(parents[op])
    return None
