"""The critical path of a simulated step: it is the step, and what it would save is what a run without that shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.analysis.test_idle_planted import line_of
from traceanalyzer import read_trace
from traceanalyzer.analysis.critical import CriticalPath, critical_path, graph, times
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.scenario import Plant, Scenario
from traceanalyzer.simulate.write import simulate

HOST_BOUND = Scenario(model="qwen2.5-0.5b", prompt=64, output=5, skip_prefill=True, batch=2)
BOTH = replace(HOST_BOUND, model="llama-3.2-1b", batch=8)
"""A larger model: the host is ahead of the card in parts of a step, behind it in others."""


@pytest.fixture(scope="module")
def decode(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Scenario], tuple[Timeline, CriticalPath]]:
    """The timeline of a scenario and the path of its median decode step; each is simulated once."""
    folder: Path = tmp_path_factory.mktemp("critical")
    known: dict[Scenario, tuple[Timeline, CriticalPath]] = {}

    def of(scenario: Scenario) -> tuple[Timeline, CriticalPath]:
        if scenario not in known:
            written = simulate(scenario, folder / f"{len(known)}.json", passes)[0]
            line = line_of(read_trace(written.trace))
            found = critical_path(line, "decode")
            assert found is not None
            known[scenario] = line, found
        return known[scenario]

    return of


def cheaper(scenario: Scenario, **costs: int) -> Scenario:
    return replace(scenario, costs=replace(scenario.costs, **costs))


@pytest.mark.parametrize(
    "scenario", [HOST_BOUND, BOTH, replace(HOST_BOUND, mode="graph"), replace(BOTH, plants=(Plant("sync", 200_000),))]
)
def test_nothing_taken_away_gives_the_recorded_step(
    decode: Callable[[Scenario], tuple[Timeline, CriticalPath]], scenario: Scenario
) -> None:
    line, found = decode(scenario)
    events = graph(line, found.step)
    assert events is not None
    assert times(events) == [event.at for event in events.events]
    assert sum(found.parts.values()) == found.step_ns
    assert found.step_ns == line.steps["period_ns"].loc[found.step]
    assert all(0 <= ns <= found.step_ns for ns in found.saved.values())


@pytest.mark.parametrize(
    ("scenario", "what", "costs"),
    [
        (HOST_BOUND, "host", {"between_steps_ns": 0}),
        (BOTH, "host", {"between_steps_ns": 0}),
        (HOST_BOUND, "launches", {"launch_call_ns": 0, "op_host_ns": 0, "launch_latency_ns": 0}),
        (BOTH, "launches", {"launch_call_ns": 0, "op_host_ns": 0, "launch_latency_ns": 0}),
        (replace(HOST_BOUND, mode="graph"), "host", {"between_steps_ns": 0}),
    ],
)
def test_what_is_free_saves_what_a_run_without_it_shows(
    decode: Callable[[Scenario], tuple[Timeline, CriticalPath]],
    scenario: Scenario,
    what: str,
    costs: Mapping[str, int],
) -> None:
    (_, before), (_, after) = decode(scenario), decode(cheaper(scenario, **costs))
    assert before.step_ns - after.step_ns > 0.01 * before.step_ns, "nothing was predicted"
    assert before.step_ns - before.saved[what] == pytest.approx(after.step_ns, rel=0.03)


@pytest.mark.parametrize("kind", ["sync", "allocator"])
def test_a_planted_stall_in_the_middle_is_worth_what_it_costs(
    decode: Callable[[Scenario], tuple[Timeline, CriticalPath]], kind: str
) -> None:
    (_, without), (_, stalled) = decode(BOTH), decode(replace(BOTH, plants=(Plant(kind, 700_000),)))
    saved = stalled.saved["sync" if kind == "sync" else "alloc"]
    assert stalled.step_ns - saved <= 1.02 * without.step_ns
