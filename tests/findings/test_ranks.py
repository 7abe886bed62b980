"""The rule on a rank that keeps the others waiting: found, passed, not applicable, error; and its saving, simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.analysis.ranks import made
from tests.analysis.ranks.made import PERIOD, comm, kernel, rank
from tests.findings.made import asked, gemm, phase, says
from traceanalyzer import read_trace
from traceanalyzer.analysis.pipeline import analyze
from traceanalyzer.analysis.ranks import Ranks, compare
from traceanalyzer.findings.evaluate import evaluate
from traceanalyzer.findings.subject import PhaseSubject

pytestmark = pytest.mark.usefixtures("without_hta")
COUNT = 10
RULE = "straggling_rank"


def ranks(lates_us: Sequence[float], name: str = "decode") -> Ranks:
    """Ranks that compute 100 us and what is given beyond it, then exchange for 100 us, step by step."""
    lines = []
    end_us = 200 + max(lates_us)
    starts = [place * PERIOD + place**2 * 1_000 for place in range(COUNT)]
    for number, late in enumerate(lates_us):
        rows = []
        for place, start in enumerate(starts):
            computed = round((100 + late) * 1e3)
            rows += [kernel(start, computed, step=place)]
            rows += [{**comm(start + computed, round(end_us * 1e3) - computed), "step": place}]
        steps = [{"phase": name, "start": start, "end": start + round(end_us * 1e3)} for start in starts]
        lines.append(rank(number, rows, steps))
    found = compare(lines)
    assert found is not None
    return found


def about(found: Ranks | None, name: str = "decode") -> PhaseSubject:
    """Steps of 240 us on the first rank of a comparison."""
    made_up = phase([gemm(100, 90), {**gemm(140, 1), "category": "comm", "role": "all_reduce"}], name=name)
    if found is None:
        return made_up
    return replace(made_up, ranks=replace(found, shares=tuple(
        replace(share, member=replace(share.member, calls=replace(share.member.calls, line=made_up.timeline)))
        if place == 0 else share for place, share in enumerate(found.shares)
    )))  # fmt: skip


@pytest.mark.parametrize(("rule", "name"), [(RULE, "decode"), (f"{RULE}_prefill", "prefill")])
def test_a_late_rank_is_found(rule: str, name: str) -> None:
    found = asked(rule, about(ranks((0, 40, 10), name), name))
    assert found.status == "found"
    assert found.saving_ns == pytest.approx(30_000, rel=0.1)  # it would be like the next one, which is 10 us late
    assert found.evidence[0].values == {"rank": 1, "ns": 30_000, "count": COUNT, "steps": COUNT}
    assert found.evidence[1].code == "rank_computes_longer"


def test_ranks_alike_and_two_slow_ranks_pass() -> None:
    assert says(asked(RULE, about(ranks((0, 1))))) == "passed: ranks_even"
    assert says(asked(RULE, about(ranks((0, 40, 40))))) == "passed: ranks_even"


def test_one_rank_and_ranks_that_share_nothing_are_not_judged() -> None:
    assert says(asked(RULE, about(None))) == "not_applicable: one_rank"
    found = ranks((0, 40))
    (group,) = found.groups
    apart = replace(found, groups=(group, group), shares=(found.shares[0], replace(found.shares[1], group=1)))
    assert says(asked(RULE, about(apart))) == "not_applicable: no_shared_collectives"


def test_without_steps_of_the_phase_it_cannot_be_judged() -> None:
    assert says(asked(RULE, about(ranks((0, 40), "prefill")))) == "error: ranks_not_matched"


def test_the_predicted_saving_is_what_the_run_without_the_late_host_takes_less(tmp_path: Path) -> None:
    late = made.run(tmp_path / "late", made.TWO, made.late_host(1))
    on_time = made.run(tmp_path / "even", made.TWO, made.late_host(-1))
    before, after = (made.truth(paths[0])["steps"] for paths in (late, on_time))
    cheaper = (before[-1]["end_ns"] - before[1]["start_ns"] - after[-1]["end_ns"] + after[1]["start_ns"]) / (
        len(before) - 1
    )
    findings = {finding.id: finding for finding in evaluate(analyze([read_trace(path) for path in late]))}
    assert findings[RULE].status == "found"
    assert findings[RULE].saving_ns == pytest.approx(cheaper, rel=0.15)
    assert findings[f"{RULE}_prefill"].status == "passed"
