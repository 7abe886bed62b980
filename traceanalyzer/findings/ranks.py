"""A rank that keeps the others waiting."""

from __future__ import annotations

from traceanalyzer.analysis.ranks import Straggler, slowest
from traceanalyzer.findings.answer import Answer, error, not_applicable, passed, saved
from traceanalyzer.findings.model import Fact
from traceanalyzer.findings.subject import PhaseSubject


def straggling(subject: PhaseSubject) -> Answer:
    """Does one rank make the others wait in their collectives? The saving is that of making it as fast as the next."""
    if subject.ranks is None:
        return not_applicable("one_rank")
    group, shares = subject.ranks.of_line(subject.timeline)
    if len(shares) < 2:
        return not_applicable("no_shared_collectives")
    found = slowest(shares, group, subject.phase)
    if found is None:
        return error("ranks_not_matched")
    if not found.is_clear:
        return passed("ranks_even", share=found.delay_share)
    told = Fact(
        "rank_delays",
        {"rank": _rank(found), "ns": found.delay_ns, "count": found.steps, "steps": found.of_steps},
    )
    evidence = (told, Fact(_CAUSES[found.cause])) if found.cause else (told,)
    return saved(subject, found.delay_ns, subject.of_category("comm"), evidence, 0.7, ("rank_like_the_next",))


_CAUSES = {"compute": "rank_computes_longer", "idle": "rank_stands_still"}


def _rank(found: Straggler) -> int:
    """How the rank is called; where there are no ranks, the device."""
    info = found.share.line.device
    return info.device if info.rank is None else info.rank
