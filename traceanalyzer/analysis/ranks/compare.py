"""The devices of one run beside each other: what each computed, sent, waited, and who keeps the others waiting.

Communication time of a device is a union, and each instant of it is one of: hidden (another kernel runs), waiting (the
other ranks have not come), passing (point to point between pipeline stages), exposed (the rest: data moves and nothing
else happens).

What could be wrong: waiting is known only of matched collectives, so it is a lower bound where calls are unmatched; a
rank that was not given may be the one that all wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from traceanalyzer.analysis.intervals import Ints, Union, covered, union
from traceanalyzer.analysis.ranks.bubbles import Bubble, bubble
from traceanalyzer.analysis.ranks.calls import Calls, of_device
from traceanalyzer.analysis.ranks.groups import Group, Member, groups, together
from traceanalyzer.analysis.ranks.steps import Exchange, RankStep, exchange, matched
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.trace.tables import Note

CLEAR_SHARE = 0.02
"""A straggler costs this share of the matched steps' time."""
CLEAR_STEPS = 0.25
"""It is the slowest in this share of the steps; less may be chance."""
CLEAR_PART = 0.6
"""And so much of all delays in its group are its own."""
_CAUSE = 0.5
"""Time that a straggler has more of than the others, as a part of its delay, from which on that is the cause."""


Cause = Literal["compute", "idle"]


@dataclass(frozen=True)
class RankShare:
    """One device's part in the run, ns over its whole span unless said otherwise.

    Args:
        member: the device.
        group: the place of its group.
        busy_ns: union of all activity.
        compute_ns: union of the kernels that are no communication.
        comm_ns: union of communication: hidden + waiting + passing + exposed.
        waiting_ns: None where no collective was matched, and it is part of `exposed_ns` then.
        late_ns: how long after the first member it came to a matched collective, on average.
        delay_ns: what the matched steps would win if it alone were no slower than the next.
        last: matched collectives that it came last to.
        calls, matched_calls: its collectives, and those of them that all members have.
        range_compute_ns, range_busy_ns, range_idle_ns: what it computed, was busy without waiting, and stood still,
            from the first matched step to the last one (in the whole span where there is none).
    """

    member: Member
    group: int
    busy_ns: int
    compute_ns: int
    comm_ns: int
    hidden_ns: int
    waiting_ns: int | None
    passing_ns: int
    exposed_ns: int
    late_ns: float | None
    delay_ns: float | None
    last: int | None
    calls: int
    matched_calls: int
    range_compute_ns: int
    range_busy_ns: int
    range_idle_ns: int

    @property
    def line(self) -> Timeline:
        """The device."""
        return self.member.calls.line


@dataclass(frozen=True)
class Straggler:
    """The device that the others of its group wait for most.

    Args:
        share: the device.
        delay_ns: per matched step.
        delay_share: of the matched steps' time.
        steps, of_steps: matched steps in which it was the slowest, and all of them.
        part: of all delays in its group.
        cause: "compute" (its kernels take longer), "idle" (it stands still longer), or None.
    """

    share: RankShare
    delay_ns: float
    delay_share: float
    steps: int
    of_steps: int
    part: float
    cause: Cause | None

    @property
    def is_clear(self) -> bool:
        """Whether it costs enough, often enough, and hardly any other does."""
        often = self.steps >= CLEAR_STEPS * self.of_steps
        return self.delay_share >= CLEAR_SHARE and self.part >= CLEAR_PART and often


@dataclass(frozen=True)
class GroupSteps:
    """The matched steps of one group."""

    group: Group
    steps: tuple[RankStep, ...]


@dataclass(frozen=True)
class Ranks:
    """All devices of a run, compared. `imbalance`s are the largest over the mean in the matched steps, 1 being even;
    None where a group has none."""

    shares: tuple[RankShare, ...]
    groups: tuple[GroupSteps, ...]
    imbalance_compute: float | None
    imbalance_busy: float | None
    straggler: Straggler | None
    bubbles: tuple[Bubble, ...]

    @property
    def spread_ns(self) -> int | None:
        """How well the ends of the same collectives agree after alignment, at worst."""
        return max(
            (share.member.spread_ns for share in self.shares if share.member.spread_ns is not None), default=None
        )

    def of_line(self, line: Timeline) -> tuple[GroupSteps, list[RankShare]]:
        """The group of a device, and the parts of its members."""
        place = next(share.group for share in self.shares if share.line is line)
        return self.groups[place], [share for share in self.shares if share.group == place]

    @property
    def steps_matched(self) -> int:
        """Steps found on all members of their group."""
        return sum(len(group.steps) for group in self.groups)


def compare(lines: Sequence[Timeline]) -> Ranks | None:
    """Compare the devices of a run; None for a single one, and on CPUs."""
    if len(lines) < 2 or any(line.device.kind == "cpu" for line in lines):
        return None
    keys: dict[str, int] = {}
    devices = [of_device(line, keys) for line in lines]
    shares: list[RankShare] = []
    found: list[GroupSteps] = []
    for place, group in enumerate(groups(devices)):
        exchanged = exchange(group, together(group)) if len(group.members) > 1 else None
        steps = matched(group, exchanged) if exchanged else []
        found.append(GroupSteps(group, tuple(steps)))
        for column, member in enumerate(group.members):
            shares.append(_share(member, place, exchanged, column, steps))
    order = {id(line): place for place, line in enumerate(lines)}
    shares.sort(key=lambda share: order[id(share.line)])
    bubbles = [made for calls in devices if (made := bubble(calls)) is not None]
    alike = all(group.steps for group in found)  # whole spans may be windows of different lengths
    return Ranks(
        shares=tuple(shares),
        groups=tuple(found),
        imbalance_compute=_imbalance([share.range_compute_ns for share in shares]) if alike else None,
        imbalance_busy=_imbalance([share.range_busy_ns for share in shares]) if alike else None,
        straggler=_straggler(shares, found),
        bubbles=tuple(bubbles),
    )


def notes(found: Ranks | None) -> list[Note]:
    """Says which ranks could not be put on one clock."""
    if found is None:
        return []
    apart = [share for share in found.shares if share.member.offset_ns is None]
    named = ", ".join(str(share.line.device.rank) for share in apart[:8])
    return [Note("ranks_not_aligned", "warning", len(apart), named)] if apart else []


def _share(member: Member, group: int, exchanged: Exchange | None, column: int, steps: list[RankStep]) -> RankShare:
    calls = member.calls
    wait = _waiting(calls, exchanged, column)
    waiting = _without(wait, calls.compute)
    comm = _both(calls.collective, calls.passing)
    hidden = _common(comm, calls.compute)
    passing = calls.passing.length - _common(calls.passing, _both(calls.compute, calls.collective))
    complete = exchanged.complete if exchanged else np.zeros(0, np.bool_)
    late = exchanged.wait_ns[complete] if exchanged else None
    waits = exchanged is not None and bool((~np.isnan(exchanged.wait_ns[:, column])).any())
    begin, end = _range(calls.line, steps, column)
    busy = _inside(calls.line.busy, begin, end)
    return RankShare(
        member=member,
        group=group,
        busy_ns=calls.line.busy.length,
        compute_ns=calls.compute.length,
        comm_ns=comm.length,
        hidden_ns=hidden,
        waiting_ns=waiting if waits else None,
        passing_ns=passing,
        exposed_ns=comm.length - hidden - waiting - passing,
        late_ns=float((late.max(axis=1) - late[:, column]).mean()) if late is not None and len(late) else None,
        delay_ns=sum(step.delays_ns[column] for step in steps) if steps else None,
        last=int((late.argmin(axis=1) == column)[late.max(axis=1) > 0].sum())
        if late is not None and len(late)
        else None,
        calls=len(calls.key),
        matched_calls=int(complete.sum()),
        range_compute_ns=_inside(calls.compute, begin, end),
        range_busy_ns=busy - _inside(wait, begin, end),
        range_idle_ns=end - begin - busy - _inside(calls.line.unrecorded, begin, end),
    )


def _waiting(calls: Calls, exchanged: Exchange | None, column: int) -> Union:
    """When a member waited in its collectives: from each call's start until the last member came."""
    if exchanged is None:
        return union(calls.start[:0], calls.start[:0])
    (rows,) = np.nonzero(~np.isnan(exchanged.wait_ns[:, column]))
    own = exchanged.rows[rows, column]
    return union(calls.start[own], calls.start[own] + exchanged.wait_ns[rows, column].astype(np.int64))


def _range(line: Timeline, steps: list[RankStep], column: int) -> tuple[int, int]:
    """From the start of a member's first matched step to the end of its last one; its span where none is matched."""
    if not steps:
        return line.start_ns, line.end_ns
    own = line.steps.loc[[step.labels[column] for step in steps]]
    return int(own["start_ns"].min()), int(own["end_ns"].max())


def _inside(cover: Union, begin: int, end: int) -> int:
    return int(covered(cover, _one(begin), _one(end))[0])


def _one(value: int) -> Ints:
    return np.array([value], np.int64)


def _both(first: Union, second: Union) -> Union:
    return union(np.concatenate((first.starts, second.starts)), np.concatenate((first.ends, second.ends)))


def _common(first: Union, second: Union) -> int:
    return int(covered(second, first.starts, first.ends).sum())


def _without(first: Union, second: Union) -> int:
    return first.length - _common(first, second)


def _imbalance(values: Sequence[int]) -> float | None:
    mean = sum(values) / len(values)
    return max(values) / mean if mean > 0 else None


def slowest(shares: Sequence[RankShare], group: GroupSteps, phase: str | None = None) -> Straggler | None:
    """The member that delays its group most in the matched steps (of a phase), clearly or not; None without any.

    Args:
        shares: the parts of the group's members, in their order.
        group: the group.
        phase: of the steps to look at; None: all.
    """
    steps = [step for step in group.steps if phase is None or step.phase == phase]
    total = sum(step.duration_ns for step in steps)
    if not total or len(shares) < 2:
        return None
    named = [[step.delay_ns for step in steps if step.slowest == column] for column in range(len(group.group.members))]
    worst = max(range(len(named)), key=lambda column: sum(named[column]))
    delay = sum(named[worst])
    share = shares[worst]
    cause = _cause(share, [one for one in shares if one is not share], delay) if delay else None
    part = delay / sum(map(sum, named)) if delay else 0.0
    return Straggler(share, delay / len(steps), delay / total, len(named[worst]), len(steps), part, cause)


def _straggler(shares: Sequence[RankShare], found: Sequence[GroupSteps]) -> Straggler | None:
    """The device that costs its group most, if it does so clearly."""
    candidates = [
        one
        for place, group in enumerate(found)
        if (one := slowest([share for share in shares if share.group == place], group)) is not None and one.is_clear
    ]
    return max(candidates, key=lambda one: one.delay_share, default=None)


def _cause(slow: RankShare, others: Sequence[RankShare], delay_ns: float) -> Cause | None:
    """What the straggler has more of than the others."""
    compute = slow.range_compute_ns - float(np.median([one.range_compute_ns for one in others]))
    idle = slow.range_idle_ns - float(np.median([one.range_idle_ns for one in others]))
    if max(compute, idle) < _CAUSE * delay_ns:
        return None
    return "compute" if compute >= idle else "idle"
