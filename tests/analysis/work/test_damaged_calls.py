"""Damaged or strange records: an op model answers "unknown" or a number that can be, and never fails."""

from __future__ import annotations

import math
import random

from traceanalyzer.analysis.shapes import MOST_ELEMENTS, Signature, numel
from traceanalyzer.analysis.work import op_work
from traceanalyzer.catalog import op_models

TYPES = ["float", "c10::BFloat16", "c10::Float8_e4m3fn", "c10::Float4_e2m1fn_x2", "int", "long int", "unsigned char",
         "bool", "Scalar", "ScalarList", "TensorList", "", "c10::Mystery"]  # fmt: skip
VALUES = ["", "0", "1", "-1", "7", "True", "False", "[]", "[1]", "[0, 0]", "[-3, 2]", "[4096, 8]", "nan", "1e9", "[",
          "999999999999999", "15", "[1, 2, 3, 4, 5]"]  # fmt: skip
SIZES = [0, 1, 2, 3, 8, 128, 4096, 2**31]


def shape(source: random.Random, like: object) -> object:
    """A shape near the one of the example, or any."""
    chance = source.random()
    if chance < 0.5 or not isinstance(like, tuple) or any(isinstance(n, tuple) for n in like):
        return like
    if chance < 0.6:
        return ()
    if chance < 0.65:
        return ((2, 3), (4,))
    made = tuple(source.choice([n, source.choice(SIZES)]) for n in like) if chance < 0.85 else tuple(
        source.choice(SIZES) for _ in range(source.randint(1, 5))
    )  # fmt: skip
    return made if numel(made) <= MOST_ELEMENTS else ()


def damaged(source: random.Random, example: op_models.Example) -> Signature:
    dims = tuple(shape(source, like) for like in example.dims)
    types = tuple(t if source.random() < 0.85 else source.choice(TYPES) for t in example.types)
    values = (*example.concrete, *[""] * (len(dims) - len(example.concrete)))
    concrete = tuple(v if source.random() < 0.7 else source.choice(VALUES) for v in values)
    kept = [
        source.random() < 0.3 and isinstance(d, tuple) and all(isinstance(n, int) for n in d) for d in dims
    ]  # fmt: skip
    strides = tuple(
        tuple(source.choice([0, 1, 64, -1]) for _ in d) if keep and isinstance(d, tuple) else ()
        for d, keep in zip(dims, kept, strict=True)
    )
    return Signature(dims, types[: source.choice([len(types), 1])], concrete, strides)


def test_no_record_makes_a_model_fail_or_count_the_impossible() -> None:
    source = random.Random(1)
    answered = 0
    for model in op_models.models():
        for _ in range(40):
            call = damaged(source, model.example)
            work = op_work(model.op, call)
            if work is None:
                continue
            answered += 1
            for field in ("flops", "bytes", "weight_bytes", "kv_bytes", "bytes_min", "weight_bytes_min",
                          "weight_bytes_max", "untyped_elements"):  # fmt: skip
                number = getattr(work, field)
                assert number is None or (math.isfinite(number) and number >= 0), (model.op, field, call)
            for field in ("m", "n", "k", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim"):
                number = getattr(work, field)
                assert number is None or (isinstance(number, int) and number >= 0), (model.op, field, call)
            if work.weight_bytes is not None and work.weight_bytes_min is not None:
                assert work.weight_bytes_max is not None
                assert work.weight_bytes_min <= work.weight_bytes <= work.weight_bytes_max, (model.op, call)
    assert answered > 1000
