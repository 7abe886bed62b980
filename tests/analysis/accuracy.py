"""How right the analysis is where a trace says nothing: simulated runs, stripped, against their truth.

Each run is written without shapes, ops and labels, and without the recorder's words on the model: runtime calls and
kernels are all that is left. It is analysed twice, with the model given and without.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.analysis.truth import share_of_time_right
from traceanalyzer import read_trace
from traceanalyzer.analysis.pipeline import Analysis, AnalysisOptions, analyze
from traceanalyzer.catalog import models
from traceanalyzer.catalog.hf_config import GivenModel
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.scenario import Scenario
from traceanalyzer.simulate.variants import Variant
from traceanalyzer.simulate.write import simulate
from traceanalyzer.trace.tables import KERNEL, Trace

BARE = Variant(shapes=False, labels=False, ops=False)
GENERATION = Scenario(model="llama-3.1-8b", gpu="h100-sxm-80gb", prompt=512, output=12, batch=4)
GRAPH = replace(GENERATION, mode="graph")

SCENARIOS: Mapping[str, Scenario] = {
    "eager": GENERATION,
    "graph": GRAPH,
    "graph, batch of one": replace(GRAPH, batch=1),
    "graph, padded to captured sizes": replace(GRAPH, batch=5, capture_sizes=(1, 2, 4, 8)),
    "chunked prefill, mixed steps": replace(GENERATION, batch=6, chunk=256, arrivals_every=3),
    "chunked prefill, decode in graphs": replace(GRAPH, batch=6, chunk=256, arrivals_every=3),
    "experts, graph": replace(GRAPH, model="qwen3-30b-a3b"),
    "int4 weights, graph": replace(GRAPH, weights="int4"),
    "fp8 weights and cache, graph": replace(GRAPH, weights="fp8", kv="fp8"),
    "sliding windows, graph": replace(GRAPH, model="gemma-3-12b", prompt=2048),
    "two ranks, graph": replace(GRAPH, ranks=2),
    "pieces of graphs": replace(GRAPH, mode="piecewise"),
    "speculative decoding, graph": replace(GRAPH, speculate=3, draft="llama-3.2-1b", output=24),
}
"""Name -> what runs."""


@dataclass(frozen=True)
class Measured:
    """One run against its truth. Shares are 0 to 1; errors are relative, of prefill and decode together.

    `phases_right`: GPU time in its true phase, the model given. `flops_error`, `bytes_error`: the model given, what is
    unknown counted as nothing. `flops_known`, `bytes_known`: the share of kernel time whose work is known without the
    model, communication left out.
    """

    name: str
    phases_right: float
    phases_right_alone: float
    flops_error: float
    bytes_error: float
    flops_known: float
    bytes_known: float


def measure(name: str, folder: Path) -> Measured:
    """Simulate one of `SCENARIOS`, strip and analyse it."""
    scenario = SCENARIOS[name]
    written = simulate(scenario, folder / "run.json", passes, variant=BARE)[0]
    truth = json.loads(Path(written.truth).read_text(encoding="utf-8"))
    trace = _anonymous(read_trace(written.trace))
    known, alone = analyze([trace], AnalysisOptions(model=_config(scenario))), analyze([trace])
    flops, moved = _error(known, truth, "flops"), _error(known, truth, "bytes")
    return Measured(
        name,
        share_of_time_right(known, truth),
        share_of_time_right(alone, truth),
        flops,
        moved,
        _known(alone, "flops"),
        _known(alone, "bytes"),
    )


def _config(scenario: Scenario) -> GivenModel:
    """The config that a user would give: the public one, its layers in the bits that the scenario stores them in."""
    base = models.find(scenario.model)
    bits = {"same": None, "int4": 4.125, "int8": 8.0, "fp8": 8.0, "fp4": 4.5}[scenario.weights]
    if bits is None:
        return GivenModel(base.id, base)
    stored = replace(base.weight_bits, attention=bits, mlp=bits)
    return GivenModel(
        "config.json", replace(base, weight_bits=stored, weight_quantization=scenario.weights, confidence="given")
    )


def _anonymous(trace: Trace) -> Trace:
    """The trace without what its recorder says of the model."""
    block = {key: value for key, value in (trace.metadata.collector or {}).items() if key != "model"}
    return replace(trace, metadata=replace(trace.metadata, collector=block))


def _error(found: Analysis, truth: Mapping[str, Any], column: str) -> float:
    """The largest relative error of a phase's total, over the phases of the model that is given (no draft model's)."""
    table = found.main.timeline.table
    computing = (table["kind"] == KERNEL) & (table["category"] != "comm")
    errors = []
    for phase in sorted({row["phase"] for row in truth["kernels"]} & {"prefill", "decode", "mixed"}):
        expected = sum(row[column] or 0.0 for row in truth["kernels"] if row["phase"] == phase)
        total = float(np.nansum(table.loc[computing & (table["phase"] == phase), column].to_numpy(np.float64)))
        errors.append(abs(total / expected - 1.0))
    return max(errors)


def _known(found: Analysis, column: str) -> float:
    """The share of the kernel time that computes whose work is known."""
    table = found.main.timeline.table
    computing = table[(table["kind"] == KERNEL) & (table["category"] != "comm")]
    known = computing.loc[computing[column].notna(), "duration_ns"].sum()
    return float(known / computing["duration_ns"].sum())
