"""What each recorded op computes, as data: the catalogue of op models (`op_models.yaml`) and its lookup.

An entry says of what kind an op's work is and where its operands sit among its arguments; the formulas of the kinds
are in `traceanalyzer.analysis.work`. What can go wrong: an op whose signature changed between library versions would
be read at the wrong positions. Entries therefore name positions that have been stable, and a model that finds no
tensor where it expects one answers "unknown" instead of guessing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, TypeVar

from traceanalyzer.catalog import data

Option = str | int
Field = TypeVar("Field", dict[str, Any], list[Any])


@dataclass(frozen=True, slots=True)
class Example:
    """One call of an op as PyTorch records it. `flops` and `bytes` are sums of products as text, or "unknown"."""

    dims: tuple[object, ...]
    types: tuple[str, ...]
    concrete: tuple[str, ...]
    flops: str
    bytes: str


@dataclass(frozen=True, slots=True)
class OpModel:
    """One op's model.

    Args:
        op: the op's recorded name, e.g. "aten::mm".
        kind: which formula applies, e.g. "gemm".
        category: the kernel category of its work (the words of the kernel rules).
        role: the part it plays in a model, e.g. "attention", "kv_write".
        at: argument positions by operand name.
        options: variants of the kind, e.g. the memory layout of a weight.
        composite: it only calls another catalogued op, which owns the kernels wherever that op is recorded.
        example: one call, with what it must come to.
        in_place: it writes its first operand (`aten::add_`).
    """

    op: str
    kind: str
    category: str
    role: str
    at: Mapping[str, int]
    options: Mapping[str, Option]
    composite: bool
    example: Example
    in_place: bool = False


def _field(raw: Mapping[str, Any], name: str, kind: type[Field]) -> Field:
    """A field of an entry, empty where it is left out.

    Raises:
        ValueError: it is of another type; the message names the entry.
    """
    value = raw.get(name, kind())
    if not isinstance(value, kind):
        raise ValueError(f"op model {raw.get('ops')}: {name} is no {kind.__name__}")
    return value


def _entries(raw: Mapping[str, Any]) -> list[OpModel]:
    example = _field(raw, "example", dict)
    ops, at, options = _field(raw, "ops", list), _field(raw, "at", dict), _field(raw, "with", dict)
    sample = Example(
        dims=tuple(_freeze(d) for d in example["dims"]),
        types=tuple(example["types"]),
        concrete=tuple(example.get("concrete", ())),
        flops=str(example["flops"]),
        bytes=str(example["bytes"]),
    )
    return [
        OpModel(
            op=op,
            kind=str(raw["kind"]),
            category=str(raw["category"]),
            role=str(raw["role"]),
            at=dict(at),
            options=dict(options),
            composite=bool(raw.get("composite", False)),
            example=sample,
        )
        for op in ops
    ]


def _freeze(value: object) -> object:
    return tuple(_freeze(v) for v in value) if isinstance(value, list) else value


@cache
def _by_name() -> Mapping[str, OpModel]:
    found: dict[str, OpModel] = {}
    for raw in data.load("op_models.yaml"):
        for model in _entries(raw):
            if model.op in found:
                raise ValueError(f"op model {model.op} is listed twice")
            found[model.op] = model
    return found


def models() -> tuple[OpModel, ...]:
    """Every op model, in the catalogue's order."""
    return tuple(_by_name().values())


@lru_cache(maxsize=4096)
def find(op: str) -> OpModel | None:
    """The model of an op by its recorded name, or None where the catalogue has none.

    The in-place form of an elementwise op (`aten::add_`) is found under the op's own name, with `in_place` set.
    """
    model = _by_name().get(op)
    if model is not None or not op.endswith("_") or op.endswith("__"):
        return model
    base = _by_name().get(op[:-1])
    if base is None or base.kind != "elementwise":
        return None
    return OpModel(
        op, base.kind, base.category, base.role, base.at, base.options, base.composite, base.example, in_place=True
    )
