"""Planted causes of idle time: each costs what it should, where it should, alone and together, and is written down."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.simulate.programs import COSTS, a_pass, kernel, op, place, ran, source
from traceanalyzer import read_trace
from traceanalyzer.errors import InputError
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.program import Copy, HostCall, Op
from traceanalyzer.simulate.scenario import Plant, Scenario
from traceanalyzer.simulate.variants import Variant
from traceanalyzer.simulate.write import simulate

EAGER = Scenario(model="qwen2.5-0.5b", batch=2, prompt=32, output=5)
GRAPH = replace(EAGER, mode="graph")
ALL = tuple(Plant(kind, 40_000) for kind in ("launch", "sync", "allocator", "scheduler", "input"))


def truth(folder: Path, scenario: Scenario, *plants: Plant, rank: int = 0, **options: Any) -> dict[str, Any]:
    written = simulate(replace(scenario, plants=plants), folder / "run.json", passes, **options)
    found: dict[str, Any] = json.loads(written[rank].truth.read_text())
    return found


def causes(found: dict[str, Any], cause: str) -> list[int]:
    return [step["idle_causes"].get(cause, 0) for step in found["steps"]]


def test_calls_that_allocate_by_hand() -> None:
    # Kernel 18..118; cudaFree from 16 waits until 118 and takes 50; cudaMalloc 30; op 198..201, call ..211, kernel 216.
    body = Op("aten::empty", (), (HostCall("cudaFree", 50, drains=True), HostCall("cudaMalloc", 30)), 3)
    (timed,) = placed = place(a_pass(op(kernel(100)), body, op(kernel(7))))
    assert [(call.name, call.start, call.end) for call in timed.calls[1:3]] == [
        ("cudaFree", 16, 168), ("cudaMalloc", 168, 198),
    ]  # fmt: skip
    assert ran(placed) == [(18, 118), (216, 223)]
    assert timed.allocations == [(16, 168), (168, 198)]
    # A blocked host that goes on 70 ns later than the copy's end (140) and the call's return.
    (timed,) = place(a_pass(op(kernel(100)), op(Copy("DtoH", 8, 20, blocking=True, late_ns=70))))
    assert timed.waits == [(26, 140 + 70 + 3_000)]


def test_every_idle_nanosecond_by_hand(tmp_path: Path) -> None:
    body = Op("aten::empty", (), (HostCall("cudaFree", 50, drains=True),), 3)
    first = a_pass(op(kernel(100)), body, op(kernel(4)), host_after_ns=10, scheduler_ns=20, input_ns=40)
    (written,) = simulate(Scenario(costs=COSTS), tmp_path / "run.json", source(first, a_pass(op(kernel(5)))))
    found = json.loads(written.truth.read_text())
    # cudaFree ends at 168; op ..171, call ..181, kernel 186..190. The host is at 181, 211 after its work, 251 after the
    # wait; op ..254, call ..264, kernel at 269.
    assert [(step["idle_causes"], step["idle"]) for step in found["steps"]] == [
        (
            {"allocator": 50, "host_ops": 3, "launch_call": 10, "launch_latency": 5},
            {"idle_alloc": 50, "idle_launch": 18},
        ),
        (
            {"between_passes": 21, "host_ops": 3, "input": 40, "launch_call": 10, "launch_latency": 5},
            {"idle_host": 21, "idle_launch": 18, "idle_no_work": 40},
        ),
    ]


@pytest.mark.parametrize(("scenario", "kind", "cause", "extra"), [
    (EAGER, "scheduler", "between_passes", 0), (EAGER, "allocator", "allocator", 0), (EAGER, "sync", "sync", 3_000),
    (GRAPH, "graph_launch", "launch_call", 0), (GRAPH, "allocator", "allocator", 0), (GRAPH, "sync", "sync", 3_000),
])  # fmt: skip
def test_a_cause_costs_what_was_planted(scenario: Scenario, kind: str, cause: str, extra: int, tmp_path: Path) -> None:
    plain = truth(tmp_path, scenario)
    due = {"scheduler": (0, 0, 1, 0, 1), "graph_launch": (0, 0, 1, 0, 1)}.get(kind, (0, 1, 0, 1, 0))
    for ns in (2_001, 20_000_000):
        found = truth(tmp_path, scenario, Plant(kind, ns, 2))
        more = [new - old for new, old in zip(causes(found, cause), causes(plain, cause), strict=True)]
        assert more == [one * (ns + extra) for one in due]
        assert found["planted"] == [{"kind": kind, "ns": ns, "every": 2, "times": 2}]
        assert sum(step["planted"].get(kind, 0) for step in found["steps"]) == 2 * ns


def test_launch_calls_that_take_longer(tmp_path: Path) -> None:
    plain, found = truth(tmp_path, EAGER), truth(tmp_path, EAGER, Plant("launch", 30_000))
    launches = found["phases"]["decode"]["kernels"]
    assert found["planted"][0]["times"] == found["span"]["kernels"]
    more = found["phases"]["decode"]["duration_ns"] - plain["phases"]["decode"]["duration_ns"]
    # The host is the slower of the two in a decode pass, so that nearly every call costs its whole price.
    assert 0.8 * launches * 30_000 < more < launches * 30_000
    assert more < sum(causes(found, "launch_call")[1:]) <= launches * 34_000


def test_an_engine_without_a_request_waits(tmp_path: Path) -> None:
    late = replace(EAGER, output=2, arrivals_every=4)
    found, plain = truth(tmp_path, late, Plant("input", 700_000)), truth(tmp_path, late)
    assert causes(found, "input") == [0, 0, 700_000, 0]
    assert found["steps"][2]["idle"]["idle_no_work"] == 700_000
    assert found["span"]["span_ns"] - plain["span"]["span_ns"] == 700_000
    # While a request is served nobody waits for one, and between repeated runs one does.
    assert causes(truth(tmp_path, EAGER, Plant("input", 700_000)), "input") == [0] * 5
    again = truth(tmp_path, replace(EAGER, output=1), Plant("input", 700_000), size=150_000)
    assert causes(again, "input") == [0] + [700_000] * (len(again["steps"]) - 1)


@pytest.mark.parametrize("scenario", [EAGER, GRAPH], ids=["eager", "graph"])
def test_the_last_rank_is_late_and_the_others_wait(scenario: Scenario, tmp_path: Path) -> None:
    two = replace(scenario, ranks=2, model="llama-3.2-1b")
    plant = Plant("rank", 90_000, 2)
    first, last = (truth(tmp_path, two, plant, rank=rank) for rank in range(2))
    plain = truth(tmp_path, two)
    assert [step["planted"] for step in first["steps"]] == [{}] * 5
    assert [step["planted"].get("rank", 0) for step in last["steps"]] == [0, 90_000, 0, 90_000, 0]
    waits = [step["communication_wait_ns"] for step in first["steps"]]
    assert [round(ns, -4) for ns in waits] == [10_000, 90_000, 0, 90_000, 0]
    assert all(step["communication_wait_ns"] < 2_000 for step in last["steps"])
    assert sum(waits) == first["span"]["communication_wait_ns"]
    longer = [new["busy_ns"] - old["busy_ns"] for new, old in zip(first["steps"], plain["steps"], strict=True)]
    assert [round(ns, -4) for ns in longer] == [0, 90_000, 0, 90_000, 0]


@pytest.mark.parametrize("scenario", [EAGER, GRAPH], ids=["eager", "graph"])
def test_all_together_every_nanosecond_is_booked_once(scenario: Scenario, tmp_path: Path) -> None:
    late = replace(scenario, arrivals_every=7)
    plants = (*ALL, Plant("graph_launch", 50_000)) if scenario is GRAPH else ALL
    found = truth(tmp_path, late, *plants)
    idle = sum(row["ns"] for row in found["ledger"] if row["bucket"].startswith("idle_"))
    assert sum(row["ns"] for row in found["ledger"]) == found["span"]["span_ns"]
    assert sum(row["ns"] for row in found["idle_causes"]) == idle
    total: Counter[str] = Counter()
    for step in found["steps"]:
        assert sum(step["idle"].values()) == sum(step["idle_causes"].values())
        total.update(step["idle"])
    booked: Counter[str] = Counter()
    for row in found["ledger"]:
        booked[row["bucket"]] += row["ns"] if row["bucket"].startswith("idle_") else 0
    assert +total == +booked
    for bucket in ("idle_alloc", "idle_no_work", "idle_sync", "idle_host", "idle_launch"):
        assert total[bucket] >= 40_000, bucket
    assert {row["kind"] for row in found["planted"] if row["times"]} == {plant.kind for plant in plants}


def test_what_is_planted_can_be_read(tmp_path: Path) -> None:
    late = replace(EAGER, output=2, arrivals_every=4)
    truth(tmp_path, late, *ALL, variant=Variant(stacks=True))
    trace = read_trace(tmp_path / "run.json")
    assert not trace.quality
    launches = [trace.text(code) for code in trace.launches["name"]]
    assert launches.count("cudaMalloc") == launches.count("cudaFree") == 4
    ops = [trace.text(code) for code in trace.ops["name"]]
    assert ops.count("aten::item") == ops.count("aten::_local_scalar_dense") == ops.count("aten::empty") == 4
    text = (tmp_path / "run.json").read_text()
    for frame, times in (("scheduler.py(210): schedule", 4), ("queue.py(154): get", 2)):
        assert text.count(f'"{frame}"') == times
    assert '"name": "cudaFree", "pid": 40001' in text


@pytest.mark.parametrize(("scenario", "plant", "said"), [
    (EAGER, Plant("rain", 1), "unknown cause 'rain'"), (EAGER, Plant("sync", -1), "sync is planted with -1"),
    (EAGER, Plant("sync", 1, 0), "every 0"), (EAGER, Plant("rank", 1), "waits for no other"),
    (EAGER, Plant("graph_launch", 1), "without graphs"),
])  # fmt: skip
def test_what_cannot_be_planted_is_refused(scenario: Scenario, plant: Plant, said: str) -> None:
    with pytest.raises(InputError, match=said):
        passes(replace(scenario, plants=(plant,)))
    with pytest.raises(InputError, match="more than 64"):
        passes(replace(scenario, plants=(Plant("sync", 1),) * 65))
