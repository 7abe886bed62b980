"""Every op model against its own example, whose FLOPs and bytes are written as sums of products."""

from __future__ import annotations

import re
from math import prod

import pytest
import yaml

from traceanalyzer.analysis.kernels import classify
from traceanalyzer.analysis.shapes import Signature
from traceanalyzer.analysis.work import op_work
from traceanalyzer.catalog import data, kernel_rules, op_models

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


ENTRY = {
    "ops": ["made::up"], "kind": "copy", "category": "copy", "role": "copy", "at": {"src": 0},
    "example": {"dims": [[2]], "types": ["float"], "flops": "0", "bytes": "16"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([ENTRY, ENTRY], "made::up is listed twice"),
        ([ENTRY | {"at": ["src"]}], "op model ['made::up']: at is no dict"),
        ([ENTRY | {"ops": "made::up"}], "op model made::up: ops is no list"),
        ([ENTRY | {"example": []}], "op model ['made::up']: example is no dict"),
    ],
)
def test_a_wrong_entry_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, entries: list[dict[str, object]], message: str
) -> None:
    monkeypatch.setattr(data, "load", lambda name: entries)
    op_models._by_name.cache_clear()
    try:
        with pytest.raises(ValueError, match=re.escape(message)):
            op_models.models()
    finally:
        op_models._by_name.cache_clear()


def test_both_loaders_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    read = {name: data.load(name) for name in ("ops/gemm.yaml", "kernel_rules.yaml")}
    monkeypatch.setattr(data, "_LOADER", yaml.SafeLoader)
    assert {name: data.load(name) for name in read} == read


def test_what_is_kept_of_names_is_bounded() -> None:
    """A server reads the traces of strangers: no cache may grow with them."""
    for number in range(20_000):
        op_models.find(f"aten::op{number}_")
    assert op_models.find.cache_info().currsize <= 4096
    huge = "x" * 1_000_000
    assert classify(huge) is classify(huge[:5000]), "what no rule reads is not kept"


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
