"""What a step would gain from twice the compute, twice the bandwidth, launches that cost nothing, half the weights,
half the KV cache. What saves most of the first three is what binds the step.

What could be wrong: a figure stands on the kernels whose work is known; below `KNOWN_ENOUGH` of the kernel time it is
unknown, above it the rest is taken not to change, so that every figure is a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceanalyzer.analysis.forecast.model import LAUNCH, Bools, StepModel
from traceanalyzer.analysis.kernels import MATRIX_CATEGORIES
from traceanalyzer.analysis.phases import KNOWN_ENOUGH


@dataclass(frozen=True)
class Sensitivity:
    """Shares of the step saved by one change, 0..1; None for unknown."""

    compute_2x: float | None
    bandwidth_2x: float | None
    launches_free: float | None
    weights_half: float | None
    kv_half: float | None

    @property
    def largest(self) -> str | None:
        """Which of compute, memory and host saves most by far (1.5 times the next), None where none does or is known.

        The names are those of bounds. Nothing is largest while the roofs are unknown.
        """
        if self.compute_2x is None or self.bandwidth_2x is None or self.launches_free is None:
            return None
        found = {"compute": self.compute_2x, "memory": self.bandwidth_2x, "host": self.launches_free}
        (first, most), (_, second), _ = sorted(found.items(), key=lambda item: -item[1])
        return first if most > 0 and most >= CLEARLY * second else None


CLEARLY = 1.5
"""The factor by which one figure must exceed the next to be called the largest."""


def sensitivity(model: StepModel, has_launches: bool) -> Sensitivity:
    """The five figures of a step. `has_launches`: launch calls were recorded, so that waiting for them shows."""
    known = model.known_share >= KNOWN_ENOUGH

    def saved(changed: StepModel, is_known: bool) -> float | None:
        return max(changed.against(model).saving_share, 0.0) if is_known else None

    matrix = model.of_category(*MATRIX_CATEGORIES) & ~model.is_helper
    attention = model.of_category("attention") & ~model.is_helper
    return Sensitivity(
        compute_2x=saved(model.with_device(compute=2.0), known),
        bandwidth_2x=saved(model.with_device(bandwidth=2.0), known),
        launches_free=saved(model.without_idle(*LAUNCH), has_launches),
        weights_half=saved(model.with_weights(0.5), _told(model, matrix)),
        kv_half=saved(model.with_kv(0.5), _told(model, attention)),
    )


def _told(model: StepModel, rows: Bools) -> bool:
    """Whether most of the time of some rows has a known roof; False where there is no such row."""
    time = model.durations
    total = float(time[rows].sum())
    ideal = model.rows[["compute_ns", "memory_ns"]].notna().all(axis=1).to_numpy()
    return total > 0 and float(time[rows & np.asarray(ideal)].sum()) >= KNOWN_ENOUGH * total
