"""What the rules look at: one phase of the slowest device, its complete steps and the activity in them.

Everything is per complete step, since only those were recorded whole.

What could be wrong: where kernels overlap on several streams, the activity "before" a gap is the one that ended last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.attribution import replayed
from traceanalyzer.analysis.critical import CriticalPath
from traceanalyzer.analysis.forecast import StepModel, step_model
from traceanalyzer.analysis.forecast.replay import Replay, replay
from traceanalyzer.analysis.kernels import HELPER_ROLES, MATRIX_CATEGORIES
from traceanalyzer.analysis.late import late
from traceanalyzer.analysis.launches import LaunchStats
from traceanalyzer.analysis.phases import PhaseSummary
from traceanalyzer.analysis.pipeline import Analysis, DeviceAnalysis
from traceanalyzer.analysis.ranks import Ranks
from traceanalyzer.analysis.roofline import grid_blocks
from traceanalyzer.analysis.steps import RunFacts
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.findings import blocking
from traceanalyzer.trace.tables import KERNEL, MISSING

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

IDLE = ("idle_launch", "idle_graph_launch", "idle_sync", "idle_host", "idle_alloc", "idle_latency", "idle_unknown")
"""Idle time that could go."""


@dataclass(frozen=True)
class PhaseSubject:
    """One phase of one device.

    Args:
        phase: prefill or decode.
        run: what the whole trace is a recording of.
        device: whose phase it is.
        summary: the phase's figures.
        steps: its complete steps.
        rows: the device's activity in those steps, by step and start, indexed 0..n-1.
        model: the mean step taken apart.
        room: sequences of decode's present mean context that fit in memory; None unknown, or another phase.
        ranks: the devices of the run compared; None for one.
    """

    phase: str
    run: RunFacts
    device: DeviceAnalysis
    summary: PhaseSummary
    steps: pd.DataFrame
    rows: pd.DataFrame
    model: StepModel
    room: int | None = None
    ranks: Ranks | None = None

    @property
    def timeline(self) -> Timeline:
        """The device's."""
        return self.device.timeline

    @property
    def count(self) -> int:
        """Complete steps."""
        return len(self.steps)

    @property
    def step_ns(self) -> float:
        """Mean time of a step."""
        return self.model.step_ns

    @property
    def idle_share(self) -> float:
        """Share of the step in which the device waits for whatever reason."""
        return sum(self.model.idle_ns.values()) / self.step_ns

    @cached_property
    def duration(self) -> Floats:
        """Nanoseconds of each row."""
        return self.rows["duration_ns"].to_numpy(np.float64)

    @cached_property
    def gap_before(self) -> Floats:
        """Idle time inside the step right before each row; 0 for the first row of a step."""
        end = (self.rows["start_ns"] + self.rows["duration_ns"]).groupby(self.rows["step"]).cummax()
        before = end.groupby(self.rows["step"]).shift(1)
        gap = (self.rows["start_ns"] - before).fillna(0.0).to_numpy(np.float64)
        clipped: Floats = np.maximum(gap, 0.0)
        return clipped

    @cached_property
    def late(self) -> Bools:
        """Rows before which the device was idle, inside the step, because the host was late with their launch."""
        called, returned = (self.rows[name].to_numpy(np.int64) for name in ("launch_start_ns", "launch_end_ns"))
        fell_idle = self.rows["start_ns"].to_numpy(np.float64) - self.gap_before
        return (self.gap_before > 0) & late(called, returned, self.is_kernel, fell_idle)

    @cached_property
    def waits(self) -> blocking.Waits:
        """When the host waited for the device in these steps."""
        return blocking.in_steps(self.timeline, self.steps)

    @property
    def critical(self) -> CriticalPath | None:
        """The critical path of the median step; None where it cannot be told."""
        return self.device.critical_paths.get(self.phase)

    @property
    def launching(self) -> LaunchStats | None:
        """How these steps were launched."""
        return self.device.launch_stats.get(self.phase)

    def on_path(self, kind: str, saving_ns: float) -> float:
        """A saving in one kind of time, no more than the critical path of a step has of it.

        Args:
            kind: of `analysis.critical.path`, launch and graph_launch together as `launches`.
            saving_ns: what gaps alone promise, per mean step.
        """
        path = self.critical
        if path is None:
            return saving_ns
        return min(saving_ns, path.saved.get(kind, 0) * self.step_ns / path.step_ns)

    @cached_property
    def replay(self) -> Replay:
        """The steps as they were launched, to ask what other times would give."""
        return replay(self.rows, self.replayed)

    @cached_property
    def replayed(self) -> Bools:
        """Rows that a graph launch replayed."""
        trace = self.timeline.trace
        kernel, launch = self.rows["kernel"].to_numpy(np.int64), self.timeline.table["launch"].to_numpy(np.int64)
        out = np.zeros(len(self.rows), np.bool_)
        if not len(trace.kernels):
            return out
        by_kernel = np.full(len(trace.kernels), MISSING, np.int64)
        own = self.timeline.table["kernel"].to_numpy(np.int64)
        by_kernel[own[own >= 0]] = launch[own >= 0]
        out[kernel >= 0] = replayed(trace, by_kernel)[kernel[kernel >= 0]]
        return out

    @cached_property
    def has_shapes(self) -> Bools:
        """Rows whose op recorded shapes."""
        op, dims = self.rows["op"].to_numpy(np.int64), self.timeline.trace.ops["dims"].to_numpy(np.int64)
        out = np.zeros(len(op), np.bool_)
        out[op >= 0] = dims[op[op >= 0]] >= 0
        return out

    @cached_property
    def is_kernel(self) -> Bools:
        """Kernels, as opposed to copies and fills."""
        return (self.rows["kind"] == KERNEL).to_numpy()

    @cached_property
    def is_helper(self) -> Bools:
        """Kernels that help another one and have no work of their own."""
        return self.rows["role"].isin(HELPER_ROLES).to_numpy()

    @cached_property
    def is_matrix(self) -> Bools:
        """Kernels that multiply matrices, without their helpers."""
        return self.of_category(*MATRIX_CATEGORIES) & ~self.is_helper

    @cached_property
    def is_weight(self) -> Bools:
        """Matrix kernels that read a weight of known size."""
        return self.is_matrix & (self.rows["weight_bytes"] > 0).to_numpy()

    @cached_property
    def is_batched(self) -> Bools:
        """Matrix kernels that multiply a batch of matrices, no weight: eager attention is made of them."""
        return self.is_matrix & (self.rows["weight_bytes"].isna() & (self.rows["batch"] > 1)).to_numpy()

    @cached_property
    def is_attention(self) -> Bools:
        """Attention kernels without their helpers."""
        return self.of_category("attention") & ~self.is_helper

    @cached_property
    def blocks(self) -> Floats:
        """Thread blocks of each row's grid; NaN where none was recorded."""
        kernels, row = self.timeline.trace.kernels, self.rows["kernel"].to_numpy(np.int64)
        out = np.full(len(self.rows), np.nan)
        if not len(kernels):
            return out
        out[row >= 0] = grid_blocks(kernels)[row[row >= 0]]
        return out

    def of_category(self, *categories: str) -> Bools:
        """Kernels of some categories."""
        return self.is_kernel & self.rows["category"].isin(categories).to_numpy()

    def column(self, name: str) -> Floats:
        """A column of the rows as floats."""
        return self.rows[name].to_numpy(np.float64)

    def per_step(self, values: Floats | str, rows: Bools) -> float:
        """The sum of values (or a column) over some rows, per step; NaN where one of them is unknown."""
        column = self.column(values) if isinstance(values, str) else values
        return float(column[rows].sum()) / self.count

    def time(self, rows: Bools) -> float:
        """Nanoseconds per step that some rows take."""
        return self.per_step(self.duration, rows)

    def share(self, rows: Bools) -> float:
        """Share of a step's time that some rows take."""
        return self.time(rows) / self.step_ns

    def known_share(self, column: str, rows: Bools) -> float:
        """Share of the time of some rows whose figure in a column is known; 1 where there is no such row."""
        total = self.time(rows)
        return self.time(rows & self.rows[column].notna().to_numpy()) / total if total else 1.0


def subject(analysis: Analysis, phase: str) -> PhaseSubject | None:
    """The phase of the slowest device, or None where it has no complete step that took time."""
    main = analysis.main
    model = analysis.decode if phase == "decode" else step_model(main.timeline, main.ledger, phase)
    about = of_phase(main, model, analysis.main_run, phase)
    room = analysis.memory.max_sequences if analysis.memory and phase == "decode" else None
    return replace(about, room=room, ranks=analysis.ranks) if about else None


def of_phase(device: DeviceAnalysis, model: StepModel | None, run: RunFacts, phase: str) -> PhaseSubject | None:
    """A phase of a device, its room not known; None where it has no complete step that took time, and so no model."""
    steps = device.timeline.complete_steps
    steps = steps[steps["phase"] == phase]
    summary = next((found for found in device.phases if found.phase == phase), None)
    if summary is None or model is None:
        return None
    rows = _in_order(device.timeline.table, steps)
    return PhaseSubject(phase, run, device, summary, steps, rows, model)


def _in_order(table: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """A table's rows of some steps, by step and start; copied once, for they can be most of the table."""
    own = np.flatnonzero(table["step"].isin(steps.index).to_numpy())
    order = np.lexsort((table["start_ns"].to_numpy()[own], table["step"].to_numpy()[own]))
    return table.take(own[order]).reset_index(drop=True)
