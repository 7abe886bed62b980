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


TORCH_NAMES = {
    # What the catalogue calls an argument, and what PyTorch's schemas call it.
    "dim": {"dim"}, "dtype": {"dtype"}, "out_dtype": {"out_dtype"}, "stride": {"stride"}, "padding": {"padding"},
    "dilation": {"dilation"}, "groups": {"groups"}, "transposed": {"transposed"}, "bias": {"bias"},
    "output_padding": {"output_padding"}, "index": {"index", "indices"}, "index_list": {"indices"}, "beta": {"beta"},
    "q": {"query"}, "k": {"key"}, "v": {"value"}, "mask": {"attn_bias", "bias", "attn_mask"}, "causal": {"is_causal"},
    "cu_q": {"cum_seq_q", "cu_seqlens_q"}, "cu_k": {"cum_seq_k", "cu_seqlens_k"}, "window": {"window_size"},
    "max_q": {"max_q", "max_seqlen_q"}, "max_k": {"max_k", "max_seqlen_k"}, "mask_type": {"custom_mask_type"},
    "window_left": {"window_size_left"}, "window_right": {"window_size_right"}, "block_table": {"block_table"},
    "scale_a": {"scale_a"}, "scales_a": {"scale_a"}, "scales_b": {"scale_b"}, "recipes_a": {"recipe_a"},
    "recipes_b": {"recipe_b"}, "start": {"start"}, "end": {"end"}, "step": {"step"}, "weight": {"weight", "gamma"},
    "w1": {"w1"}, "src": {"src", "source", "value", "self"}, "to_float": {"half_to_float"}, "elements": {"index"},
}  # fmt: skip


@pytest.mark.parametrize(
    "model", [m for m in MODELS if m.op.startswith("aten::")], ids=lambda m: f"{m.op}-{m.arguments or 'any'}"
)
def test_positions_are_those_of_pytorchs_own_schema(model: op_models.OpModel) -> None:
    torch = pytest.importorskip("torch", reason="torch knows its schemas")
    found = torch._C._jit_get_schemas_for_operator(model.op)
    if not found:
        pytest.skip("an operator of another version of PyTorch")
    names = [[argument.name for argument in schema.arguments] for schema in found]
    for count in model.arguments or (None,):
        overloads = [n for n in names if count is None or len(n) == count]
        assert any(fits(model, n) for n in overloads) or not overloads, (count, overloads)
    assert any(fits(model, n) for n in names if not model.arguments or len(n) in model.arguments), names


def fits(model: op_models.OpModel, names: list[str]) -> bool:
    """Whether an overload has every argument where the catalogue says; one it lacks may come later or never."""
    return all(
        at >= len(names) or called not in TORCH_NAMES or names[at] in TORCH_NAMES[called]
        for called, at in model.at.items()
    )


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
