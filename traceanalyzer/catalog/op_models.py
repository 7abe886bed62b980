"""What each recorded op computes, as data: the catalogue of op models (`ops/*.yaml`) and its lookup.

An entry says of what kind an op's work is and where its operands sit among its arguments; the formulas of the kinds
are in `traceanalyzer.analysis.work`. What can go wrong: an op whose signature changed between library versions would
be read at the wrong positions. Entries therefore name positions that have been stable, or the number of arguments for
which they hold, and a model that finds no tensor where it expects one answers "unknown" instead of guessing. `source`
says how well an entry's positions are known; those only recalled may be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, TypeVar

from traceanalyzer.catalog import data

FILES = (
    "gemm", "quantized", "experts", "attention", "convolution", "elementwise", "memory", "layers", "reductions", "lora",
)  # fmt: skip
"""The data files of the folder `ops`, in order."""
SOURCES = ("schema", "trace", "code", "recalled")
"""How an entry's argument positions are known: the operator's own schema in PyTorch, a recorded trace, the library's
source, or from memory only."""

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
        arguments: the numbers of recorded arguments it holds for; empty for any.
        source: one of `SOURCES`.
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
    arguments: tuple[int, ...]
    source: str
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
    source = str(raw.get("source", "schema"))
    if source not in SOURCES:
        raise ValueError(f"op model {ops}: source {source} is none of {', '.join(SOURCES)}")
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
            arguments=tuple(_field(raw, "arguments", list)),
            source=source,
            example=sample,
        )
        for op in ops
    ]


def _freeze(value: object) -> object:
    return tuple(_freeze(v) for v in value) if isinstance(value, list) else value


@cache
def _by_name() -> Mapping[str, tuple[OpModel, ...]]:
    found: dict[str, tuple[OpModel, ...]] = {}
    for file in FILES:
        for raw in data.load(f"ops/{file}.yaml"):
            for model in _entries(raw):
                forms = found.get(model.op, ())
                if any(_overlap(model, other) for other in forms):
                    raise ValueError(f"op model {model.op} is listed twice")
                found[model.op] = (*forms, model)
    return found


def _overlap(a: OpModel, b: OpModel) -> bool:
    """Whether some number of arguments would select both of two models of one op."""
    return not a.arguments or not b.arguments or bool(set(a.arguments) & set(b.arguments))


def models() -> tuple[OpModel, ...]:
    """Every op model, in the catalogue's order; an op has one per form of its arguments."""
    return tuple(model for forms in _by_name().values() for model in forms)


@lru_cache(maxsize=4096)
def find(op: str, arguments: int | None = None) -> OpModel | None:
    """The model of an op by its recorded name, or None where the catalogue has none.

    The in-place form of an elementwise op (`aten::add_`) is found under the op's own name, with `in_place` set.

    Args:
        op: the recorded name.
        arguments: the number of arguments recorded with the call, which tells an op's forms apart; without it the
            op's first form answers.
    """
    forms = _by_name().get(op)
    if forms is not None:
        return _form(forms, arguments)
    if not op.endswith("_") or op.endswith("__"):
        return None
    base = _form(_by_name().get(op[:-1], ()), arguments)
    return replace(base, op=op, in_place=True) if base is not None and base.kind == "elementwise" else None


def _form(forms: tuple[OpModel, ...], arguments: int | None) -> OpModel | None:
    fitting = (form for form in forms if arguments is None or not form.arguments or arguments in form.arguments)
    return next(fitting, None)
