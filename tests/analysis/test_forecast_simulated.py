"""What the step-time model predicts for another run against that run, both simulated.

The simulator has a cost model of its own and shares nothing with the analysis but data, so a prediction made from one
trace is checked against the recorded steps of another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from traceanalyzer import read_trace
from traceanalyzer.analysis.forecast import StepModel, step_model, with_sequences
from traceanalyzer.analysis.forecast.model import LAUNCH, QUANTISED_EFFECT
from traceanalyzer.analysis.pipeline import analyze
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.scenario import Scenario
from traceanalyzer.simulate.write import simulate

LARGE = Scenario(output=6)  # 8 billion parameters on an A100: bound by memory
SMALL = Scenario(output=6, model="qwen2.5-0.5b")  # bound by its host
GRAPH = replace(LARGE, mode="graph")  # no shapes: the model as the recorder describes it
EXPERTS = Scenario(output=6, model="qwen3-30b-a3b", gpu="h100-sxm-80gb", batch=8)
HIDDEN_BATCH = (SMALL, {"batch": 8})
"""A host that is late hides what eight sequences add to a step: here the prediction is that it stays as long."""
H100 = "h100-sxm-80gb"
COMPUTE, BANDWIDTH = 989 / 312, 3350 / 2039
"""An H100 over an A100 80GB, by their sheets."""


@pytest.fixture(scope="module")
def decode(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Scenario], StepModel]:
    """The mean decode step of a scenario; each is simulated once."""
    folder: Path = tmp_path_factory.mktemp("simulated")
    known: dict[Scenario, StepModel] = {}

    def of(scenario: Scenario) -> StepModel:
        if scenario not in known:
            (written,) = simulate(scenario, folder / f"{len(known)}.json", passes)
            main = analyze([read_trace(written.trace)]).main
            model = step_model(main.timeline, main.ledger, "decode")
            assert model is not None
            known[scenario] = model
        return known[scenario]

    return of


@pytest.mark.parametrize(
    ("base", "change", "other", "within"),
    [
        (LARGE, lambda m: m.with_weights(0.5, QUANTISED_EFFECT), {"weights": "int8"}, 0.06),
        (LARGE, lambda m: m.with_weights(0.52 / 2, QUANTISED_EFFECT), {"weights": "int4"}, 0.08),
        (LARGE, lambda m: m.with_device(COMPUTE, BANDWIDTH), {"gpu": H100}, 0.02),
        (LARGE, lambda m: with_sequences(m, 8), {"batch": 8}, 0.03),
        (LARGE, lambda m: with_sequences(m, 32), {"batch": 32}, 0.05),
        (replace(LARGE, batch=8), lambda m: with_sequences(m, 1 / 8), {"batch": 1}, 0.03),
        (replace(LARGE, batch=32), lambda m: m.with_kv(0.5), {"kv": "fp8"}, 0.05),
        (SMALL, lambda m: m.with_device(COMPUTE, BANDWIDTH), {"gpu": H100}, 0.03),
        (SMALL, lambda m: with_sequences(m, 8), {"batch": 8}, 0.03),
        (SMALL, lambda m: m.without_idle(*LAUNCH), {"mode": "graph"}, 0.05),
        (GRAPH, lambda m: m.with_weights(0.5, QUANTISED_EFFECT), {"weights": "int8"}, 0.06),
        (GRAPH, lambda m: m.with_device(COMPUTE, BANDWIDTH), {"gpu": H100}, 0.03),
        (GRAPH, lambda m: with_sequences(m, 8), {"batch": 8}, 0.03),
        (EXPERTS, lambda m: with_sequences(m, 4), {"batch": 32}, 0.15),
    ],
)
def test_a_change_predicted_from_one_run_is_what_the_other_run_shows(
    decode: Callable[[Scenario], StepModel],
    base: Scenario,
    change: Callable[[StepModel], StepModel],
    other: dict[str, object],
    within: float,
) -> None:
    before, after = decode(base), decode(replace(base, **other))
    assert change(before).step_ns == pytest.approx(after.step_ns, rel=within)
    if (base, other) != HIDDEN_BATCH:
        assert abs(after.step_ns / before.step_ns - 1) > 0.02, "nothing was predicted"
