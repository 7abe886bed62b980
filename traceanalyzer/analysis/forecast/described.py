"""Work of a decode step whose kernels carry no shapes (a CUDA graph), from the description of the model.

The step reads the model's weights and its cache once. What known kernels do not read, the unknown matrix and attention
kernels do; each takes a part of it by its time. That is right for the step as a whole, and for a kernel only as far as
all of them run equally near their roof.

What could be wrong: activations are left out, which are little in decode; kernels that multiply by weights and are not
known as such get none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis import held
from traceanalyzer.analysis.kernels import HELPER_ROLES, MATRIX_CATEGORIES
from traceanalyzer.analysis.timeline import Timeline

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


def with_described_work(
    rows: pd.DataFrame, timeline: Timeline, tokens: float | None, context_sum: float | None, sequences: float | None
) -> pd.DataFrame | None:
    """The rows of a mean decode step with work where it was unknown; None where no description tells it.

    Args:
        rows: of a `StepModel`.
        timeline: of the device.
        tokens, context_sum, sequences: of the mean step.
    """
    model, bandwidth = held.described(timeline, tokens, context_sum, sequences), timeline.device.bandwidth_gbs
    if model is None or not tokens or not bandwidth:
        return None
    main = ~rows["role"].isin(HELPER_ROLES).to_numpy()
    matrix = rows["category"].isin(MATRIX_CATEGORIES).to_numpy() & main
    out = _shared_out(rows, timeline, matrix, "weight_bytes", model.weight_bytes, model.flops / model.weight_bytes)
    if out is None or not model.kv_bytes or not model.flops_per_kv_byte:
        return out
    attention = rows["category"].eq("attention").to_numpy() & main
    read = _shared_out(out, timeline, attention, "kv_bytes", model.kv_bytes, model.flops_per_kv_byte)
    return out if read is None else read


def _shared_out(
    rows: pd.DataFrame, timeline: Timeline, mine: Bools, column: str, total: float, flops_per_byte: float
) -> pd.DataFrame | None:
    """Divide the bytes that known rows do not read among the unknown ones; None where there is none of either."""
    part = rows[column].to_numpy(np.float64)
    unknown = mine & np.isnan(rows["bytes"].to_numpy(np.float64)) & np.isnan(part)
    time = np.where(unknown, rows["duration_ns"].to_numpy(np.float64), 0.0)
    left = total - float(np.nansum(part[mine]))
    if not time.sum() > 0 or left <= 0:
        return None
    size = left * time / time.sum()
    flops = size * flops_per_byte
    peaks = {d: timeline.device.peak_tflops(str(d), True) or np.nan for d in rows["dtype"].dropna().unique()}
    peak = rows["dtype"].map(peaks).to_numpy(np.float64)
    new: dict[str, Floats] = {
        column: size, "bytes": size, "flops": flops, "memory_ns": size / (timeline.device.bandwidth_gbs or np.nan),
        "compute_ns": flops / peak / 1e3, "tensor_compute_ns": flops / peak / 1e3,
    }  # fmt: skip
    return rows.assign(**{name: np.where(unknown, values, rows[name]) for name, values in new.items()})
