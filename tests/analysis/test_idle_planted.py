"""Causes of idle time that a simulated run was given, found again: each alone and all together, at five magnitudes.

The truth counts what the simulator did; the analysis sees the events only. The smallest magnitude is below every
threshold of the analysis.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from traceanalyzer import read_trace
from traceanalyzer.analysis import activity as activities
from traceanalyzer.analysis import devices, idle, kernels, ranks, steps, timeline, work
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.scenario import Plant, Scenario
from traceanalyzer.simulate.variants import Variant
from traceanalyzer.simulate.write import simulate
from traceanalyzer.trace.tables import Trace

SMALL = Scenario(model="llama-3.2-1b", prompt=64, output=5, skip_prefill=True, batch=4)
MAGNITUDES_NS = (2_000, 20_000, 100_000, 500_000, 5_000_000)
OF_A_STEP = 0.02
TRUE_CAUSE: Mapping[str, str] = {
    "queue_latency": "latency", "sync": "sync", "allocator": "alloc", "between_passes": "host", "input": "wait_input",
    "host_ops": "launching", "launch_call": "launching", "launch_latency": "launching",
}  # fmt: skip
LAUNCHING = ("launch", "graph_launch", "sync_restart")


def line_of(trace: Trace) -> timeline.Timeline:
    """The timeline of a trace's one device."""
    activity = activities.build(trace)
    measured = work.measure(trace, activity, kernels.classes(trace, activity))
    found = steps.find(trace, activity, measured)
    number = int(activity.table["device"].iloc[0])
    device = devices.describe(trace.metadata, number, False, devices.Limits(None, {}, None))
    return timeline.build(trace, device, activity.table, measured, found.table, found.activity_step)


def held_against_the_truth(scenario: Scenario, folder: Path, **recorded: bool) -> dict[tuple[str, str], float]:
    """How far each cause of each phase is from the truth, as a share of a step."""
    (written,) = simulate(scenario, folder / "run.json", passes, variant=Variant(**recorded))
    truth = json.loads(written.truth.read_text())
    line = line_of(read_trace(written.trace))
    divided = idle.divide(line)
    found: dict[tuple[str, str], int] = defaultdict(int)
    for phase, cause, _, ns, _ in divided.table().itertuples(index=False):
        found[phase, "launching" if cause in LAUNCHING else cause] += ns
    true: dict[tuple[str, str], int] = defaultdict(int)
    for row in truth["idle_causes"]:
        true[row["phase"], TRUE_CAUSE[row["cause"]]] += row["ns"]
    assert sum(found.values()) == sum(true.values()) == line.span_ns - line.busy.length
    span = truth["span"]["span_ns"]
    return {key: (found[key] - true[key]) / span for key in {*found, *true}}


def planted(kind: str, ns: int) -> Scenario:
    plants = (Plant(kind, ns),)
    if kind == "graph_launch":
        return replace(SMALL, plants=plants, mode="graph")
    if kind == "input":
        return replace(SMALL, plants=plants, skip_prefill=False, arrivals_every=6, batch=2, output=4)
    return replace(SMALL, plants=plants)


@pytest.mark.parametrize("ns", MAGNITUDES_NS)
@pytest.mark.parametrize("kind", ["launch", "graph_launch", "sync", "allocator", "scheduler"])
def test_a_planted_cause_is_found(kind: str, ns: int, tmp_path: Path) -> None:
    off = held_against_the_truth(planted(kind, ns), tmp_path)
    assert not {key: share for key, share in off.items() if abs(share) > OF_A_STEP}


@pytest.mark.parametrize("ns", MAGNITUDES_NS)
def test_waiting_for_a_request_is_told_by_the_stack(ns: int, tmp_path: Path) -> None:
    off = held_against_the_truth(planted("input", ns), tmp_path, stacks=True)
    assert not {key: share for key, share in off.items() if abs(share) > OF_A_STEP}


@pytest.mark.parametrize("ns", MAGNITUDES_NS)
def test_waiting_for_a_slow_rank_is_found_in_its_collectives_and_is_no_gap(ns: int, tmp_path: Path) -> None:
    scenario = replace(SMALL, plants=(Plant("rank", ns),), ranks=2)
    written = simulate(scenario, tmp_path / "run.json", passes)
    truths = [json.loads(one.truth.read_text()) for one in written]
    lines = [line_of(read_trace(one.trace)) for one in written]
    compared = ranks.compare(lines)
    assert compared is not None
    for share, line, truth in zip(compared.shares, lines, truths, strict=True):
        step = truth["span"]["span_ns"] / len(truth["steps"])
        waited = (share.waiting_ns or 0) - truth["span"]["communication_wait_ns"]
        assert abs(waited) / len(truth["steps"]) <= OF_A_STEP * step
        divided = idle.divide(line)
        assert divided.parts["wait_rank"].sum() == 0
        assert sum(int(part.sum()) for part in divided.parts.values()) == sum(row["ns"] for row in truth["idle_causes"])


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_all_of_them_together_are_told_apart(mode: str, tmp_path: Path) -> None:
    kinds = ("launch", "sync", "allocator", "scheduler", *(("graph_launch",) if mode == "graph" else ()))
    plants = tuple(
        Plant(kind, ns, every) for every, (kind, ns) in enumerate(zip(kinds, MAGNITUDES_NS, strict=False), start=1)
    )
    scenario = replace(SMALL, plants=plants, mode=mode, output=12)  # type: ignore[arg-type]
    off = held_against_the_truth(scenario, tmp_path)
    assert not {key: share for key, share in off.items() if abs(share) > OF_A_STEP}


def test_the_culprits_are_named(tmp_path: Path) -> None:
    plants = (Plant("sync", 300_000), Plant("allocator", 200_000), Plant("scheduler", 900_000))
    (written,) = simulate(replace(SMALL, plants=plants), tmp_path / "run.json", passes, variant=Variant(stacks=True))
    line = line_of(read_trace(written.trace))
    rows = idle.culprits(line, idle.divide(line))
    first = rows[rows["phase"] == "decode"].sort_values("ns", ascending=False).groupby("cause", sort=False).first()
    assert (first.loc["sync", "call"], first.loc["sync", "op"]) == ("cudaStreamSynchronize", "aten::item")
    assert first.loc["alloc", "op"] == "aten::empty"
    assert first.loc["alloc", "call"] in ("cudaFree", "cudaMalloc")
    assert first.loc["host", "frame"] == "scheduler.py(210): schedule"
    assert rows["ns"].sum() == line.span_ns - line.busy.length
