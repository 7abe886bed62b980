"""One step close up: which step stands for its phase, what its rows hold, and that joining loses nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceanalyzer import read_trace
from traceanalyzer.analysis import closeup
from traceanalyzer.analysis.closeup import MOST_ITEMS, Closeup, joined
from traceanalyzer.analysis.idle import divide
from traceanalyzer.analysis.pipeline import analyze
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.scenario import Scenario
from traceanalyzer.simulate.write import simulate
from traceanalyzer.trace.tables import MISSING

EAGER = Scenario(model="llama-3.2-1b", output=6, prompt=64)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    written = simulate(EAGER, tmp_path_factory.mktemp("closeup") / "run.json", passes)[0]
    return analyze([read_trace(Path(written.trace))]).main.timeline


def closeups(line: Timeline) -> list[Closeup]:
    return closeup.closeups(line, divide(line))


def test_the_median_step_stands_for_its_phase(line: Timeline) -> None:
    found = {one.phase: one for one in closeups(line)}
    assert list(found) == ["prefill", "decode"]
    steps = line.complete_steps[line.complete_steps["phase"] == "decode"].sort_values("duration_ns")
    assert found["decode"].step == steps["step"].iloc[(len(steps) - 1) // 2]


def test_every_kernel_of_the_step_is_drawn_and_its_gaps_are_the_rest(line: Timeline) -> None:
    for found in closeups(line):
        own = line.table[line.table["step"] == found.step]
        streams = [row.items for row in found.rows if row.kind == "stream"]
        assert sum(int(items["count"].sum()) for items in streams) == len(own)
        assert sum(int(items["busy_ns"].sum()) for items in streams) == int(own["duration_ns"].sum())
        covered = int(found.gaps["duration_ns"].sum()) + int(own["duration_ns"].sum())
        assert covered == found.end_ns - found.device_ns


def test_the_host_s_rows_hold_its_launches_of_the_step(line: Timeline) -> None:
    found = closeups(line)[1]
    calls = next(row.items for row in found.rows if row.kind == "call")
    own = line.table[line.table["step"] == found.step]
    launched = own["launch_start_ns"]
    assert int(calls["count"].sum()) >= int((launched >= found.start_ns).sum())
    assert found.start_ns == max(int(launched.min()), 2 * found.device_ns - found.end_ns)
    assert (calls["start_ns"] >= found.start_ns).all()


def test_a_draft_pass_is_no_step_of_its_own(line: Timeline) -> None:
    steps = line.steps.assign(parent_step=np.where(line.steps["phase"] == "decode", 0, MISSING))
    assert [one.phase for one in closeups(replace(line, steps=steps))] == ["prefill"]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40), st.sampled_from("ab")), min_size=1, max_size=1500))
def test_joining_keeps_counts_times_and_order(items: list[tuple[int, int, str]]) -> None:
    starts, end = [], 0
    for gap, duration, _ in items:
        starts.append(end + gap)
        end = starts[-1] + duration
    frame = pd.DataFrame({
        "name": np.arange(len(items)), "category": [category for *_, category in items], "start_ns": starts,
        "duration_ns": [duration for _, duration, _ in items],
    })  # fmt: skip
    found = joined(frame, 0, end)
    assert int(found["count"].sum()) == len(items)
    assert int(found["busy_ns"].sum()) == int(frame["duration_ns"].sum())
    assert (found["start_ns"].to_numpy()[1:] >= (found["start_ns"] + found["duration_ns"]).to_numpy()[:-1]).all()
    assert ((found["name"] == MISSING) == (found["count"] > 1)).all()
    assert len(found) <= max(len(items) if len(items) <= MOST_ITEMS else 0, MOST_ITEMS)


def test_one_long_kernel_among_many_short_ones_stays_itself() -> None:
    short = pd.DataFrame({"name": 1, "category": "norm", "start_ns": np.arange(2000) * 10, "duration_ns": 5})
    long = pd.DataFrame({"name": [2], "category": ["gemm"], "start_ns": [20_000], "duration_ns": [80_000]})
    found = joined(pd.concat([short, long]), 0, 100_000)
    assert found.iloc[-1][["name", "category", "count"]].tolist() == [2, "gemm", 1]
    assert set(found["category"][:-1]) == {"norm"}
    assert len(found) <= MOST_ITEMS
