"""Recorded argument shapes: what is a tensor, what is none, and what no tensor can be."""

from __future__ import annotations

import pytest

from traceanalyzer.analysis.shapes import Signature, integer, signature


def shapes(dims: str) -> Signature:
    return signature(dims, "", "", "")


def test_tensors_scalars_and_lists_of_tensors() -> None:
    found = signature(
        "[[2, 3], [], [[4], [5, 6]]]", '["float", "Scalar", "TensorList"]', '["", "1", ""]', "[[3, 1], []]"
    )
    assert found.tensor(0) == (2, 3)
    assert found.tensor(1) is None
    assert found.tensor(2) is None
    assert found.tensors(2) == ((4,), (5, 6))
    assert found.tensor(9) is None
    assert (found.type(1), found.value(1), found.type(9)) == ("Scalar", "1", "")
    assert found.stride(0) == (3, 1)


@pytest.mark.parametrize(
    "dims",
    [
        "[[-8, 4096]]",
        "[[true, 4]]",
        "[[1e200]]",
        "[[2.5]]",
        "[[1180591620717411303424]]",
        "[[94906267, 94906267]]",
        '[["8"]]',
        "[[[2], [-1]]]",
        "[" * 5000,
        "[[" + "9" * 6000 + "]]",
        '{"a": 1}',
        "not json",
        "",
    ],
)
def test_what_no_tensor_can_be_is_nothing_recorded(dims: str) -> None:
    assert shapes(dims).dims == ()


def test_deep_nesting_is_no_crash() -> None:
    assert shapes("[" + "[" * 900 + "]" * 900 + "]").tensor(0) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("-1", -1),
        ("", None),
        ("--5", None),
        ("\u00b2", None),
        ("\u0663", None),
        ("1.0", None),
        ("9" * 5000, None),
    ],
)
def test_integers_are_ascii_digits_of_a_sane_length(text: str, value: int | None) -> None:
    assert integer(text) == value
