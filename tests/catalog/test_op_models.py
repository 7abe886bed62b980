"""Every op model against its own example, whose FLOPs and bytes are written as sums of products."""

from __future__ import annotations

from math import prod

import pytest

from traceanalyzer.analysis.kernels import classify
from traceanalyzer.analysis.shapes import Signature
from traceanalyzer.analysis.work import op_work
from traceanalyzer.catalog import kernel_rules, op_models

MODELS = op_models.models()


def total(text: str) -> int | None:
    """The value of a sum of products of integers; None for "unknown"."""
    if text == "unknown":
        return None
    return sum(prod(int(factor) for factor in term.split("*")) for term in text.split("+"))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.op)
def test_the_example_comes_to_what_it_says(model: op_models.OpModel) -> None:
    example = model.example
    work = op_work(model.op, Signature(example.dims, example.types, example.concrete, ()))
    assert work is not None
    assert (work.flops, work.bytes) == (total(example.flops), total(example.bytes))
    assert (work.category, work.role) == (model.category, model.role)


def test_categories_are_those_of_the_kernel_rules() -> None:
    assert {model.category for model in MODELS} <= set(kernel_rules.categories())


def test_names_are_unique() -> None:
    names = [model.op for model in MODELS]
    assert len(names) == len(set(names))


def test_an_in_place_op_is_found_under_its_own_name() -> None:
    add = op_models.find("aten::add_")
    assert add is not None
    assert (add.op, add.in_place) == ("aten::add_", True)
    copy = op_models.find("aten::copy_")
    assert copy is not None
    assert not copy.in_place, "copy_ is an entry of its own"
    assert op_models.find("aten::__and__") is None
    assert op_models.find("aten::mm_") is None


def test_an_op_is_no_kernel_name() -> None:
    """The two catalogues name different things: rules match kernels, models ops."""
    assert classify("aten::mm").category == "other"
