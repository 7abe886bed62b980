"""Ranks beside each other, against the truth of simulated runs: who waits, how long, for whom, and on which clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.ranks import made
from traceanalyzer import read_trace
from traceanalyzer.analysis.pipeline import Analysis, analyze
from traceanalyzer.analysis.ranks import Ranks, compare, notes
from traceanalyzer.analysis.ranks.clock import FEWEST
from traceanalyzer.analysis.timeline import Timeline

SHIFT_NS = 12_345_678
SHIFT_US = SHIFT_NS / 1e3


Run = tuple[list[Path], Analysis, Ranks]


def analysed(paths: list[Path]) -> Run:
    analysis = analyze([read_trace(path) for path in paths])
    assert analysis.ranks is not None
    return paths, analysis, analysis.ranks


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return analysed(made.run(tmp_path_factory.mktemp("late"), made.TWO, made.late_host(1)))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return analysed(made.run(tmp_path_factory.mktemp("slow"), made.FOUR, made.slow_card(2)))


def again(run: Run, *metadata: dict[str, Any]) -> Ranks:
    """The comparison once more, with other metadata of each rank's trace."""
    lines = [device.timeline for device in run[1].devices]
    changed = [
        replace(line, trace=replace(line.trace, metadata=replace(line.trace.metadata, **facts)))
        for line, facts in zip(lines, metadata, strict=True)
    ]
    found = compare(changed)
    assert found is not None
    return found


def waits(found: Ranks) -> list[int | None]:
    return [share.waiting_ns for share in found.shares]


@pytest.mark.parametrize("name", ["late", "slow"])
def test_waiting_is_what_the_ranks_waited(name: str, request: pytest.FixtureRequest) -> None:
    paths, _, found = request.getfixturevalue(name)
    for share, path in zip(found.shares, paths, strict=True):
        span = made.truth(path)["span"]
        assert share.waiting_ns == pytest.approx(span["communication_wait_ns"], rel=0.02, abs=100)
        assert share.busy_ns == span["busy_ns"]
        assert share.comm_ns == share.hidden_ns + share.waiting_ns + share.passing_ns + share.exposed_ns
    assert max(wait or 0 for wait in waits(found)) > 0


def test_steps_are_matched_and_the_late_rank_is_named(late: Run) -> None:
    (group,) = late[2].groups
    assert [step.labels for step in group.steps] == [(index, index) for index in range(made.TWO.output)]
    assert [step.phase for step in group.steps] == ["prefill"] + ["decode"] * (made.TWO.output - 1)
    assert {step.slowest for step in group.steps[1:]} == {1}
    # The host was late for every pass but the first, and no rank had anything else to do.
    delays = [step.delay_ns for step in group.steps[1:]]
    assert delays == pytest.approx([made.HOST_LATE_NS] * (made.TWO.output - 1), rel=0.1)


def test_a_late_host_is_a_straggler_that_stands_still(late: Run) -> None:
    straggler = late[2].straggler
    assert straggler is not None
    assert (straggler.share.line.device.rank, straggler.cause) == (1, "idle")
    assert straggler.steps >= made.TWO.output - 1
    assert straggler.of_steps == made.TWO.output
    assert late[2].imbalance_compute == pytest.approx(1.0, abs=0.001)


def test_a_slow_card_is_a_straggler_that_computes_longer(slow: Run) -> None:
    found = slow[2]
    straggler = found.straggler
    assert straggler is not None
    assert (straggler.share.line.device.rank, straggler.cause) == (2, "compute")
    own, *others = sorted((share.range_compute_ns for share in found.shares), reverse=True)
    assert found.imbalance_compute == pytest.approx(own / ((own + sum(others)) / 4))
    assert (found.imbalance_compute or 0.0) > 1.05
    delays = [share.delay_ns or 0.0 for share in found.shares]
    assert delays[2] > 0.9 * sum(delays)
    # What its decode kernels took longer than anybody's is what the others were kept back by.
    slower = sum(step.delay_ns for step in found.groups[0].steps[1:])
    assert slower == pytest.approx(own - others[0], rel=0.05)


def test_an_even_run_has_no_straggler() -> None:
    found = compare([alike(0, range(10)), alike(1, range(10))])
    assert found is not None
    assert found.straggler is None
    assert [step.slowest for step in found.groups[0].steps] == [None] * 10


def alike(number: int, places: range) -> Timeline:
    """A rank, alone on its host, whose steps of one kernel and one exchange all take as long and come in one rhythm."""
    rows = []
    for step, place in enumerate(places):
        at = place * made.PERIOD
        rows += [made.kernel(at, 100_000, step=step), {**made.comm(at + 100_000, 50_000), "step": step}]
    steps = [{"phase": "decode", "start": at * made.PERIOD, "end": at * made.PERIOD + 150_000} for at in places]
    line = made.rank(number, rows, steps)
    return replace(line, trace=replace(line.trace, metadata=replace(line.trace.metadata, host_hash=str(number))))


def test_clocks_of_two_hosts_are_brought_together(late: Run) -> None:
    other = analyze([read_trace(made.changed(late[0][1], made.moved(SHIFT_US)))])
    found = compare([late[1].devices[0].timeline, other.main.timeline])
    assert found is not None
    member = found.shares[1].member
    assert member.by == "collectives"
    assert member.offset_ns == pytest.approx(SHIFT_US * 1e3, abs=1_000)
    assert waits(found) == pytest.approx(waits(late[2]), abs=100)
    assert found.steps_matched == made.TWO.output


@pytest.mark.parametrize("by_ns", [-3_250, 86_400 * 10**9])
def test_no_offset_is_too_small_or_too_large(late: Run, by_ns: int) -> None:
    base = late[1].traces[1].metadata.base_time_ns
    found = again(
        late,
        {"host_hash": "a", "base_time_ns": base + 10**15},
        {"host_hash": "b", "base_time_ns": base + by_ns + 10**15},
    )
    assert found.shares[1].member.offset_ns == pytest.approx(by_ns, abs=1_000)
    assert found.steps_matched == made.TWO.output


def test_ranks_that_were_not_recorded_from_the_same_step_on(late: Run) -> None:
    """The second rank's trace begins two passes later, on another clock."""
    lines = [device.timeline for device in late[1].devices]
    begin = int(lines[1].steps["start_ns"].iloc[2])
    table = lines[1].table
    kept = replace(lines[1], table=table[table["start_ns"] >= begin].reset_index(drop=True))
    away = replace(kept, trace=replace(kept.trace, metadata=replace(kept.trace.metadata, base_time_ns=SHIFT_NS)))
    found = compare([lines[0], away])
    assert found is not None
    assert found.shares[1].member.offset_ns == pytest.approx(SHIFT_NS, abs=1_000)
    assert [step.labels for step in found.groups[0].steps] == [(at, at) for at in range(2, made.TWO.output)]


def test_one_host_needs_no_alignment(late: Run) -> None:
    found = again(late, {"host_hash": "one"}, {"host_hash": "one"})
    assert (found.shares[1].member.by, found.shares[1].member.offset_ns) == ("host", 0)
    assert waits(found) == waits(late[2])


def test_steps_that_are_all_alike_fit_with_several_shifts() -> None:
    """Which of them is which cannot be told once a rank has fewer of them."""
    found = compare([alike(0, range(30)), alike(1, range(2, 30))])
    assert found is not None
    assert found.shares[1].member.offset_ns is None
    assert [note.code for note in notes(found)] == ["ranks_not_aligned"]


def test_unrelated_ranks_are_not_aligned(late: Run) -> None:
    lines = [device.timeline for device in late[1].devices]
    table = lines[1].table.copy()
    table["start_ns"] = table["start_ns"] * 3 // 2 + np.arange(len(table)) * 7919 % 613_000
    found = compare([lines[0], replace(lines[1], table=table)])
    assert found is not None
    assert found.shares[1].member.offset_ns is None
    assert waits(found) == [None, None]
    assert (found.steps_matched, found.straggler) == (0, None)
    assert [(note.count, note.detail) for note in notes(found)] == [(1, "1")]


def test_few_collectives_say_nothing_of_the_clocks(late: Run) -> None:
    lines = [device.timeline for device in late[1].devices]
    (comm,) = np.nonzero((lines[1].table["category"] == "comm").to_numpy())
    found = compare([lines[0], replace(lines[1], table=lines[1].table.iloc[: comm[FEWEST - 1]])])
    assert found is not None
    assert found.shares[1].member.offset_ns is None


def test_one_rank_has_nothing_to_compare(late: Run) -> None:
    assert compare([late[1].devices[0].timeline]) is None
