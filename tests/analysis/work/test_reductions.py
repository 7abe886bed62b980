"""Reductions, scans and sorts, checked by hand."""

from __future__ import annotations

import pytest

from tests.analysis.work.calls import BF16, BOOL, FP32, INT64, call, known


@pytest.mark.parametrize(
    ("dim", "keep", "outputs"), [("[-1]", "True", 6), ("[0, 2]", "False", 3), ("[]", "False", 1), ("[1]", "False", 8)]
)
def test_a_reduction_writes_its_whole_output(dim: str, keep: str, outputs: int) -> None:
    work = known("aten::mean", [[2, 3, 4], [], [], []], [FP32, "ScalarList", "Scalar", ""], ["", dim, keep, ""])
    assert work.flops == 24
    assert work.bytes == 4 * (24 + outputs)


def test_without_a_dimension_everything_is_reduced() -> None:
    """The overloads are told apart by how many arguments they have: here a type follows, no dimension."""
    assert known("aten::mean", [[2, 3], []], [BF16, ""], ["", ""]).bytes == 12 + 2
    assert known("aten::mean", [[2, 3], []], [BF16, "Scalar"], ["", "6"]).bytes == 12 + 4
    assert known("aten::sum", [[2, 3, 4], []], [FP32, "Scalar"], ["", "1"]).bytes == 4 * 24 + 1


def test_a_sum_of_integers_widens() -> None:
    assert known("aten::sum", [[6], []], ["int", ""], ["", ""]).bytes == 24 + 8
    assert known("aten::sum", [[6], []], [BOOL, ""], ["", ""]).bytes == 6 + 8
    assert known("aten::amax", [[6], [], []], ["int", "ScalarList", "Scalar"], ["", "[]", "False"]).bytes == 24 + 4


def test_a_reduction_over_unrecorded_dimensions_has_unknown_bytes() -> None:
    work = known("aten::sum", [[2, 3], [], [], []], [FP32, "", "Scalar", ""])
    assert (work.flops, work.bytes) == (6, None)


@pytest.mark.parametrize("dim", ["[2]", "[-3]", "1.5"])
def test_a_dimension_that_the_tensor_lacks_is_unknown(dim: str) -> None:
    work = known("aten::sum", [[2, 3], [], [], []], [FP32, "ScalarList", "Scalar", ""], ["", dim, "False", ""])
    assert work.bytes is None


def test_an_index_is_eight_bytes() -> None:
    maximum = known("aten::max", [[4, 5], [], []], [BF16, "Scalar", "Scalar"], ["", "0", "False"])
    assert maximum.bytes == 2 * 20 + (2 + 8) * 5
    assert known("aten::max", [[4, 5]], [BF16], [""]).bytes == 2 * 20 + 2
    assert known("aten::argmax", [[4, 5], [], []], [BF16, "Scalar", "Scalar"], ["", "-1", "False"]).bytes == 40 + 8 * 4
    assert known("aten::argmax", [[4, 5], [], []], [BF16, "", "Scalar"], ["", "", "False"]).bytes == 40 + 8


def test_the_larger_of_two_tensors_is_elementwise() -> None:
    work = known("aten::max", [[6], [6]], [FP32, FP32], ["", ""])
    assert (work.category, work.flops, work.bytes) == ("elementwise", 6, 72)


def test_a_norm_has_its_dimensions_third() -> None:
    types = [FP32, "Scalar", "ScalarList", "Scalar"]
    work = known("aten::norm", [[4, 5], [], [], []], types, ["", "2", "[0]", "False"])
    assert (work.flops, work.bytes) == (40, 4 * (20 + 5))
    assert known("aten::norm", [[4, 5], []], [FP32, "Scalar"], ["", "2"]).bytes == 4 * 21


def test_a_variance_and_a_mean_are_two_results() -> None:
    types = [FP32, "ScalarList", "Scalar", "Scalar"]
    work = known("aten::var_mean", [[4, 5], [], [], []], types, ["", "[1]", "1", "False"])
    assert (work.flops, work.bytes) == (4 * 20, 4 * (20 + 2 * 4))


def test_of_a_sort_only_the_least_is_known() -> None:
    values = ["", "-1", "False"]
    work = known("aten::sort", [[4, 5], [], []], [FP32, "Scalar", "Scalar"], values)
    assert (work.flops, work.bytes, work.bytes_min) == (None, None, 4 * 20 + (4 + 8) * 20)
    top = known("aten::topk", [[4, 5], [], [], [], []], [FP32] + ["Scalar"] * 4, ["", "2", "-1", "True", "True"])
    assert (top.flops, top.bytes, top.bytes_min) == (None, None, 80)
    assert known("aten::cumsum", [[15], [], []], [INT64, "Scalar", ""], ["", "0", ""]).bytes_min == 2 * 8 * 15


def test_a_form_that_no_overload_has_is_unknown() -> None:
    assert call("aten::sum", [[6], [], []], [FP32, "Scalar", "Scalar"]) is None
