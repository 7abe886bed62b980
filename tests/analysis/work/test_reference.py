"""The work models against independent reference values, call by call and summed over real traces."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.conftest import SHARED
from traceanalyzer.analysis import activity, kernels
from traceanalyzer.analysis.shapes import Signature
from traceanalyzer.analysis.work import measure, op_work
from traceanalyzer.trace import read_trace
from traceanalyzer.trace.tables import KERNEL, Trace

H100 = "h100-hf-qwen1.5-forward.json.gz"
MI300X = "mi300x-sglang-qwen3-8b-prefill.json.gz"
B200 = "b200-vllm-eager-prefill.json.gz"

# What the reference rows leave out: the values of arguments that are no tensors, as the traces record them.
CONCRETE = {
    "aten::_scaled_dot_product_flash_attention": ("", "", "", "0.", "True", "False", "0.125"),
    "aiter::mha_batch_prefill": (*[""] * 6, "1024", "1024", "0.", "0.088", "0.", "False", "True", "-1", "-1"),
    "aten::mean": ("", "[-1]", "True", ""),
    "sgl_kernel::rotary_embedding": ("", "", "", "128", "", "True"),
}


def freeze(value: Any) -> Any:
    return tuple(freeze(v) for v in value) if isinstance(value, list) else value


def rows(*checks: str) -> list[Any]:
    """Reference rows of the traces that run eagerly (a graph replay has no shapes of its own)."""
    path = SHARED / "oracle" / "op-work.json"
    if not path.is_file():
        return [pytest.param({}, id="reference values missing")]
    data = json.loads(path.read_text())
    return [
        pytest.param(row, id=f"{name[:6]}-{number}-{row['op']}")
        for name in (H100, MI300X)
        for number, row in enumerate(data[name]["rows"])
        if row["check"] in checks and row["input_dims"] is not None
    ]


def signature(row: dict[str, Any]) -> Signature:
    return Signature(freeze(row["input_dims"]), tuple(row["input_types"]), CONCRETE.get(row["op"], ()), ())


@pytest.mark.parametrize("row", rows("exact"))
def test_exact_rows(row: dict[str, Any], oracle: Path) -> None:
    work = op_work(row["op"], signature(row))
    assert work is not None
    scalar = "double" in row["input_types"]
    assert work.flops == pytest.approx(row["flops_per_call"], rel=1e-6)
    assert work.bytes == pytest.approx(row["bytes_per_call"], rel=1e-3 if scalar else 1e-6)
    assert not work.estimated


# A scan's passes re-read their input: only the least that it moves is known.
AT_LEAST = {"aten::cumsum"}


@pytest.mark.parametrize("row", rows("bytes_only"))
def test_rows_whose_bytes_are_agreed(row: dict[str, Any], oracle: Path) -> None:
    work = op_work(row["op"], signature(row))
    assert work is not None
    if row["op"] in AT_LEAST:
        assert (work.flops, work.bytes) == (None, None)
        assert work.bytes_min == pytest.approx(row["bytes_per_call"], rel=0.02)
        return
    assert work.bytes == pytest.approx(row["bytes_per_call"], rel=0.02)
    if row["op"] == "aten::copy_":
        assert work.flops == 0


@pytest.fixture(scope="module")
def measured(request: pytest.FixtureRequest) -> tuple[Trace, pd.DataFrame]:
    trace = read_trace(SHARED / "traces" / request.param)
    found = activity.build(trace)
    table = measure(trace, found, kernels.classes(trace, found))
    return trace, table.assign(duration_ns=found.table["duration_ns"], kind=found.table["kind"], op=found.table["op"])


def share_known(table: pd.DataFrame, column: str) -> float:
    ran = table[table["kind"] == KERNEL]
    return float(ran["duration_ns"][ran[column].notna()].sum() / ran["duration_ns"].sum())


@pytest.mark.parametrize("measured", [MI300X], indirect=True)
def test_a_prefill_of_an_8b_model(measured: tuple[Trace, pd.DataFrame], traces: Path) -> None:
    """36 layers on 15360 tokens: qkv 6144, o 4096, gate and up 24576, down 12288 x 4096; lm_head on 15 rows."""
    _, table = measured
    gemm = table[table["category"] == "gemm"]
    layer = 15360 * 4096 * (6144 + 4096 + 24576 + 12288)
    flops = 2.0 * (36 * layer + 15 * 4096 * 151936)
    assert gemm["flops"].sum() == pytest.approx(flops, rel=1e-9)
    assert flops == pytest.approx(2.134e14, rel=5e-4)
    assert gemm["flops"].sum() / gemm["duration_ns"].sum() / 1e3 == pytest.approx(508, rel=1e-3)
    weights = 2.0 * (36 * 4096 * (6144 + 4096 + 24576 + 12288) + 4096 * 151936)
    assert gemm["weight_bytes"].sum() == pytest.approx(weights, rel=1e-9)
    attention = table[table["kv_bytes"].notna()]
    assert attention["flops"].sum() == pytest.approx(36 * 15 * 2 * 32 * (1024 * 1024 / 2) * 256, rel=1e-9)
    assert share_known(table, "flops") > 0.999
    assert share_known(table, "bytes") > 0.999


@pytest.mark.parametrize("measured", [H100], indirect=True)
def test_kernels_that_lost_their_op_take_their_siblings_work(
    measured: tuple[Trace, pd.DataFrame], traces: Path
) -> None:
    """Two passes of 24 layers on 16 x 559 tokens; the recording began within the first, 10 layers before its end."""
    _, table = measured
    ran = table[table["kind"] == KERNEL]
    without = ran["op"] < 0
    assert without.sum() == 436
    assert (ran["tensor_core"][without] == 1).sum() == 83
    assert set(ran["source"][without]) == {"siblings", "none"}
    assert share_known(table, "bytes") > 0.998
    assert share_known(table, "flops") > 0.998
    owned = ran[~without]
    assert owned["duration_ns"][owned["flops"].notna()].sum() / owned["duration_ns"].sum() > 0.9999


@pytest.mark.parametrize("measured", [H100], indirect=True)
def test_every_layer_has_the_same_products(measured: tuple[Trace, pd.DataFrame], traces: Path) -> None:
    """A layer multiplies by q, k, v (with bias) and o of 1024 x 1024, gate, up and down of 1024 x 2816."""
    _, table = measured
    attention = np.flatnonzero((table["category"] == "attention").to_numpy())
    assert len(attention) == 34
    small, large = 2.0 * 8944 * 1024 * 1024, 2.0 * 8944 * 1024 * 2816
    gemm = table["flops"].where(table["category"] == "gemm", 0.0)
    layers = (gemm[first:last] for first, last in pairwise(attention) if last - first < 60)
    per_layer = [float(layer.sum()) for layer in layers]
    assert len(per_layer) == 32  # one gap between two layers spans the end of a pass and the start of the next
    assert per_layer == [4 * small + 3 * 8944 * 1024 + 3 * large] * 32


@pytest.mark.parametrize("measured", [B200], indirect=True)
def test_what_no_shape_tells_is_not_guessed(measured: tuple[Trace, pd.DataFrame], traces: Path) -> None:
    """Experts, collectives and attention without context hold 80 % of the time of this step."""
    trace, table = measured
    names = table["op"].map(lambda op: trace.text(int(trace.ops["name"].iloc[op])) if op >= 0 else "")
    for op in ("vllm::moe_forward", "symm_mem::multimem_all_reduce_", "vllm::unified_attention_with_output"):
        assert table["flops"][(names == op) & (table["kind"] == KERNEL)].isna().all()
    attention = table[names == "vllm::unified_attention_with_output"]
    main = attention[attention["q_len"] > 0]
    assert len(main) == 36
    assert main[["q_len", "heads", "kv_heads", "head_dim"]].drop_duplicates().to_numpy().tolist() == [[888, 8, 1, 64]]
    assert share_known(table, "flops") == pytest.approx(0.198, abs=2e-3)


def test_a_cpu_run_knows_nearly_all_its_work(traces: Path) -> None:
    trace = read_trace(traces / "cpu-switch-transformer.json.gz")
    found = activity.build(trace)
    table = measure(trace, found, kernels.classes(trace, found))
    time = found.table["duration_ns"]
    gemm = table["category"] == "gemm"
    assert time[gemm].sum() / 1e9 == pytest.approx(2.236, abs=1e-3)
    assert time[table["flops"].notna()].sum() / time.sum() > 0.99
