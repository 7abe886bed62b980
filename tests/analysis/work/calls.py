"""Short ways to write a recorded op call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from traceanalyzer.analysis.shapes import Signature
from traceanalyzer.analysis.work import OpWork, op_work

BF16, FP32, FP16, INT64, BOOL = "c10::BFloat16", "float", "c10::Half", "long int", "bool"


def freeze(value: Any) -> Any:
    return tuple(freeze(v) for v in value) if isinstance(value, list) else value


def call(name: str, dims: Sequence[Any], types: Sequence[str], concrete: Sequence[str] = (),
         strides: Sequence[Any] = ()) -> OpWork | None:  # fmt: skip
    return op_work(name, Signature(freeze(list(dims)), tuple(types), tuple(concrete), freeze(list(strides))))


def known(name: str, dims: Sequence[Any], types: Sequence[str], concrete: Sequence[str] = (),
          strides: Sequence[Any] = ()) -> OpWork:  # fmt: skip
    work = call(name, dims, types, concrete, strides)
    assert work is not None
    return work
