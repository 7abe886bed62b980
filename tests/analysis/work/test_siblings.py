"""Kernels without an op take the work of the same kernel in the same place, and of no other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.analysis.recorded import Recording
from tests.analysis.work.calls import BF16
from traceanalyzer import read_trace
from traceanalyzer.analysis import kernels
from traceanalyzer.analysis.activity import Activity, build
from traceanalyzer.analysis.work import measure
from traceanalyzer.trace.tables import KERNEL, MISSING

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_execute_kernel__5x_cublas"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>(int)"
MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<c10::BFloat16>>(int)"
COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>(int)"
CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 4>"
LOOKUP = "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2>"
ROWS, WIDE, NARROW = 256, 704, 256


class Layers:
    """Layers of an o and a down projection that share kernel name and grid but not K; the first ones lose their ops."""

    def __init__(self) -> None:
        self.recording = Recording()
        self.time = 0
        self.number = 0

    def run(self, kernel: str, duration: int, grid: int, op: str | None = None, dims: object = (),
            concrete: tuple[str, ...] = ()) -> None:  # fmt: skip
        self.number += 1
        self.time += 100_000
        if op:
            assert isinstance(dims, list)
            kinds = ["TensorList" if d and isinstance(d[0], list) else BF16 if d else "Scalar" for d in dims]
            self.recording.op(op, self.time, self.time + 90, dims, kinds, concrete or [""] * len(dims))
            self.recording.launch("cudaLaunchKernel", self.time + 10, self.number)
        size = {"grid_x": grid, "grid_y": 1, "grid_z": 1, "block_x": 128, "block_y": 1, "block_z": 1}
        self.recording.kernel(kernel, self.time + 1_000, duration, self.number if op else MISSING, **size)

    def layer(self, with_ops: bool, down_ns: int = 75_000) -> None:
        own = [ROWS, NARROW]
        self.run(COPY, 20_000, 50, "aten::copy_" if with_ops else None, [own, own])
        self.run(GEMM, 31_000, 30, "aten::mm" if with_ops else None, [own, [NARROW, NARROW]])
        self.run(ADD, 20_000, 50, "aten::add" if with_ops else None, [own, own, []])
        self.run(MUL, 50_000, 90, "aten::mul" if with_ops else None, [[ROWS, WIDE], [ROWS, WIDE]])
        self.run(GEMM, down_ns, 30, "aten::mm" if with_ops else None, [[ROWS, WIDE], [WIDE, NARROW]])
        self.run(ADD, 17_000, 50, "aten::add" if with_ops else None, [own, own, []])

    def measured(self) -> pd.DataFrame:
        trace = self.recording.trace()
        found = build(trace)
        return measure(trace, found, kernels.classes(trace, found)).assign(name=found.table["name"].map(trace.text))


def test_the_place_in_the_layer_tells_products_of_one_name_apart() -> None:
    made = Layers()
    for number in range(6):
        made.layer(with_ops=number >= 3)
    table = made.measured()
    gemms = table[table["name"] == GEMM]
    small, large = 2.0 * ROWS * NARROW * NARROW, 2.0 * ROWS * NARROW * WIDE
    assert gemms["flops"].tolist() == [small, large] * 6
    assert gemms["k"].tolist() == [NARROW, WIDE] * 6
    assert gemms["source"].tolist() == ["siblings"] * 6 + ["shapes"] * 6
    adds = table[table["name"] == ADD]
    assert adds["bytes"].tolist() == [3 * 2 * ROWS * NARROW] * 12


def test_a_kernel_that_takes_another_time_is_no_sibling() -> None:
    made = Layers()
    made.layer(with_ops=False, down_ns=150_000)
    for _ in range(3):
        made.layer(with_ops=True)
    gemms = made.measured().query("name == @GEMM")
    assert np.isnan(gemms["flops"].iloc[1])
    assert gemms["source"].tolist()[:2] == ["siblings", "none"]


def test_siblings_that_disagree_tell_nothing() -> None:
    made = Layers()
    for rows in (None, 8, 16):
        for _ in range(8):
            made.run(GEMM, 30_000, 132, "aten::mm" if rows else None, [[rows, 64], [64, 64]])
    assert made.measured()["flops"].isna().tolist() == [True] * 8 + [False] * 16


def test_the_same_kernel_among_other_neighbours_is_no_sibling() -> None:
    made = Layers()
    for _ in range(3):
        made.layer(with_ops=True)
    made.run(LOOKUP, 5_000, 7)
    made.run(GEMM, 31_000, 30)
    made.run(LOOKUP, 5_000, 7)
    made.run(LOOKUP, 5_000, 7)
    made.run(LOOKUP, 5_000, 7)
    assert made.measured()["flops"].tail(4).isna().all()


@pytest.mark.parametrize(
    ("axis", "other_pass", "known"), [("-2", True, False), ("-2", False, True), ("-1", True, True)]
)
def test_what_grows_with_the_context_needs_a_sibling_of_the_same_pass(axis: str, other_pass: bool, known: bool) -> None:
    made = Layers()
    for number in range(4):
        if number == 2 and other_pass:
            made.run(LOOKUP, 5_000, 7, "aten::index_select", [[100, 64], [], [16]], ("", "0", ""))
        own = [1, 4, 10, 64]
        for _ in range(3):
            made.run(ADD, 20_000, 50, "aten::add" if number >= 2 else None, [own, own, []])
            made.run(CAT, 4_000, 264, "aten::cat" if number >= 2 else None, [[own, own], []], ("", axis))
    cats = made.measured().query("name == @CAT")
    assert cats["bytes"].iloc[-1] == 2 * 2 * 2 * 4 * 10 * 64
    assert cats["bytes"].iloc[2] == cats["bytes"].iloc[-1] if known else np.isnan(cats["bytes"].iloc[2])


@pytest.mark.parametrize(("rows", "other_pass", "known"), [(1, True, False), (1, False, True), (96, True, True)])
def test_the_products_of_unfused_attention_grow_too(rows: int, other_pass: bool, known: bool) -> None:
    """Scores of one query over 96 keys grow with the next one; a prompt's 96 x 96 do not."""
    made = Layers()
    for number in range(4):
        if number == 2 and other_pass:
            made.run(LOOKUP, 5_000, 7, "aten::index_select", [[100, 64], [], [16]], ("", "0", ""))
        for _ in range(3):
            made.run(ADD, 20_000, 50, "aten::add" if number >= 2 else None, [[4, 8, 1, 64], [4, 8, 1, 64], []])
            made.run(GEMM, 9_000, 12, "aten::bmm" if number >= 2 else None, [[32, rows, 64], [32, 64, 96]])
    scores = made.measured().query("name == @GEMM")["flops"]
    assert scores.iloc[-1] == 2 * 32 * rows * 64 * 96
    assert scores.iloc[2] == scores.iloc[-1] if known else np.isnan(scores.iloc[2])


def test_without_a_grid_nothing_is_matched() -> None:
    made = Layers()
    for number in range(6):
        made.layer(with_ops=number >= 3)
    for row in made.recording.rows["kernels"]:
        row.update(dict.fromkeys(("grid_x", "grid_y", "grid_z"), MISSING))
    assert set(made.measured()["source"][:18]) == {"none"}


@pytest.mark.parametrize(
    "file",
    ["h100-hf-qwen1.5-forward.json.gz", "b200-vllm-eager-prefill.json.gz", "mi300x-sglang-qwen3-8b-prefill.json.gz",
     "a100-switch-transformer-128tok.json.gz", "a100-switch-transformer-m10.json.gz"],
)  # fmt: skip
def test_hidden_ops_are_never_answered_wrongly(file: str, traces: Path) -> None:
    """Of recorded traces a third of the kernels lose their ops: what they are given must be what their ops say."""
    trace = read_trace(traces / file)
    found = build(trace)
    classes = kernels.classes(trace, found)
    truth = measure(trace, found, classes)
    rows = np.flatnonzero((found.table["op"] >= 0) & (found.table["kind"] == KERNEL))
    for hidden in (rows[: len(rows) // 3], rows[-len(rows) // 3 :], rows[len(rows) // 3 : 2 * len(rows) // 3]):
        op = found.table["op"].to_numpy(copy=True)
        op[hidden] = MISSING
        without = measure(trace, Activity(found.table.assign(op=op), on_cpu=False), classes)
        given = hidden[(without["source"].iloc[hidden] == "siblings").to_numpy()]
        assert len(given) or file.startswith("a100")
        for column in ("flops", "bytes", "m", "n", "k", "q_len", "kv_len"):
            wrong = ~np.isclose(without[column].iloc[given], truth[column].iloc[given], equal_nan=True)
            assert not wrong.any(), (column, given[wrong])
