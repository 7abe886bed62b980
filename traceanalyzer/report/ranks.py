"""The sections of the Report document on what the ranks of a run did together.

Units are in the field names; None means unknown. Definitions: docs/adr/0014-ranks.md and docs/method.md.
"""

from __future__ import annotations

from typing import Literal

from traceanalyzer.report.sections import PhaseName, Section, Share


class RankAlignment(Section):
    """How the ranks' clocks were brought together; `spread_us`: nine of ten matched collectives end within it."""

    by: Literal["host", "collectives", "mixed"] | None  # null: not all of them could be
    spread_us: float | None


class RankRow(Section):
    """One device's part. `comm_us` is the sum of hidden, exposed, waiting and passing; times are over its whole span.

    `group`: ranks of the same number share their collectives. `offset_us` is what its clock is ahead of the first
    rank's. `delay_us` is what the matched steps would win if it alone were no slower than the next.
    """

    rank: int | None
    device: int
    group: int
    offset_us: float | None
    offset_by: Literal["reference", "host", "collectives"] | None
    busy_us: float
    compute_us: float
    comm_us: float
    comm_hidden_us: float  # another kernel runs
    comm_exposed_us: float  # data moves and nothing else happens
    comm_waiting_us: float | None  # the other ranks have not come; null: not known, and part of exposed
    comm_passing_us: float  # sends and receives between pipeline stages
    late_us: float | None  # behind the first one, mean over the matched collectives
    delay_us: float | None
    last_to: int | None  # matched collectives that it came last to
    slowest_steps: int | None
    collectives: int
    collectives_matched: int


class RankStep(Section):
    """One step that all ranks of a group share; `index` is that of the group's first rank."""

    index: int
    group: int
    phase: PhaseName
    start_us: float
    duration_us: float  # the longest
    waiting_us: float  # mean over the ranks
    slowest_rank: int | None  # null: none delayed the others noticeably
    slowest_device: int | None
    delay_us: float


class RankImbalance(Section):
    """The largest over the mean, 1 being even, over the matched steps: time of computing, and of being busy."""

    compute: float | None
    busy: float | None


class Straggler(Section):
    """The one rank that the others clearly wait for; `delay_us` per matched step."""

    rank: int | None
    device: int
    delay_us: float
    delay_share: Share
    slowest_steps: int
    steps: int
    cause: Literal["compute", "idle"] | None


class PipelineBubble(Section):
    """A pipeline stage's time without work between its first and last step: nothing ran, or only a send or receive."""

    rank: int | None
    device: int
    idle_us: float
    passing_us: float
    span_us: float
    share: float | None


class Ranks(Section):
    """What the devices of a run did together. `steps`: those that lost most to their slowest rank, at most 100."""

    aligned: RankAlignment
    groups: int
    steps_matched: int
    ranks: list[RankRow]
    imbalance: RankImbalance
    straggler: Straggler | None
    steps: list[RankStep]
    steps_omitted: int
    bubbles: list[PipelineBubble]
