"""Recordings that lost records: kernels are taken out of a whole one, and what is said and left out must follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from traceanalyzer import read_trace
from traceanalyzer.analysis import kernels, steps
from traceanalyzer.analysis.activity import Activity, build
from traceanalyzer.analysis.physics import check
from traceanalyzer.analysis.steps import Steps
from traceanalyzer.analysis.work import measure
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.scenario import Scenario
from traceanalyzer.simulate.write import simulate
from traceanalyzer.trace.tables import KERNEL, Note, Trace

EAGER = Scenario(model="llama-3.2-1b", output=6, prompt=64)
GRAPH = replace(EAGER, mode="graph")
STEPS = 6


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Scenario], Trace]:
    folder: Path = tmp_path_factory.mktemp("physics")
    known: dict[str, Trace] = {}

    def of(scenario: Scenario) -> Trace:
        if scenario.mode not in known:
            known[scenario.mode] = read_trace(simulate(scenario, folder / f"{scenario.mode}.json", passes)[0].trace)
        return known[scenario.mode]

    return of


def steps_of(trace: Trace) -> tuple[Activity, Steps]:
    activity = build(trace)
    return activity, steps.find(trace, activity, measure(trace, activity, kernels.classes(trace, activity)))


def found(trace: Trace) -> tuple[Steps, dict[str, Note]]:
    marked, notes = check(trace, *steps_of(trace))
    return marked, {note.code: note for note in notes}


def without(trace: Trace, rows: np.ndarray) -> Trace:
    keep = np.ones(len(trace.kernels), np.bool_)
    keep[rows] = False
    return replace(trace, kernels=trace.kernels[keep].reset_index(drop=True))


def replay(trace: Trace, number: int) -> np.ndarray:
    """The kernels of one replay, in order of time."""
    correlation = trace.kernels["correlation"]
    shared = correlation[correlation.duplicated(keep=False) & (trace.kernels["kind"] == KERNEL)]
    chosen: np.ndarray = np.flatnonzero(correlation == shared.unique()[number])
    return chosen


@pytest.mark.parametrize("scenario", [EAGER, GRAPH], ids=["eager", "graph"])
def test_a_whole_recording_says_nothing(recorded: Callable[[Scenario], Trace], scenario: Scenario) -> None:
    marked, notes = found(recorded(scenario))
    assert not notes
    assert len(marked.table) == STEPS


def test_lost_kernels_of_eager_steps_are_counted_and_their_share_told(recorded: Callable[[Scenario], Trace]) -> None:
    trace = recorded(EAGER)
    ran = np.flatnonzero(trace.kernels["kind"] == KERNEL)
    lost = ran[len(ran) // 2 :: 37]
    assert len(lost) > 10
    _, notes = found(without(trace, lost))
    note = notes["launches_without_kernels"]
    assert note.count == len(lost)
    assert note.detail == f"{100 * len(lost) / len(trace.launches):.2g} %"


def test_launches_after_the_last_kernel_are_the_window_s_end(recorded: Callable[[Scenario], Trace]) -> None:
    trace = recorded(EAGER)
    ran = np.flatnonzero(trace.kernels["kind"] == KERNEL)
    _, notes = found(without(trace, np.arange(ran[-30], len(trace.kernels))))
    assert "launches_without_kernels" not in notes


def test_a_labelled_step_of_which_nothing_ran_is_told(recorded: Callable[[Scenario], Trace]) -> None:
    trace = recorded(GRAPH)
    activity, whole = steps_of(trace)
    marked, notes = found(without(trace, activity.table.loc[whole.activity_step == 3, "kernel"].to_numpy()))
    assert notes["steps_without_kernels"].count == 1
    assert len(marked.table) == STEPS - 1


@pytest.mark.parametrize("has_ids", [True, False], ids=["graph ids", "names only"])
@pytest.mark.parametrize("holes", [1, 12])
def test_a_replay_with_holes_is_out_of_the_averages(
    recorded: Callable[[Scenario], Trace], has_ids: bool, holes: int
) -> None:
    trace = recorded(GRAPH)
    if not has_ids:
        trace = replace(trace, kernels=trace.kernels.assign(graph_id=-1, graph_node_id=-1))
    marked, notes = found(without(trace, replay(trace, 2)[20 : 20 + holes]))
    assert notes["replays_with_holes"].count == 1
    assert notes["steps_cut"].count == 1
    assert marked.table["complete"].tolist() == [True, True, True, False, True, True]


def test_two_graphs_of_different_sizes_are_no_loss(recorded: Callable[[Scenario], Trace]) -> None:
    """Half of the replays run a kernel less, as graphs of other batch sizes do."""
    trace = recorded(GRAPH)
    rows = [replay(trace, number)[20] for number in (0, 1)]
    named = replace(trace, kernels=trace.kernels.assign(graph_id=-1, graph_node_id=-1))
    assert "replays_with_holes" not in found(without(named, np.array(rows)))[1]
