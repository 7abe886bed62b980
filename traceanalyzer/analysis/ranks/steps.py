"""Which steps of the ranks are the same step, who was slow in it, and what that cost the others.

Steps are matched through the collectives in them. A rank that comes last to a collective makes it end later, by its
lead: how much later it came than the last but one. What follows ends later too, as far as it was launched already and
only waited for the GPU: where it was launched just in time, the host was what limited, and nothing is passed on. So of
a step's collectives, with leads d and slacks s of the other ranks, the step would end earlier by e = d + min(e before,
s before), from one collective to the next, if this rank alone were no slower than the others. That is its delay.

What could be wrong: what the other hosts would do earlier if they too had waited less is not known; after a step each
rank starts anew here.
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
        lead_ns: how much later than the last but one a member came that came last; else 0.
        slack_ns: by how much what follows could be earlier on all other members.
    """

    rows: Ints
    wait_ns: Floats
    lead_ns: Floats
    slack_ns: Floats

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
        delays_ns: what the step would win if this member alone were no slower than the next.
        slowest: the member that delayed the others noticeably; None where none did.
    """

    labels: tuple[int, ...]
    phase: str
    start_ns: int
    duration_ns: int
    waiting_ns: float
    delays_ns: tuple[float, ...]
    slowest: int | None

    @property
    def delay_ns(self) -> float:
        """By how much the slowest member delayed the others; 0 where none did noticeably."""
        return 0.0 if self.slowest is None else self.delays_ns[self.slowest]


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
    return Exchange(rows, wait, *_leads(group, rows, length))


def _leads(group: Group, rows: Ints, length: Floats) -> tuple[Floats, Floats]:
    """The leads of the last members, and the others' least slack; see `Exchange`."""
    lead, slack = np.zeros(rows.shape), np.full(rows.shape, np.inf)
    (complete,) = np.nonzero((rows != MISSING).all(axis=1))
    if not len(complete):
        return lead, slack
    shortest = np.argmin(length[complete], axis=1)
    ordered = np.sort(length[complete], axis=1)
    lead[complete, shortest] = ordered[:, 1] - ordered[:, 0]
    own = np.column_stack([member.calls.slack[rows[complete, place]] for place, member in enumerate(group.members)])
    least = np.sort(own, axis=1)[:, :2]
    tightest = np.arange(own.shape[1]) == np.argmin(own, axis=1)[:, None]
    slack[complete] = np.where(tightest, least[:, 1:], least[:, :1])
    return lead, slack


def _delays(found: Exchange, ordered: Ints, begin: Ints) -> Floats:
    """What each member delayed each step by: a row per step.

    The recurrence of the module docstring unfolds to the least, over all places in the step, of the slack there and the
    sum of the leads after it.

    Args:
        found: the collectives.
        ordered: those in matched steps, step by step in order of time.
        begin: where in `ordered` each step begins.
    """
    total = np.cumsum(found.lead_ns[ordered], axis=0)
    last = np.append(begin[1:], len(ordered)) - 1
    before = total[begin] - found.lead_ns[ordered[begin]]
    held = found.slack_ns[ordered] - total
    held[last] = np.inf  # what comes after the step does not matter
    delays: Floats = total[last] + np.minimum(-before, np.minimum.reduceat(held, begin, axis=0))
    return delays


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
    delays = _delays(found, known, begin)
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
            delays_ns=tuple(delays[row].tolist()),
            slowest=int(slowest[row]) if noticed[row] else None,
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
