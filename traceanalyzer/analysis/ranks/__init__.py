"""The ranks of one run beside each other: which files they are, whether their clocks agree, who waits for whom.

`of_one_run` says which of the given traces are ranks; `compare`, after each device was analysed by itself, what they
did together. See docs/adr/0014-ranks.md.
"""

from __future__ import annotations

from traceanalyzer.analysis.ranks.bubbles import Bubble
from traceanalyzer.analysis.ranks.calls import Calls
from traceanalyzer.analysis.ranks.compare import GroupSteps, Ranks, RankShare, Straggler, compare, notes, slowest
from traceanalyzer.analysis.ranks.given import of_one_run
from traceanalyzer.analysis.ranks.groups import Group, Member
from traceanalyzer.analysis.ranks.steps import RankStep

__all__ = [
    "Bubble",
    "Calls",
    "Group",
    "GroupSteps",
    "Member",
    "RankShare",
    "RankStep",
    "Ranks",
    "Straggler",
    "compare",
    "notes",
    "of_one_run",
    "slowest",
]
