"""A real decode step replayed from a graph, without its capture: against independent figures, op by op.

The reference models its windowed layers as full ones; here they are corrected from first principles.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from traceanalyzer import read_trace
from traceanalyzer.analysis import hta
from traceanalyzer.analysis.pipeline import Analysis, AnalysisOptions, analyze
from traceanalyzer.catalog.hf_config import given

NAME = "mi300x-vllm-decode-full-graph.json.gz"
SEQUENCES, CONTEXT, WINDOW = 32, 55_086, 128
HEADS, KV_HEADS, HEAD = 64, 8, 64


@pytest.fixture(scope="module", params=[None, "gpt-oss-20b"])
def found(request: pytest.FixtureRequest, traces: Path) -> Analysis:
    """The analysis with and without the model's name."""
    options = AnalysisOptions(model=given(request.param) if request.param else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hta, "ask", lambda _: (None, ()))
        return analyze([read_trace(traces / NAME)], options)


@pytest.fixture(scope="module")
def reference(oracle: Path) -> list[dict[str, Any]]:
    """The rows with known work, attention corrected: of 24 layers 12 look back 128 tokens in each sequence."""
    rows = json.loads((oracle / "op-work.json").read_text())[NAME]["rows"]
    out = []
    for row in rows:
        if row["flops_per_call"] is None or row["bytes_per_call"] is None:
            continue
        if not row["op"].startswith("vllm::unified_attention"):
            out.append(row)
            continue
        keys = SEQUENCES * WINDOW
        queries = 2 * SEQUENCES * HEADS * HEAD * 2
        full = {**row, "count": 12}
        assert row["flops_per_call"] == 4 * HEADS * HEAD * CONTEXT
        assert row["bytes_per_call"] == queries + 2 * CONTEXT * KV_HEADS * HEAD * 2
        moved = queries + 2 * keys * KV_HEADS * HEAD * 2
        out += [full, {**full, "flops_per_call": 4 * HEADS * HEAD * keys, "bytes_per_call": moved}]
    return out


def test_nearly_all_of_the_time_is_known(found: Analysis) -> None:
    (decode,) = [phase for phase in found.main.phases if phase.phase == "decode"]
    assert decode.flops_known_share is not None
    assert decode.bytes_known_share is not None
    assert decode.flops_known_share >= 0.9
    assert decode.bytes_known_share >= 0.9
    assert not [note for note in found.quality if note.code == "replay_refused"]


def test_totals_agree_with_the_reference(found: Analysis, reference: list[dict[str, Any]]) -> None:
    (decode,) = [phase for phase in found.main.phases if phase.phase == "decode"]
    assert decode.flops == pytest.approx(sum(row["count"] * row["flops_per_call"] for row in reference), rel=0.15)
    assert decode.bytes == pytest.approx(sum(row["count"] * row["bytes_per_call"] for row in reference), rel=0.05)


def test_each_projection_and_each_attention_agrees_exactly(found: Analysis, reference: list[dict[str, Any]]) -> None:
    table = found.main.timeline.table
    for category, op in (("gemm", "vllm::rocm_unquantized_gemm"), ("attention", "vllm::unified_attention_with_output")):
        rows = table[(table["category"] == category) & table["flops"].notna()]
        ours = rows.groupby(["flops", "bytes"]).size().to_dict()
        sinks = HEADS * 2 if category == "attention" else 0  # a number per head that the reference leaves out
        expected = {
            (row["flops_per_call"], row["bytes_per_call"] + sinks): row["count"]
            for row in reference
            if row["op"].startswith(op)
        }
        assert ours == expected


def test_experts_are_a_range_that_holds_the_reference(found: Analysis, reference: list[dict[str, Any]]) -> None:
    table = found.main.timeline.table
    rows = table[(table["category"] == "moe") & table["weight_bytes_max"].notna()]
    assert len(rows) == 48
    for op, fused in (("up", True), ("down", False)):
        (row,) = [row for row in reference if row["op"].endswith(f"unfused_{op}")]
        named = [found.main.timeline.trace.text(int(code)).endswith("swiglu") == fused for code in rows["name"]]
        own = rows[named]
        moved = own["bytes"] - own["weight_bytes"]
        assert ((own["weight_bytes_min"] + moved) < row["bytes_per_call"]).all()
        assert ((own["weight_bytes_max"] + moved) > row["bytes_per_call"]).all()
        padding = (3072 / 2880) ** 2  # the reference counts the FLOPs of what is padded to whole tiles
        assert own["flops"].to_numpy() == pytest.approx(row["flops_per_call"] / padding)
        assert own["estimated"].all()


def test_the_work_says_where_it_comes_from(found: Analysis) -> None:
    table = found.main.timeline.table
    products = table[table["category"].isin(("gemm", "moe", "attention")) & table["flops"].notna()]
    assert set(products["source"]) == {"model-config", "shapes"}
    assert len(products[products["source"] == "shapes"]) == 1  # the output layer ran outside the graph
    floor = found.decode_floor
    assert floor is not None
    assert floor.source == "model-config"
    assert floor.floor_ns is not None
    assert floor.floor_ns < floor.measured_ns
