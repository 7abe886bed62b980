"""The CPU as a device: which recorded ops are its kernels, and which trace is a CPU run at all.

A kernel is the outermost op that has a work model; what it calls belongs to it. Composite ops (`aten::linear` calls
`aten::addmm`) leave the kernel to the op that computes. Time outside kernels belongs to the innermost op. No shapes are
needed for this, so a CPU run recorded without them still gets its times; its work is then unknown.

A trace without GPU kernels is a CPU run only where nothing says otherwise: no call submitted GPU work (property queries
and synchronisation submit none), no op exists for GPUs only, and, where a GPU is listed, either its runtime was being
recorded (some call was seen) or an op exists for CPUs only. A list of GPUs without a single runtime call is what
remains of a GPU run whose GPU part was not recorded. What could be wrong: a CPU run recorded without GPU activities on
a machine with a GPU, with no CPU-only op in it, is refused.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.attribution import SUBMITS, innermost
from traceanalyzer.catalog import op_models
from traceanalyzer.errors import UnsupportedTraceError
from traceanalyzer.trace.tables import KERNEL, MISSING, Trace

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

_GPU_ONLY = re.compile(
    r"^nccl|cudnn|miopen|cublas|hipblas|^aten::_(flash|efficient)_attention_(forward|backward)$"
    r"|^aten::_scaled_dot_product_(flash|efficient|cudnn)_attention$|^triton_"
)
_CPU_ONLY = re.compile(r"_for_cpu$|mkldnn|^mkl::|onednn")
_COMPUTES = ("gemm", "gemv", "attention", "norm", "softmax", "reduce", "elementwise")


def kernel_ops(trace: Trace) -> Bools:
    """Which rows of `Trace.ops` are the CPU's kernels."""
    ops = trace.ops
    parent = ops["parent"].to_numpy(np.int64)
    codes, number_of = np.unique(ops["name"].to_numpy(np.int64), return_inverse=True)
    found = [op_models.find(trace.text(int(code))) for code in codes]
    roles = sorted({model.role for model in found if model})
    role = np.array([roles.index(model.role) if model else MISSING for model in found], np.int64)[number_of]
    composite = np.array([model is not None and model.composite for model in found], np.bool_)[number_of]
    candidate = role >= 0
    for number in range(len(roles)):
        candidate &= ~(composite & (role == number) & _has_below(parent, role == number))
    return candidate & ~_has_above(parent, candidate)


def _has_below(parent: Ints, marked: Bools) -> Bools:
    """Which rows have a marked descendant."""
    out = np.zeros(len(parent), np.bool_)
    above = np.unique(parent[marked])
    while len(above) and above[-1] >= 0:
        above = above[above >= 0]
        above = above[~out[above]]
        out[above] = True
        above = np.unique(parent[above])
    return out


def _has_above(parent: Ints, marked: Bools) -> Bools:
    """Which rows have a marked ancestor."""
    out = np.zeros(len(parent), np.bool_)
    above = parent.copy()
    while True:
        climbing = np.flatnonzero(above >= 0)
        if not len(climbing):
            return out
        hit = marked[above[climbing]]
        out[climbing[hit]] = True
        above[climbing] = np.where(hit, MISSING, parent[above[climbing]])


def pieces(trace: Trace) -> pd.DataFrame:
    """The CPU's activity: columns op, start_ns, duration_ns, thread; every instant of a thread's ops exactly once.

    An op's row is one piece where it is a kernel, else the stretches of its own time between the ops it calls.
    """
    ops = trace.ops
    kernels = kernel_ops(trace)
    shown = np.flatnonzero(~_has_above(ops["parent"].to_numpy(np.int64), kernels))
    start = ops["start_ns"].to_numpy(np.int64)[shown]
    end = start + ops["duration_ns"].to_numpy(np.int64)[shown]
    thread = ops["thread"].to_numpy(np.int64)[shown]
    cuts = pd.DataFrame({"thread": np.concatenate([thread, thread]), "time": np.concatenate([start, end])})
    cuts = cuts.drop_duplicates().sort_values(["thread", "time"], kind="stable")
    at, until = cuts[:-1], cuts[1:]
    inside = at["thread"].to_numpy() == until["thread"].to_numpy()
    visible = _without_children(ops, shown)
    owner = innermost(visible, at["thread"].to_numpy(np.int64), at["time"].to_numpy(np.int64))
    keep = inside & (owner >= 0)
    table = pd.DataFrame({
        "op": shown[owner[keep]],
        "thread": at["thread"].to_numpy(np.int64)[keep],
        "start_ns": at["time"].to_numpy(np.int64)[keep],
        "end_ns": until["time"].to_numpy(np.int64)[keep],
    })  # fmt: skip
    return _joined(table)


def _without_children(ops: pd.DataFrame, shown: Ints) -> pd.DataFrame:
    """The shown ops alone, their parents renumbered (the parent of a shown op is always shown)."""
    number = np.full(len(ops) + 1, MISSING, np.int64)
    number[shown] = np.arange(len(shown))
    return ops.iloc[shown].assign(parent=number[ops["parent"].to_numpy(np.int64)[shown]])


def _joined(table: pd.DataFrame) -> pd.DataFrame:
    """Neighbouring pieces of one op as one piece."""
    op, thread = table["op"].to_numpy(), table["thread"].to_numpy()
    start, end = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    new = np.ones(len(table), np.bool_)
    new[1:] = (op[1:] != op[:-1]) | (thread[1:] != thread[:-1]) | (start[1:] != end[:-1])
    first = np.flatnonzero(new)
    last = np.append(first[1:] - 1, len(table) - 1)[: len(first)]
    return pd.DataFrame({
        "op": op[first], "thread": thread[first], "start_ns": start[first], "duration_ns": end[last] - start[first],
    })  # fmt: skip


def activity_table(trace: Trace) -> pd.DataFrame:
    """`Activity.table` of a CPU run (device 0, stream = thread code).

    Raises:
        UnsupportedTraceError: no op in it computes anything that has a model.
    """
    models = (op_models.find(trace.text(int(code))) for code in trace.ops["name"].unique())
    if not any(model is not None and model.kind in _COMPUTES for model in models):
        raise UnsupportedTraceError(
            f"{trace.source.name} holds {what_it_holds(trace)}, but no GPU kernel and no CPU operator that computes",
            "record the model's own steps",
        )
    found = pieces(trace)
    found = found.sort_values(["start_ns", "thread"], kind="stable").reset_index(drop=True)
    op = found["op"].to_numpy(np.int64)
    return pd.DataFrame({
        "kernel": np.full(len(found), MISSING, np.int32),
        "op": op.astype(np.int32),
        "launch": np.full(len(found), MISSING, np.int32),
        "name": trace.ops["name"].to_numpy(np.int32)[op],
        "kind": np.full(len(found), KERNEL, np.int8),
        "start_ns": found["start_ns"].to_numpy(np.int64),
        "duration_ns": found["duration_ns"].to_numpy(np.int64),
        "device": np.zeros(len(found), np.int32),
        "stream": found["thread"].to_numpy(np.int64),
        "call": op.astype(np.int32),
    })  # fmt: skip


def what_it_holds(trace: Trace) -> str:
    """For an error message: what a trace without GPU kernels holds instead."""
    return f"{len(trace.ops)} operator calls and {len(trace.launches)} GPU runtime calls"


def is_gpu_run(trace: Trace) -> bool:
    """Whether a trace without GPU kernels is what is left of a GPU run; see the module docstring."""
    calls = {trace.text(int(code)) for code in trace.launches["name"].unique()}
    names = {trace.text(int(code)) for code in trace.ops["name"].unique()}
    unseen_gpu = bool(trace.metadata.devices) and not calls and not any(_CPU_ONLY.search(name) for name in names)
    return unseen_gpu or any(map(SUBMITS.search, calls)) or any(map(_GPU_ONLY.search, names))
