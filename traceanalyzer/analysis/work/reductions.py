"""Reductions, scans and sorts.

A reduction reads its input once and writes its whole output once; its FLOPs are one per input element unless the
catalogue says otherwise (a variance takes four). The output's size needs the recorded dimensions. A scan or a sort
passes over its input several times, how often depends on the algorithm: its bytes and FLOPs are unknown, and what it
moves at least (the input read once, results as large as the input written once) is given as `bytes_min`.
"""

from __future__ import annotations

from traceanalyzer.analysis.shapes import Dims, Signature, numel
from traceanalyzer.analysis.work.dtypes import BOOL, BOOLEAN, INT, INT64, Dtype, scalar_type
from traceanalyzer.analysis.work.opwork import OpWork, integers, named, value, work
from traceanalyzer.catalog.op_models import OpModel


def reduction(model: OpModel, sig: Signature) -> OpWork | None:
    """A reduction over all or some dimensions; None where there is no tensor to reduce."""
    x = named(model, sig, "x")
    if x is None or ("dim" in model.at and sig.tensor(model.at["dim"]) is not None):
        return None
    outputs = _kept(model, sig, x.shape)
    moved = None if outputs is None else x.bytes + outputs * _result_bytes(model, sig, x.dtype)
    return work(model, numel(x.shape) * int(model.options.get("flops_per_element", 1)), moved, x.dtype.word)


def scan(model: OpModel, sig: Signature) -> OpWork | None:
    """A scan, a sort or a selection, of which only the least that it moves is known."""
    x = named(model, sig, "x")
    if x is None:
        return None
    results = model.options.get("results")
    written = 0 if results is None else x.dtype.bytes + (INT64.bytes if results == "value_and_index" else 0)
    return work(model, None, None, x.dtype.word, bytes_min=x.bytes + numel(x.shape) * written)


def _kept(model: OpModel, sig: Signature, shape: Dims) -> int | None:
    """Output elements; None where the reduced dimensions were not recorded."""
    at = model.at.get("dim")
    if at is None:
        return 1
    if sig.type(at) == "":
        return 1 if sig.concrete else None
    dims = integers(sig.value(at))
    if dims is None or sig.type(at) not in ("Scalar", "ScalarList"):
        return None
    rank = len(shape)
    if any(not -rank <= d < max(rank, 1) for d in dims):
        return None
    gone = {d % max(rank, 1) for d in dims} if dims else set(range(rank))
    return numel(tuple(n for i, n in enumerate(shape) if i not in gone))


def _result_bytes(model: OpModel, sig: Signature, x: Dtype) -> int:
    """Bytes per output element, over all results."""
    rule = model.options.get("result")
    fixed = {
        "index": INT64.bytes,
        "bool": BOOLEAN.bytes,
        "value_and_index": x.bytes + INT64.bytes,
        "pair": 2 * x.bytes,
    }
    if isinstance(rule, str) and rule in fixed:
        return fixed[rule]
    asked = scalar_type(value(model, sig, "dtype"))
    if asked is not None:
        return asked.bytes
    return INT64.bytes if rule == "widened" and x.category in (BOOL, INT) else x.bytes
