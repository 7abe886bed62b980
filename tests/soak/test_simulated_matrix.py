"""The analysis against the truth over models, number types, batch sizes and context lengths: nothing is tuned to one.

Two aspects are left to the small matrix, which says where and why they may differ: the request's times, and how much
is known at all. An op of experts runs two kernels of one name, among which its work goes by their time: where one of
them is near the ridge, what waits for memory and what for other reasons is told apart for both together only.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulate.compare import ASPECTS, Case
from traceanalyzer import read_trace
from traceanalyzer.analysis.pipeline import analyze
from traceanalyzer.errors import InputError
from traceanalyzer.simulate.limits import check
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.scenario import Scenario
from traceanalyzer.simulate.write import simulate

pytestmark = pytest.mark.soak

H200 = Scenario(gpu="h200-sxm", output=3)
BATCHES, CONTEXTS = (1, 8, 64), (128, 4_096, 32_000)
DENSE = [
    replace(H200, model=model, weights=weights, dtype="fp16", batch=batch, prompt=context)
    for model, weights, batch, context in itertools.product(
        ("llama-3.1-8b", "qwen3-0.6b"), ("same", "fp8", "int4"), BATCHES, CONTEXTS
    )
]
EXPERTS = [
    replace(H200, model=model, batch=batch, prompt=context)
    for model, batch, context in itertools.product(("qwen3-30b-a3b", "mixtral-8x7b"), BATCHES, CONTEXTS)
]
NO_CLAIM = {"coverage", "request"}
NEAR_THE_RIDGE = {("qwen3-30b-a3b", 1, 4_096): {"ledger"}}


def fits(scenario: Scenario) -> bool:
    try:
        check(scenario)
        next(iter(passes(scenario)))
    except InputError:
        return False
    return True


@pytest.mark.parametrize("scenarios", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_every_combination_that_fits_agrees(scenarios: list[Scenario], tmp_path: Path) -> None:
    wrong, done = {}, 0
    for scenario in filter(fits, scenarios):
        (written,) = simulate(scenario, tmp_path / "run.json", passes)
        case = Case(analyze([read_trace(written.trace)]), json.loads(written.truth.read_text()))
        left_out = NO_CLAIM | NEAR_THE_RIDGE.get((scenario.model, scenario.batch, scenario.prompt), set())
        lines = [line for name, judge in ASPECTS.items() if name not in left_out for line in judge(case)]
        name = f"{scenario.model} {scenario.weights} {scenario.batch} x {scenario.prompt}"
        wrong |= {name: lines[:4]} if lines else {}
        done += 1
    assert not wrong
    assert done >= len(scenarios) // 2
