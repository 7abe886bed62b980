"""The floor of runs whose shapes were not recorded, from a model that is given or recognised, against the truth.

The simulator's own block on the model is taken away, so that nothing but the trace and the user speak.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from traceanalyzer import read_trace
from traceanalyzer.analysis.pipeline import Analysis, AnalysisOptions, analyze
from traceanalyzer.catalog import models
from traceanalyzer.catalog.hf_config import GivenModel, given
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.scenario import Scenario
from traceanalyzer.simulate.variants import Variant
from traceanalyzer.simulate.write import simulate
from traceanalyzer.trace.tables import Trace

H100 = "h100-sxm-80gb"
GRAPH = Scenario(output=6, batch=4, mode="graph")
BARE = Variant(shapes=False, ops=False)
"""Runtime calls, kernels and step labels: nothing of the model but its kernels' names."""
OTHER = {"layers": 11, "hidden": 1536, "heads": 24, "kv_heads": 6, "head_dim": 64, "ffn": 4000, "vocab": 50_000}


@dataclass(frozen=True)
class Simulated:
    trace: Trace
    truth: Mapping[str, Any]

    def analysed(self, model: GivenModel | None) -> Analysis:
        return analyze([self.trace], AnalysisOptions(model=model))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Simulated]:
    """The first rank of a scenario without the block's words on the model; each is simulated once."""
    folder: Path = tmp_path_factory.mktemp("simulated")
    known: dict[tuple[Scenario, Variant], Simulated] = {}

    def of(scenario: Scenario, variant: Variant = BARE) -> Simulated:
        if (scenario, variant) not in known:
            written = simulate(scenario, folder / f"{len(known)}.json", passes, variant=variant)[0]
            trace = read_trace(written.trace)
            block = {key: value for key, value in (trace.metadata.collector or {}).items() if key != "model"}
            trace = replace(trace, metadata=replace(trace.metadata, collector=block))
            known[scenario, variant] = Simulated(trace, json.loads(Path(written.truth).read_text()))
        return known[scenario, variant]

    return of


@pytest.fixture
def other_model(monkeypatch: pytest.MonkeyPatch) -> GivenModel:
    """A model with other sizes, for the simulator under a name of its own."""
    made = replace(models.find("llama-3.2-1b"), id="other", tied_embeddings=False, **OTHER)  # type: ignore[arg-type]
    monkeypatch.setitem(models._names(), "other", made)  # type: ignore[index]
    return GivenModel("config.json", replace(made, confidence="given"))


def check(found: Analysis, truth: Mapping[str, Any], within: float = 0.05) -> None:
    floor, expected = found.decode_floor, truth["decode_floor"]
    assert floor is not None
    assert floor.source == "model-config"
    assert floor.weight_bytes == pytest.approx(expected["weight_bytes"], rel=within)
    assert floor.kv_bytes == pytest.approx(expected["kv_bytes"], rel=within)
    assert floor.floor_ns == pytest.approx(expected["floor_ns"], rel=within)
    assert floor.measured_ns == pytest.approx(expected["measured_ns"], rel=0.001)


@pytest.mark.parametrize(
    "scenario",
    [
        GRAPH,
        replace(GRAPH, mode="eager"),
        replace(GRAPH, dtype="fp16", batch=1),
        replace(GRAPH, model="qwen3-30b-a3b", gpu=H100, batch=8),
        replace(GRAPH, model="gpt-oss-20b", gpu=H100, batch=16),
        replace(GRAPH, model="gemma-3-12b", prompt=3000),
        replace(GRAPH, model="deepseek-v2-lite", gpu=H100),
        replace(GRAPH, model="llama-3.1-8b", gpu=H100, kv="fp8"),
        replace(GRAPH, model="opt-6.7b", dtype="fp16"),
        replace(GRAPH, ranks=2),
        replace(GRAPH, model="mixtral-8x7b", gpu=H100, ranks=4),
    ],
    ids=lambda one: f"{one.model} {one.mode} {one.dtype} x{one.batch} tp{one.ranks} kv {one.kv}",
)
def test_the_floor_of_a_given_model(run: Callable[..., Simulated], scenario: Scenario) -> None:
    variant = Variant() if scenario.kv != "same" or "gpt-oss" in scenario.model else BARE  # what only shapes tell
    simulated = run(scenario, variant)
    found = simulated.analysed(given(scenario.model))
    check(found, simulated.truth)
    assert found.weights is not None
    assert found.weights.source == "model-config"
    assert found.memory is not None
    assert found.memory.source == "model-config"


def test_without_shapes_and_without_a_model_nothing_is_known(run: Callable[..., Simulated]) -> None:
    found = run(GRAPH).analysed(None)
    assert found.decode_floor is not None
    assert (found.decode_floor.floor_ns, found.decode_floor.source) == (None, "none")
    assert found.weights is None


def test_a_known_shape_is_recognised_and_gives_the_floor(run: Callable[..., Simulated]) -> None:
    simulated = run(GRAPH, Variant())  # decode passes replay a graph; the prefill shows its shapes
    found = simulated.analysed(None)
    check(found, simulated.truth)
    assert found.main.timeline.model.name == "llama-3-8b / llama-3.1-8b"
    assert "bytes_from_recognised_model" in found.decode_floor.assumptions  # type: ignore[union-attr]
    given_one = simulated.analysed(given("llama-3.1-8b")).decode_floor
    assert found.decode_floor.confidence < given_one.confidence  # type: ignore[union-attr, operator]


def test_another_hidden_size_and_another_number_of_layers(
    run: Callable[..., Simulated], other_model: GivenModel
) -> None:
    simulated = run(replace(GRAPH, model="other"), Variant())
    check(simulated.analysed(other_model), simulated.truth)
    alone = simulated.analysed(None)  # of no public shape
    assert alone.decode_floor is not None
    assert alone.decode_floor.floor_ns is None
    model = alone.main.timeline.model
    assert (model.layers, model.hidden, model.vocab, model.name) == (11, 1536, 50_000, None)
    assert set(model.sources.values()) == {"trace"}


def test_a_model_with_other_sizes_than_the_trace_shows(run: Callable[..., Simulated]) -> None:
    found = run(GRAPH, Variant()).analysed(given("llama-3.2-1b"))
    (note,) = [note for note in found.quality if note.code == "given_model_contradicted"]
    assert note.detail.startswith("layers 16, the trace says 32; hidden 2048, the trace says 4096")
    assert found.decode_floor is not None
    assert found.decode_floor.floor_ns is None
    assert found.main.timeline.model.hidden == 4096


def test_recorded_shapes_are_never_overruled(run: Callable[..., Simulated]) -> None:
    simulated = run(replace(GRAPH, mode="eager"), Variant())
    alone, wrong = simulated.analysed(None), simulated.analysed(given("llama-2-7b"))
    assert alone.decode_floor is not None
    assert wrong.decode_floor is not None
    assert wrong.decode_floor == alone.decode_floor
    assert alone.decode_floor.source == "shapes"


def test_the_kernels_of_a_described_step_add_up_to_its_bytes(run: Callable[..., Simulated]) -> None:
    simulated = run(replace(GRAPH, model="qwen3-30b-a3b", gpu=H100, batch=8))
    found = simulated.analysed(given("qwen3-30b-a3b"))
    assert found.decode is not None
    assert found.decode.described
    rows = found.decode.rows
    truth = simulated.truth["decode_floor"]
    assert rows["weight_bytes"].sum() == pytest.approx(truth["weight_bytes"], rel=0.05)
    assert rows["kv_bytes"].sum() == pytest.approx(truth["kv_bytes"], rel=0.05)


def test_quantised_weights_need_a_config_that_says_so(run: Callable[..., Simulated]) -> None:
    simulated = run(replace(GRAPH, weights="int8"))
    plain = simulated.analysed(given("llama-3.1-8b"))
    assert [note.code for note in plain.quality if "model" in note.code] == ["given_model_contradicted"]
    assert plain.decode_floor is not None
    assert plain.decode_floor.floor_ns is None
    base = models.find("llama-3.1-8b")
    bits = replace(base.weight_bits, attention=8.0, mlp=8.0)
    packed = GivenModel("config.json", replace(base, weight_bits=bits, weight_quantization="int8"))
    check(simulated.analysed(packed), simulated.truth)
