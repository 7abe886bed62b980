"""Which steps of the ranks are the same step, who was slow in it, and what that cost the others.

Steps are matched through the collectives in them. A rank that comes last to a collective does not wait in it; what the
others would have waited less, had it come with the last but one, is its delay. Summed over a step, that is what the
step would win if this rank alone were no slower than the next.

What could be wrong: a delay early in a step can be made good by a rank that is faster later in it; the sum then says
more than the step would win.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.intervals import Ints
from traceanalyzer.analysis.ranks.groups import Group
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.trace.tables import MISSING

Floats = npt.NDArray[np.float64]

NAMED_SHARE = 0.01
NAMED_NS = 2_000
"""A step has a slowest rank where it delays the others by this share of the step, and by so much."""


@dataclass(frozen=True)
class Exchange:
    """What each matched collective took on each member of a group; a row per collective, a column per member.

    Args:
        rows: the members' calls, MISSING where a member has none.
        wait_ns: how long each member waited for the others; NaN where it has no call.
        delay_ns: what the member that came last delayed the others by; 0 for all others.
    """

    rows: Ints
    wait_ns: Floats
    delay_ns: Floats

    @property
    def complete(self) -> npt.NDArray[np.bool_]:
        """Collectives that every member has."""
        everywhere: npt.NDArray[np.bool_] = (self.rows != MISSING).all(axis=1)
        return everywhere


@dataclass(frozen=True)
class RankStep:
    """One step that all members of a group share.

    Args:
        labels: the step of each member, as row labels of its `Timeline.steps`.
        phase: of the first member's step.
        start_ns: on the first member's clock.
        duration_ns: the longest one's.
        waiting_ns: what a member waited in its collectives, on average.
        slowest: the member that delayed the others noticeably; None where none did.
        delay_ns: by how much the slowest one delayed them; 0 where none did.
    """

    labels: tuple[int, ...]
    phase: str
    start_ns: int
    duration_ns: int
    waiting_ns: float
    slowest: int | None
    delay_ns: float


def exchange(group: Group, rows: Ints) -> Exchange:
    """What the matched collectives of a group took.

    Args:
        group: at least two members.
        rows: see `groups.together`.
    """
    length = np.full(rows.shape, np.nan)
    for column, member in enumerate(group.members):
        (own,) = np.nonzero(rows[:, column] != MISSING)
        length[own, column] = member.calls.length[rows[own, column]]
    several = (rows != MISSING).sum(axis=1) > 1
    wait = np.full(rows.shape, np.nan)
    wait[several] = length[several] - np.nanmin(length[several], axis=1, keepdims=True)
    delay = np.zeros(rows.shape)
    (complete,) = np.nonzero((rows != MISSING).all(axis=1))
    if len(complete):
        ordered = np.sort(length[complete], axis=1)
        delay[complete, np.argmin(length[complete], axis=1)] = ordered[:, 1] - ordered[:, 0]
    return Exchange(rows, wait, delay)


def matched(group: Group, found: Exchange) -> list[RankStep]:
    """The whole steps that all members of a group share, in order of time."""
    lines = [member.calls.line for member in group.members]
    step = np.full(found.rows.shape, MISSING, np.int64)
    for column, member in enumerate(group.members):
        (own,) = np.nonzero(found.rows[:, column] != MISSING)
        step[own, column] = _whole(lines[column], member.calls.step[found.rows[own, column]])
    (known,) = np.nonzero((step != MISSING).all(axis=1))
    if not len(known):
        return []
    known = known[np.argsort(step[known, 0], kind="stable")]
    _, begin = np.unique(step[known, 0], return_index=True)
    middle = (begin + np.append(begin[1:], len(known))) // 2  # the collectives in the middle are surely of this step
    labels = step[known[middle]]
    delays = np.add.reduceat(found.delay_ns[known], begin, axis=0)
    waits = np.add.reduceat(np.nan_to_num(found.wait_ns[known]).mean(axis=1), begin)
    return _rows(lines, labels, delays, waits)


def _rows(lines: list[Timeline], labels: Ints, delays: Floats, waits: Floats) -> list[RankStep]:
    """The steps with these labels, a column per member."""
    places = [line.steps.index.get_indexer(pd.Index(labels[:, column])) for column, line in enumerate(lines)]
    durations = [line.steps["duration_ns"].to_numpy(np.int64)[place] for line, place in zip(lines, places, strict=True)]
    duration = np.max(durations, axis=0)
    start = lines[0].steps["start_ns"].to_numpy(np.int64)[places[0]]
    phases = lines[0].steps["phase"].to_numpy(object)[places[0]]
    slowest = np.argmax(delays, axis=1)
    delay = delays[np.arange(len(labels)), slowest]
    noticed = (delay >= np.maximum(NAMED_NS, NAMED_SHARE * duration)) & (delay > delays.sum(axis=1) / 2)
    return [
        RankStep(
            labels=tuple(labels[row].tolist()),
            phase=str(phases[row]),
            start_ns=int(start[row]),
            duration_ns=int(duration[row]),
            waiting_ns=float(waits[row]),
            slowest=int(slowest[row]) if noticed[row] else None,
            delay_ns=float(delay[row]) if noticed[row] else 0.0,
        )
        for row in np.argsort(start, kind="stable").tolist()
    ]


def _whole(line: Timeline, step: Ints) -> Ints:
    """The step that each step is a part of (a draft pass belongs to its step); MISSING for none, and for cut ones."""
    parents, complete = line.steps["parent_step"], line.steps["complete"].astype(bool)
    whole: dict[int, int] = {MISSING: MISSING}
    for label in np.unique(step):
        own = int(label)
        while own != MISSING and own in parents.index and int(parents.loc[own]) >= 0:
            own = int(parents.loc[own])
        whole[int(label)] = own if own in complete.index and bool(complete.loc[own]) else MISSING
    return np.array([whole[int(label)] for label in step], np.int64)
