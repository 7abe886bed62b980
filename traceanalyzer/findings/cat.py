"""A KV cache that grows by concatenation: every token copies all earlier ones.

A copy of the cache joins a long and a short tensor of the same shape but for one dimension; what joins two halves of a
vector (a rotary embedding) joins equal ones. A static or paged cache writes the new keys and values in place.
"""

from __future__ import annotations

import numpy as np

from traceanalyzer.analysis.shapes import Dims, signature
from traceanalyzer.findings.answer import Answer, error, not_applicable, passed, proposal
from traceanalyzer.findings.change import MINIMAL_KERNEL_NS
from traceanalyzer.findings.model import Fact
from traceanalyzer.findings.subject import Bools, PhaseSubject

LONGER = 4
"""How many times longer the cache must be than what is appended: below, one cannot tell them apart."""


def cache_copies(subject: PhaseSubject) -> Bools:
    """Kernels that copy a growing cache; none where shapes were not recorded."""
    rows = _cats(subject)
    out = np.zeros(len(rows), np.bool_)
    op = subject.rows["op"].to_numpy(np.int64)
    dims = subject.timeline.trace.ops["dims"].to_numpy(np.int64)
    seen: dict[int, bool] = {}
    for row in np.flatnonzero(rows & (op >= 0)):
        code = int(dims[op[row]])
        if code not in seen:
            seen[code] = _appends(subject.timeline.trace.text(code))
        out[row] = seen[code]
    return out


def _cats(subject: PhaseSubject) -> Bools:
    return subject.is_kernel & (subject.rows["role"] == "cat").to_numpy()


def _appends(dims: str) -> bool:
    """Whether a recorded call joins a short tensor to a long one along one dimension."""
    shapes = signature(dims, "", "", "").tensors(0)
    tensors = [shape for shape in shapes or () if shape]
    return len(tensors) == 2 and _longer(*tensors)


def _longer(first: Dims, second: Dims) -> bool:
    if len(first) != len(second) or len(first) < 3:
        return False
    differ = [(a, b) for a, b in zip(first, second, strict=True) if a != b]
    return len(differ) == 1 and differ[0][0] >= LONGER * differ[0][1] > 0


def kv_cat(subject: PhaseSubject) -> Answer:
    """Does decode copy the whole cache in every layer?"""
    attends = subject.is_attention | subject.is_batched
    if not attends.any():
        return not_applicable("no_attention")
    layers = subject.run.layers or 1
    cats = float(_cats(subject).sum()) / subject.count
    if cats < layers:
        return passed("no_cat_per_layer", count=cats)
    shapes = subject.timeline.trace.ops["dims"].to_numpy(np.int64)
    op = subject.rows["op"].to_numpy(np.int64)[_cats(subject)]
    if not (op >= 0).any() or not (shapes[op[op >= 0]] >= 0).any():
        return error("shapes_not_recorded")
    copies = cache_copies(subject)
    count = float(copies.sum()) / subject.count
    if count < layers:
        return passed("cats_are_small", count=cats)
    new = np.minimum(subject.duration, MINIMAL_KERNEL_NS)
    evidence = (
        Fact("cache_copied", {"count": count, "share": subject.share(copies)}),
        Fact("cache_bytes_copied", {"bytes": subject.per_step("bytes", copies)}),
    )
    return proposal(subject, new, copies, evidence, 0.9, ("cache_written_in_place",))
