"""Holds the work that a description gives against what was recorded: shapes of some kernels, padding, the card's peaks.

What could be wrong: a kernel that shares the card with another one takes longer than alone, and so does one that waits;
the peaks only refuse what is too fast.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from traceanalyzer.analysis.devices import DeviceInfo
from traceanalyzer.analysis.replay.layers import Pass
from traceanalyzer.analysis.replay.parts import Part
from traceanalyzer.analysis.replay.products import matrix
from traceanalyzer.analysis.replay.sizes import Sizes
from traceanalyzer.analysis.work.columns import Floats, Ints, numbers
from traceanalyzer.analysis.work.opwork import OpWork

SLACK = 1.2
"""How much faster than the sheet a kernel may have been: clocks above the sheet's, and reuse in caches."""
_NEAR = 0.1
"""How far a recorded weight may be from the model's: tables are padded."""
_PADS = re.compile(r"constant_pad_nd")
_TILED = re.compile(r"_matmul_ogs_\w*?_\d+x\d+x([1-9]\d{0,5})x\d+(?:_|$)")
"""Names of triton_kernels' expert products: layouts, types, then the tile's rows x columns x depth x splits."""


def padded(sizes: Sizes, texts: Sequence[str]) -> Sizes:
    """The sizes with the experts' padded to the depth of their products' tile, where the tile does not divide them.

    vLLM stores mxfp4 experts for these kernels padded that way on AMD cards, and pads the activations before them.
    """
    moe, depth = sizes.config.moe, {int(found[1]) for text in texts if (found := _TILED.search(text))}
    if moe is None or len(depth) != 1:
        return sizes
    (tile,) = depth
    return replace(
        sizes,
        hidden_padded=math.ceil(sizes.hidden / tile) * tile,
        expert_ffn_padded=float(math.ceil(sizes.expert_ffn / tile) * tile),
    )


def contradicted(work: pd.DataFrame, rows: Ints, passed: Pass, sizes: Sizes) -> str | None:
    """A product whose recorded shape is not that of its role; None where all agree."""
    n, k = (work[name].to_numpy(np.int64)[rows[0]] for name in ("n", "k"))
    for place, (role, layer) in passed.roles.items():
        expected = matrix(role, sizes)
        if expected is None or n[place] <= 0 or k[place] <= 0 or expected.count > 1:
            continue
        if abs(float(n[place]) * float(k[place]) / (expected.n * expected.k) - 1.0) > _NEAR:
            where = "" if layer < 0 else f"layer {layer}: "
            return (
                f"{where}{role} of {n[place]} x {k[place]} recorded, {expected.n:.0f} x {expected.k:.0f} by the model"
            )
    return None


def impossible(
    table: pd.DataFrame, rows: Ints, done: Ints, works: Sequence[OpWork], asked: Sequence[Part | None],
    device: DeviceInfo | None,
) -> str | None:  # fmt: skip
    """A kind of kernel that would have been faster than the card; None where none would, or the card is not known."""
    if device is None or not works:
        return None
    known = done >= 0
    took = np.where(known, table["duration_ns"].to_numpy(np.float64)[rows], 0.0)
    flops = np.where(known, _of(works, done, "flops"), 0.0)
    least = np.where(known, numbers([_read_at_least(w) for w in works], done), 0.0)
    peaks = [device.peak_tflops(w, True) for w in {work.dtype for work in works if work.model in _MULTIPLIED} if w]
    fastest = None if None in peaks or not peaks else max(peak for peak in peaks if peak)
    for part in dict.fromkeys(p for p in asked if p is not None):
        mine = np.array([p == part for p in asked], np.bool_)
        time = float(took[:, mine].sum())
        what = part.role or part.what
        if fastest and time and float(flops[:, mine].sum()) / time / 1e3 > SLACK * fastest:
            return f"{what} would compute faster than the card can"
        if device.bandwidth_gbs and time and float(least[:, mine].sum()) / time > SLACK * device.bandwidth_gbs:
            return f"{what} would read its weights or its cache faster than the card can"
    return None


_MULTIPLIED = ("gemm", "experts", "attention")


def _of(works: Sequence[OpWork], done: Ints, name: str) -> Floats:
    return np.nan_to_num(numbers([getattr(w, name) for w in works], done))


def _read_at_least(work: OpWork) -> float:
    """Bytes that come from memory whatever the caches hold: weights, and the cache of keys and values."""
    weights = work.weight_bytes_min if work.weight_bytes_min is not None else work.weight_bytes
    return (weights or 0.0) + (work.kv_bytes or 0.0)
