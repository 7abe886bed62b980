"""Matrix products, checked by hand."""

from __future__ import annotations

import pytest

from tests.analysis.work.calls import BF16, FP16, FP32, call, known


def test_a_product_counts_a_multiply_add_as_two_and_each_operand_once() -> None:
    work = known("aten::mm", [[3, 5], [5, 7]], [BF16, BF16])
    assert work.flops == 210  # 2*3*7*5
    assert work.bytes == 142  # 2*(15 + 35 + 21)
    assert (work.m, work.n, work.k, work.batch) == (3, 7, 5, 1)
    assert work.weight_bytes == 70
    assert work.dtype == "bf16"


def test_a_bias_adds_one_flop_per_output_and_its_own_bytes() -> None:
    plain = known("aten::mm", [[3, 5], [5, 7]], [BF16, BF16])
    bias = known("aten::addmm", [[7], [3, 5], [5, 7], [], []], [BF16] * 3 + ["Scalar"] * 2, ["", "", "", "1", "1"])
    assert bias.flops == plain.flops + 21
    assert bias.bytes == plain.bytes + 14


def test_beta_zero_reads_no_addend() -> None:
    work = known("aten::baddbmm", [[2, 3, 7], [2, 3, 5], [2, 5, 7], [], []], [FP32] * 3 + ["Scalar"] * 2,
                 ["", "", "", "0", "1"])  # fmt: skip
    assert work.flops == 420  # 2*2*3*7*5
    assert work.bytes == 4 * (30 + 70 + 42)


def test_a_linear_layer_has_its_weight_transposed_and_counts_every_leading_dimension() -> None:
    work = known("aten::linear", [[2, 3, 5], [7, 5], []], [FP32, FP32, ""])
    assert (work.m, work.n, work.k) == (6, 7, 5)
    assert work.flops == 420
    assert work.weight_bytes == 140


def test_a_batched_product_has_no_weight() -> None:
    work = known("aten::bmm", [[4, 3, 5], [4, 5, 7]], [FP32, FP32])
    assert (work.batch, work.flops, work.weight_bytes) == (4, 840, None)


def test_a_broadcast_operand_is_read_once() -> None:
    """K expanded over four heads by stride 0: 35 elements, not 140."""
    strides = [[15, 5, 1], [0, 7, 1]]
    work = known("aten::bmm", [[4, 3, 5], [4, 5, 7]], [FP32, FP32], strides=strides)
    assert work.bytes == 4 * (60 + 35 + 84)
    assert work.flops == 840


def test_a_vector_product_is_a_matrix_product_of_one_row() -> None:
    work = known("aten::mv", [[7, 5], [5]], [FP16, FP16])
    assert (work.m, work.n, work.k, work.flops, work.bytes, work.weight_bytes) == (1, 7, 5, 70, 2 * (35 + 5 + 7), 70)
    dot = known("aten::dot", [[5], [5]], [FP32, FP32])
    assert (dot.flops, dot.bytes, dot.weight_bytes) == (10, 4 * 11, None)


@pytest.mark.parametrize(("code", "out_bytes"), [("15", 2), ("6", 4), ("", 2)])
def test_fp8_writes_what_was_asked_for(code: str, out_bytes: int) -> None:
    fp8 = "c10::Float8_e4m3fn"
    types = [fp8, fp8, "float", "float", "", "", "Scalar"]
    work = known("aten::_scaled_mm", [[3, 5], [5, 7], [], [], [], [], []], types, ["", "", "", "", "", "", code])
    assert work.bytes == 15 + 35 + 21 * out_bytes + 8
    assert work.dtype == "fp8"


def test_weight_only_quantisation_computes_in_the_activations_type() -> None:
    work = known("aten::_weight_int8pack_mm", [[3, 5], [7, 5], [7]], [BF16, "signed char", BF16])
    assert work.dtype == "bf16"
    assert work.weight_bytes == 35 + 2 * 7, "a weight's scales belong to it"


@pytest.mark.parametrize(
    ("dims", "types"),
    [
        ([[3, 5], [6, 7]], [BF16, BF16]),
        ([[3, 5], []], [BF16, ""]),
        ([[3, 5], [5, 7]], [BF16, "c10::Mystery"]),
        ([], []),
    ],
)
def test_what_does_not_fit_is_unknown(dims: list[object], types: list[str]) -> None:
    assert call("aten::mm", dims, types) is None


def test_an_op_without_a_model_is_unknown() -> None:
    assert call("aten::made_up", [[3, 5]], [BF16]) is None
