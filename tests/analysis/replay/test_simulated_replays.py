"""Simulated runs without shapes and ops, their model given: the work of every kernel against what was put in.

Decode passes replay graphs; prefill runs kernel by kernel, recorded as bare. The block on the model is taken away.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from traceanalyzer import read_trace
from traceanalyzer.analysis import hta
from traceanalyzer.analysis.pipeline import Analysis, AnalysisOptions, analyze
from traceanalyzer.catalog import models
from traceanalyzer.catalog.hf_config import GivenModel, given
from traceanalyzer.catalog.models import ModelConfig, SlidingWindow
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.scenario import Scenario
from traceanalyzer.simulate.variants import Variant
from traceanalyzer.simulate.write import simulate
from traceanalyzer.trace.tables import KERNEL, Trace

H100 = "h100-sxm-80gb"
GRAPH = Scenario(output=2, batch=4, mode="graph")
BARE = Variant(shapes=False, ops=False)


@dataclass(frozen=True)
class Simulated:
    trace: Trace
    truth: Mapping[str, Any]


Run = Callable[..., Simulated]


@pytest.fixture(scope="module", autouse=True)
def _alone() -> Any:
    """Without the figures of others beside, which take as long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hta, "ask", lambda _: (None, ()))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The first rank of a scenario, recorded without shapes, ops and the block's words on the model."""
    folder: Path = tmp_path_factory.mktemp("replays")
    known: dict[Scenario, Simulated] = {}

    def of(scenario: Scenario) -> Simulated:
        if scenario not in known:
            written = simulate(scenario, folder / f"{len(known)}.json", passes, variant=BARE)[0]
            trace = read_trace(written.trace)
            block = {key: value for key, value in (trace.metadata.collector or {}).items() if key != "model"}
            trace = replace(trace, metadata=replace(trace.metadata, collector=block))
            known[scenario] = Simulated(trace, json.loads(Path(written.truth).read_text()))
        return known[scenario]

    return of


def packed(name: str, bits: float) -> GivenModel:
    """A public model whose layers are stored in so many bits."""
    base = models.find(name)
    stored = replace(base.weight_bits, attention=bits, mlp=bits)
    return GivenModel("config.json", replace(base, weight_bits=stored, weight_quantization="int4", confidence="given"))


def unpacked(name: str) -> GivenModel:
    """A public model whose experts are stored as all else is."""
    base = models.find(name)
    stored = replace(base.weight_bits, experts=base.weight_bits.attention)
    return GivenModel("config.json", replace(base, weight_bits=stored, weight_quantization=None, confidence="given"))


def sums(found: Analysis, truth: Mapping[str, Any], phase: str) -> dict[str, tuple[float, float]]:
    """FLOPs and bytes of a phase, ours and the truth's, of the kernels for which the truth knows them."""
    table = found.main.timeline.table
    own = table[(table["phase"] == phase) & (table["kind"] == KERNEL)]
    names = pd.Series([found.main.timeline.trace.text(int(code)) for code in own["name"]], index=own.index)
    total = {}
    for what in ("flops", "bytes"):
        rows = [row for row in truth["kernels"] if row["phase"] == phase and row[what] is not None]
        mine = own[what].groupby(names).sum()
        total[what] = (sum(float(mine.get(row["name"], 0.0)) for row in rows), sum(row[what] for row in rows))
    return total


def check(found: Analysis, truth: Mapping[str, Any], phase: str = "decode", within: float = 0.05) -> None:
    assert not [note for note in found.quality if note.code == "replay_refused"]
    for what, (ours, expected) in sums(found, truth, phase).items():
        assert ours == pytest.approx(expected, rel=within), what
    (summary,) = [one for one in found.main.phases if one.phase == phase]
    assert summary.flops_known_share is not None
    assert summary.flops_known_share > 0.95


@pytest.mark.parametrize(
    ("scenario", "model"),
    [
        (replace(GRAPH, model="qwen3-30b-a3b", gpu=H100, batch=8, ranks=2), given("qwen3-30b-a3b")),
        (replace(GRAPH, model="gpt-oss-20b", gpu=H100, batch=16), unpacked("gpt-oss-20b")),
        (replace(GRAPH, model="gemma-3-12b", gpu=H100, prompt=3000), given("gemma-3-12b")),
        (replace(GRAPH, model="deepseek-v2-lite", gpu=H100), given("deepseek-v2-lite")),
        (replace(GRAPH, weights="int4"), packed("llama-3.1-8b", 4 + 16 / 128)),
        (replace(GRAPH, batch=6, capture_sizes=(8, 16)), given("llama-3.1-8b")),
    ],
    ids=lambda one: f"{one.model} x{one.batch} tp{one.ranks} {one.weights}" if isinstance(one, Scenario) else "",
)
def test_decode_and_prefill_agree_with_the_truth(run: Run, scenario: Scenario, model: GivenModel) -> None:
    simulated = run(scenario)
    found = analyze([simulated.trace], AnalysisOptions(model=model))
    check(found, simulated.truth)
    check(found, simulated.truth, "prefill")
    table = found.main.timeline.table
    assert set(table.loc[table["phase"] == "decode", "source"]) <= {"model-config", "none"}


OTHER = {"layers": 6, "hidden": 1536, "heads": 24, "kv_heads": 6, "head_dim": 64, "ffn": 4000, "vocab": 50_000}
CHANGES: Mapping[str, Mapping[str, Any]] = {
    "nothing": {},
    "hidden": {"hidden": 2048},
    "layers": {"layers": 9},
    "window": {"sliding_window": SlidingWindow(200, 3)},
    "another window": {"sliding_window": SlidingWindow(400, 2)},
}


def other(change: str) -> ModelConfig:
    made: dict[str, Any] = {**OTHER, **CHANGES[change], "id": f"other-{change.replace(' ', '-')}"}
    return replace(models.find("llama-3.2-1b"), tied_embeddings=False, **made)


def test_the_answer_follows_the_model(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_read = {}
    for change in CHANGES:
        config = other(change)
        monkeypatch.setitem(models._names(), config.id, config)
        simulated = run(replace(GRAPH, model=config.id))
        model = GivenModel("config.json", replace(config, confidence="given"))
        found = analyze([simulated.trace], AnalysisOptions(model=model))
        check(found, simulated.truth, within=0.02)
        bytes_read[change] = sums(found, simulated.truth, "decode")["bytes"][0]
    assert len(set(bytes_read.values())) == len(CHANGES)


def test_another_number_of_layers_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ran, said = other("nothing"), other("layers")
    monkeypatch.setitem(models._names(), ran.id, ran)
    model = GivenModel("config.json", replace(said, confidence="given"))
    found = analyze([run(replace(GRAPH, model=ran.id)).trace], AnalysisOptions(model=model))
    (decode,) = [one for one in found.main.phases if one.phase == "decode"]
    assert decode.flops is None
    codes = {note.code: note.detail for note in found.quality}
    assert "9" in codes.get("replay_refused", "") + codes.get("given_model_contradicted", "")


@pytest.mark.parametrize("kind", ["swap", "drop"])
def test_kernels_in_another_order_are_not_answered(run: Run, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    config = other("nothing")
    monkeypatch.setitem(models._names(), config.id, config)
    trace = run(replace(GRAPH, model=config.id)).trace
    kernels = trace.kernels.reset_index(drop=True)
    ropes = [i for i, code in enumerate(kernels["name"]) if "rotary" in trace.text(int(code))]
    place = ropes[-2]  # of the last replay's last layer but one
    if kind == "drop":
        kernels = kernels.drop(index=place).reset_index(drop=True)
    else:
        said = [column for column in kernels if column not in ("start_ns", "duration_ns", "correlation")]
        kernels.loc[[place, place + 1], said] = kernels.loc[[place + 1, place], said].to_numpy()
    model = GivenModel("config.json", replace(config, confidence="given"))
    found = analyze([replace(trace, kernels=kernels)], AnalysisOptions(model=model))
    (note,) = [note for note in found.quality if note.code == "replay_refused"]
    assert note.count == 1
    assert note.detail.startswith("layer 4: ")
    table = found.main.timeline.table
    known = table[table["category"].isin(("gemm", "gemv", "attention"))].groupby("step")["flops"].count()
    assert (known > 0).tolist() == [True] * (len(known) - 1) + [False]


def test_work_that_the_card_cannot_do_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    config = other("nothing")
    monkeypatch.setitem(models._names(), config.id, config)
    trace = run(replace(GRAPH, model=config.id)).trace
    model = GivenModel("config.json", replace(config, confidence="given"))
    found = analyze([trace], AnalysisOptions(model=model, bandwidth_gbs=200.0))
    (note,) = [note for note in found.quality if note.code == "replay_refused"]
    assert note.detail.endswith("would read its weights or its cache faster than the card can")
    table = found.main.timeline.table
    assert "model-config" not in set(table["source"])
