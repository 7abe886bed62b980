"""Ranks that share their collectives, as groups, each rank with its place on the first one's clock.

Tensor- and expert-parallel ranks share collectives. Replicas and pipeline stages do not, and are groups of their own:
on one host they have its clock, elsewhere nothing says how their clocks relate.

What could be wrong: pipeline stages on several hosts whose collectives follow each other in exact rhythm pass for one
group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from traceanalyzer.analysis.intervals import Ints
from traceanalyzer.analysis.ranks import clock
from traceanalyzer.analysis.ranks.calls import Calls
from traceanalyzer.trace.tables import MISSING

Told = Literal["reference", "host", "collectives"]
"""What a rank's offset comes from: it is the first one, the host's clock, the ends of collectives."""


@dataclass(frozen=True)
class Member:
    """One device of a group.

    Args:
        calls: its communication.
        partner: per call the call of the group's first member that is the same collective, MISSING where none.
        offset_ns: what its times are ahead of the first device's; None unknown.
        by: what tells that: "host", "collectives", "reference" (the first device itself), or None.
        spread_ns: how well the ends of its collectives agree with those of the group's first member; None: not asked.
    """

    calls: Calls
    partner: Ints
    offset_ns: int | None
    by: Told | None
    spread_ns: int | None = None


@dataclass(frozen=True)
class Group:
    """Devices that share their collectives, the first one being what the others are compared with."""

    members: tuple[Member, ...]


def groups(devices: Sequence[Calls]) -> list[Group]:
    """The groups of a run's devices, in the order of their first ones."""
    found: list[list[Member]] = []
    for calls in devices:
        for place, group in enumerate(found):
            first = group[0]
            same_host = _same_host(first.calls, calls)
            # The search by order takes long; replicas, of which there may be many, would all ask for it in vain.
            matched = clock.match(first.calls, calls, same_host, by_order=place == 0)
            if matched is not None:
                offset = None if first.offset_ns is None else first.offset_ns + matched.offset_ns
                by = None if offset is None else matched.by
                group.append(Member(calls, matched.partner, offset, by, matched.spread_ns))
                break
        else:
            found.append([_alone(calls, found[0][0].calls if found else None)])
    return [Group(tuple(members)) for members in found]


def _alone(calls: Calls, first: Calls | None) -> Member:
    """The first member of a new group."""
    itself = np.arange(len(calls.key), dtype=np.int64)
    if first is None:
        return Member(calls, itself, 0, "reference")
    if _same_host(first, calls):
        return Member(calls, itself, 0, "host")
    return Member(calls, itself, None, None)


def _same_host(first: Calls, second: Calls) -> bool:
    if first.line.trace is second.line.trace:
        return True
    host = first.line.trace.metadata.host_hash
    return host is not None and host == second.line.trace.metadata.host_hash


def together(group: Group) -> Ints:
    """The calls that are the same collective: a row per call of the first member, a column per member, else MISSING."""
    rows = np.full((len(group.members[0].calls.key), len(group.members)), MISSING, np.int64)
    for column, member in enumerate(group.members):
        (own,) = np.nonzero(member.partner != MISSING)
        rows[member.partner[own], column] = own
    return rows
