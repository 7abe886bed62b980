"""Elementwise ops, copies, gathers, scatters, reductions and the parts of a layer, checked by hand."""

from __future__ import annotations

import pytest

from tests.analysis.work.calls import BF16, BOOL, FP16, FP32, INT64, call, known


def test_broadcasting_reads_each_input_at_its_own_size() -> None:
    work = known("aten::mul", [[2, 3, 4], [3, 1]], [BF16, BF16])
    assert work.flops == 24
    assert work.bytes == 2 * (24 + 3 + 24)


def test_an_expanded_operand_is_read_once() -> None:
    work = known("aten::add", [[2, 3], [2, 3], []], [FP32, FP32, "Scalar"], strides=[[3, 1], [0, 1], []])
    assert work.bytes == 4 * (6 + 3 + 6)


def test_an_in_place_op_writes_its_first_operand() -> None:
    work = known("aten::add_", [[2, 3], [2, 3], []], [BF16, FP32, "Scalar"])
    assert work.bytes == 6 * 2 + 6 * 4 + 6 * 2


@pytest.mark.parametrize(
    ("types", "dims", "concrete", "out_bytes"),
    [
        ([BF16, FP32], [[6], [6]], ["", ""], 4),
        ([BF16, FP16], [[6], [6]], ["", ""], 4),
        ([BF16, "double"], [[6], []], ["", ""], 2),
        ([INT64, "double"], [[6], []], ["", ""], 4),
        (["int", INT64], [[6], []], ["", ""], 4),
        ([BOOL, "Scalar"], [[6], []], ["", "2"], 8),
        ([INT64, "Scalar"], [[6], []], ["", "0.5"], 4),
    ],
)
def test_the_result_type_is_pytorchs(types: list[str], dims: list[list[int]], concrete: list[str],
                                     out_bytes: int) -> None:  # fmt: skip
    sizes = {BF16: 2, FP16: 2, FP32: 4, INT64: 8, "int": 4, BOOL: 1}
    inputs = sum(6 * sizes[t] for t, d in zip(types, dims, strict=True) if d)
    assert known("aten::mul", dims, types, concrete).bytes == inputs + 6 * out_bytes


def test_a_number_in_the_arguments_is_not_read_from_memory() -> None:
    # PyTorch records x + 1e-5, x * 2 and x + True as tensors without dimensions.
    for number in ("double", INT64, BOOL):
        assert known("aten::add", [[6], [], []], [BF16, number, "Scalar"]).bytes == 6 * 2 * 2
    assert known("aten::sub", [[], [6], []], [INT64, FP32, "Scalar"]).bytes == 6 * 4 * 2
    assert known("aten::add_", [[6], [], []], [INT64, INT64, "Scalar"]).bytes == 6 * 8 * 2
    # A tensor without dimensions on the device is read, and so is what an op of such tensors works on.
    assert known("aten::mul", [[6], []], [BF16, BF16]).bytes == 6 * 2 * 2 + 2
    assert known("aten::mul", [[], []], ["double", "double"]).bytes == 3 * 8


def test_a_comparison_answers_in_bytes() -> None:
    assert known("aten::eq", [[6], []], [INT64, "Scalar"], ["", "1"]).bytes == 6 * 8 + 6


def test_a_division_of_integers_answers_in_floats() -> None:
    assert known("aten::div", [[6], [6]], [INT64, INT64]).bytes == 6 * 8 * 2 + 6 * 4


def test_where_reads_its_condition_and_both_branches() -> None:
    assert known("aten::where", [[6], [6], []], [BOOL, FP32, "Scalar"], ["", "", "0"]).bytes == 6 + 24 + 24


def test_an_operand_of_unknown_type_makes_the_whole_unknown() -> None:
    assert call("aten::add", [[6], [6], []], [FP32, "c10::Mystery", "Scalar"]) is None


def test_shapes_that_do_not_broadcast_are_unknown() -> None:
    assert call("aten::add", [[6], [5]], [FP32, FP32]) is None


def test_a_cast_moves_both_sizes_and_computes_nothing() -> None:
    work = known("aten::copy_", [[6], [6], []], [FP32, BF16, "Scalar"])
    assert (work.flops, work.bytes) == (0, 36)
    assert known("aten::copy_", [[256], [256], []], ["int", "int", "Scalar"], strides=[[1], [0], []]).bytes == 1028
    assert known("aten::_to_copy", [[6], []], [FP32, "Scalar"], ["", "5"]).bytes == 24 + 12
    assert known("aten::clone", [[2, 3], []], [FP32, "Scalar"], strides=[[0, 1], []]).bytes == 12 + 24


def test_a_concatenation_does_not_record_its_type() -> None:
    work = known("aten::cat", [[[2, 3], [2, 5]], []], ["TensorList", "Scalar"], ["", "-1"])
    assert (work.flops, work.bytes, work.untyped_elements) == (0, None, 32)


def test_a_gather_reads_rows_not_the_table() -> None:
    work = known("aten::embedding", [[100_000, 8], [2, 3], [], [], []], [BF16, INT64, *["Scalar"] * 3])
    assert work.bytes == 6 * 8 * 2 * 2 + 6 * 8
    columns = known("aten::index_select", [[5, 1000], [], [3]], [FP32, "Scalar", INT64], ["", "1", ""])
    assert columns.bytes == 5 * 3 * 4 * 2 + 3 * 8
    expanded = known("aten::gather", [[9, 4], [], [6, 4], []], [BF16, "Scalar", INT64, "Scalar"],
                     strides=[[4, 1], [], [1, 0], []])  # fmt: skip
    assert expanded.bytes == 24 * 2 * 2 + 6 * 8


def test_a_cache_write_pays_for_what_it_writes_not_for_the_pool() -> None:
    dims = [[3, 2, 4], [3, 2, 4], [1000, 16, 2, 4], [1000, 16, 2, 4], [3], [], [], []]
    types = [BF16, BF16, "unsigned char", "unsigned char", INT64, "", "float", "float"]
    assert known("_C_cache_ops::reshape_and_cache_flash", dims, types).bytes == 2 * (24 * 2 + 24) + 24


def test_arguments_tell_how_long_a_sequence_is() -> None:
    out = known("aten::arange", [[], [], [], [0]], ["Scalar"] * 3 + [INT64], ["5", "12", "2", ""])
    assert (out.flops, out.bytes) == (0, 8 * 4)  # 5, 7, 9, 11
    assert known("aten::arange", [[]] * 6, ["Scalar"] * 6, ["0", "11", "3", "0", "", ""]).bytes == 4 * 11
    assert known("aten::arange", [[]] * 7, ["Scalar"] * 7, ["9", "3", "-2", "", "", "", ""]).bytes == 8 * 3
    assert call("aten::arange", [[], [], [], [0]], ["Scalar"] * 3 + [INT64], ["0", "1", "0.1", ""]) is None


def test_a_list_of_indices_is_not_recorded() -> None:
    taken = known("aten::index", [[9, 4], []], [BF16, ""], ["", ""])
    assert (taken.flops, taken.bytes) == (0, None)
    put = known("aten::_index_put_impl_", [[9, 4], [], [2, 4], [], []], [BF16, "", BF16, "Scalar", "Scalar"])
    assert (put.flops, put.bytes, put.bytes_min) == (0, None, 2 * 8 + 2 * 8)


def test_elements_written_by_an_index_pay_for_the_index_not_for_the_target() -> None:
    types = [FP32, "Scalar", INT64, "Scalar"]
    assert known("aten::scatter_", [[1000, 8], [], [3, 2], []], types, ["", "0", "", "1"]).bytes == 6 * 8 + 6 * 4
    types = [FP32, "Scalar", INT64, FP32]
    assert known("aten::scatter_", [[1000, 8], [], [3, 2], [5, 5]], types).bytes == 6 * 8 + 6 * 4 + 6 * 4


def test_adding_to_places_reads_them_first() -> None:
    types = [FP32, "Scalar", INT64, FP32]
    added = known("aten::scatter_add_", [[50], [], [90], [90]], types)
    assert (added.flops, added.bytes) == (90, 90 * (8 + 4 + 2 * 4))
    rows = known("aten::index_add_", [[64, 16], [], [3], [3, 16], []], [BF16, "Scalar", INT64, BF16, "Scalar"])
    assert (rows.flops, rows.bytes) == (48, 3 * 8 + 48 * 2 + 2 * 48 * 2)


def test_a_power_of_a_tensor_reads_both() -> None:
    assert known("aten::pow", [[6], []], [BF16, "Scalar"], ["", "2"]).bytes == 6 * 2 + 6 * 2
    assert known("aten::pow", [[6], [6]], [BF16, BF16]).bytes == 6 * 2 * 3
    assert known("aten::clamp", [[6], [], []], [INT64, "Scalar", ""], ["", "0.5", ""]).bytes == 6 * 8 + 6 * 4
