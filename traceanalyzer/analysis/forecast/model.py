"""One mean step, taken apart, and what it takes after a change.

A kernel's time is a fixed part that never shrinks (launching, filling and draining the device), a part that its math
or its traffic explains, and a rest that neither does:

    t = fixed + S + rest,   S = min(t - fixed, NEAR_A_ROOF x max(F / peak, Q / bandwidth))

A change of the work, or of the roofs, scales S by the ratio of the new to the old max(F / peak, Q / bandwidth): what
reaches some share of its roof goes on to reach that share, down to the point where the other roof takes over. The rest
and the fixed part stay (method: t = W / BW_eff + t_fixed + t_launch, fitted to the published gpt-fast table). A kernel
whose work is unknown does not change.

Where the host is late, a faster kernel only makes the device wait longer. Kernels before such a gap are `hidden` behind
the host; their time and those gaps together are `host_ns`, and the step needs at least that much for them, however fast
the device. The whole step needs at least the host's own time, `own_host_ns`:

    step = max(exposed kernels + max(hidden kernels, host_ns) + idle time of other causes, own_host_ns)

What this adds is idle time that waits for launches.

What could be wrong: the mean step stands for all; the kernels of a faster or larger step may be other ones with other
efficiencies; hidden kernels are treated as one stretch of the step where they are many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.kernels import HELPER_ROLES, MATRIX_CATEGORIES
from traceanalyzer.analysis.phases import NEAR_A_ROOF

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

LAUNCH = ("idle_launch", "idle_graph_launch")
"""Idle time that cheaper launches would save."""

WORK = (
    "compute_ns", "memory_ns", "flops", "bytes", "weight_bytes", "weight_bytes_min", "kv_bytes", "tensor_compute_ns",
)  # fmt: skip
COLUMNS = ("name", "category", "role", "dtype", "tensor_core", "count", "duration_ns", "fixed_ns", "hidden_ns", *WORK)
"""Columns of `StepModel.rows`."""

QUANTISED_EFFECT = 0.9
QUANTISED_EFFECT_4_BITS = 0.8
"""Share of the bytes' saving that kernels with 8-bit and with 4-bit weights keep, for unpacking costs time (method: 0.7
to 0.9). The published gpt-fast table speaks for 0.9 (docs/method.md); a kernel for 4 bits unpacks twice as many numbers
per byte and is rarely as well made, so that less is promised for it."""


@dataclass(frozen=True)
class Change:
    """New times for a step: per row of the model, and idle time per bucket (buckets that are left out stay)."""

    duration_ns: Floats
    idle_ns: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Prediction:
    """A changed step against the step it was made from; times in nanoseconds.

    `saving_share` is of the step before; `known_share` is the share of the step's kernel time whose work is known.
    """

    step_ns: float
    tokens_per_s: float | None
    saving_ns: float
    saving_share: float
    speedup: float
    throughput_gain: float | None
    known_share: float


@dataclass(frozen=True)
class StepModel:
    """The mean complete step of one phase on one device. Times in nanoseconds, work in FLOPs and bytes, per step.

    Args:
        phase: whose steps these are.
        steps: how many were averaged.
        rows: one row per group of equal kernels and copies, indexed 0..n-1, with the columns name (string code),
            category, role, dtype, tensor_core (1, 0, -1), count, duration_ns (wall time: kernels that overlap share
            it), fixed_ns, hidden_ns (its time hidden behind the host), compute_ns and memory_ns (least times),
            tensor_compute_ns (least time of its FLOPs on tensor cores), flops, bytes, weight_bytes (and their least
            where experts are chosen per token: weight_bytes_min), kv_bytes. NaN: unknown.
        idle_ns: idle time by ledger bucket.
        host_ns: what the host takes to issue the hidden kernels: their time and the gaps after them.
        own_host_ns: what the host takes for the step when it never waits for the device; 0 unknown.
        late_latency_ns: what would remain of the gaps in which the host was late, had it been in time.
        described: the work of some rows is the recorder's description of the model, shared out by time.
        limited_ns: how much of the idle time is there only because of `own_host_ns`.
        tokens, sequences, context_sum: means per step, None unknown.
        output_tokens: tokens that the step gives: decode's one per sequence, prefill's tokens read; None unknown.
    """

    phase: str
    steps: int
    rows: pd.DataFrame
    idle_ns: Mapping[str, float]
    host_ns: float
    tokens: float | None
    sequences: float | None
    context_sum: float | None
    output_tokens: float | None
    own_host_ns: float = 0.0
    late_latency_ns: float = 0.0
    limited_ns: float = 0.0
    described: bool = False

    @property
    def durations(self) -> Floats:
        """Wall time of every row."""
        return self.rows["duration_ns"].to_numpy(np.float64)

    @property
    def busy_ns(self) -> float:
        """Time in which the device ran something."""
        return float(self.durations.sum())

    @property
    def step_ns(self) -> float:
        """The step's wall time: all rows and all idle time."""
        return self.busy_ns + float(sum(self.idle_ns.values()))

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens that the step gives over its time."""
        return self.output_tokens / self.step_ns * 1e9 if self.output_tokens and self.step_ns > 0 else None

    @property
    def weight_bytes(self) -> float | None:
        """Weight bytes the step reads; None where one of its matrix kernels does not tell."""
        return self._sum("weight_bytes", self.of_category(*MATRIX_CATEGORIES) & ~self.is_helper)

    @property
    def kv_bytes(self) -> float | None:
        """KV bytes the step reads; None where one of its attention kernels does not tell, or there is none."""
        return self._sum("kv_bytes", self.of_category("attention") & ~self.is_helper)

    @property
    def is_helper(self) -> Bools:
        """Rows of kernels that help another one and have no work of their own."""
        return self.rows["role"].isin(HELPER_ROLES).to_numpy()

    @property
    def known_share(self) -> float:
        """Share of the kernels' time whose FLOPs and bytes are known; communication and copies do not count."""
        kernels = ~self.of_category("comm", "memcpy", "memset")
        time = self.durations
        total = float(time[kernels].sum())
        return float(time[kernels & ~np.isnan(self._ideal())].sum()) / total if total > 0 else 0.0

    def of_category(self, *categories: str) -> Bools:
        """Which rows are of one of these categories."""
        return self.rows["category"].isin(categories).to_numpy()

    def _sum(self, column: str, rows: Bools) -> float | None:
        values = self.rows[column].to_numpy(np.float64)[rows & (self.durations > 0)]
        return float(values.sum()) if len(values) and not np.isnan(values).any() else None

    def _ideal(self) -> Floats:
        return np.maximum(self._column("compute_ns"), self._column("memory_ns"))  # NaN where either is

    def _column(self, name: str) -> Floats:
        return self.rows[name].to_numpy(np.float64)

    # changes: each gives a new model

    def apply(self, change: Change) -> StepModel:
        """The step with other times. Time saved behind the host comes back as waiting for it.

        Idle time that the change takes away is time that the host has gained.
        """
        old, new = self.durations, np.asarray(change.duration_ns, np.float64)
        hidden = self._column("hidden_ns") * np.divide(new, old, out=np.ones_like(old), where=old > 0)
        idle = {**self.idle_ns, "idle_launch": self._launch_idle(hidden, self.host_ns), **change.idle_ns}
        gained = sum(max(self.idle_ns.get(bucket, 0.0) - ns, 0.0) for bucket, ns in change.idle_ns.items())
        rows = self.rows.assign(duration_ns=new, hidden_ns=hidden)
        return self._settled(rows, idle, self.host_ns, max(self.own_host_ns - gained, 0.0))

    def _launch_idle(self, hidden: Floats, host_ns: float) -> float:
        """Idle time waiting for launches, with other hidden kernels and another host."""
        before = max(self.host_ns - float(self._column("hidden_ns").sum()), 0.0)
        after = max(host_ns - float(hidden.sum()), 0.0)
        return max(self.idle_ns.get("idle_launch", 0.0) - self.limited_ns - before + after, 0.0)

    def _settled(self, rows: pd.DataFrame, idle: dict[str, float], host_ns: float, own_host_ns: float) -> StepModel:
        """The step with these parts, and with idle time up to what the host needs for it."""
        device = float(rows["duration_ns"].sum()) + sum(idle.values())
        limited = max(own_host_ns - device, 0.0)
        idle["idle_launch"] += limited
        left = MappingProxyType({bucket: ns for bucket, ns in idle.items() if ns > 0})
        return replace(
            self, rows=rows, idle_ns=left, host_ns=host_ns, own_host_ns=own_host_ns, limited_ns=limited
        )  # fmt: skip

    def without(self, rows: Bools, share: Floats | float = 1.0) -> StepModel:
        """The step without a share of some rows: their kernels and the launches of them are gone.

        Rows keep their places, so that masks stay valid. `share` is one figure or one per row.
        """
        gone = np.where(rows, share, 0.0)
        host = self.host_ns * (1.0 - _share_of(gone, self._hidden_count()))
        own = self.own_host_ns * (1.0 - _share_of(gone, self._column("count")))
        hidden = self._column("hidden_ns") * (1.0 - gone)
        parts = ("count", "duration_ns", "fixed_ns", "hidden_ns", *WORK)
        left = self.rows.assign(**{c: np.where(gone == 1.0, 0.0, self._column(c) * (1.0 - gone)) for c in parts})
        return self._settled(left, {**self.idle_ns, "idle_launch": self._launch_idle(hidden, host)}, host, own)

    def _hidden_count(self) -> Floats:
        """How many of each row's kernels are hidden behind the host."""
        time, hidden = self.durations, self._column("hidden_ns")
        return self._column("count") * np.divide(hidden, time, out=np.zeros_like(time), where=time > 0)

    def scaled(self, rows: Bools, factor: Floats | float) -> StepModel:
        """The step with the time of some rows multiplied, whatever their work: by one factor, or one per row."""
        return self.apply(Change(np.where(rows, self.durations * factor, self.durations)))

    def without_idle(self, *buckets: str, left: float = 0.0) -> StepModel:
        """The step with only a share `left` of the idle time of some buckets.

        Launches that cost less free the host altogether, and leave the latency from kernel to kernel.
        """
        gone = {bucket: self.idle_ns[bucket] * (1.0 - left) for bucket in buckets if bucket in self.idle_ns}
        idle = {bucket: ns - gone.get(bucket, 0.0) for bucket, ns in self.idle_ns.items()}
        host, own = self.host_ns, max(self.own_host_ns - sum(gone.values()), 0.0)
        latency = 0.0
        if set(buckets) & set(LAUNCH):
            hidden = float(self._column("hidden_ns").sum())
            host, own = hidden + max(host - hidden, 0.0) * left, own * left
            latency = min(self.late_latency_ns * (1.0 - left), sum(gone.values()))
            idle["idle_latency"] = idle.get("idle_latency", 0.0) + latency
        rest = MappingProxyType({bucket: ns for bucket, ns in idle.items() if ns > 0})
        return replace(
            self, idle_ns=rest, host_ns=host, own_host_ns=own, limited_ns=self.limited_ns * left,
            late_latency_ns=self.late_latency_ns * left if latency else self.late_latency_ns,
        )  # fmt: skip

    def with_work(self, rows: Bools, flops: Floats | float = 1.0, size: Floats | float = 1.0) -> StepModel:
        """The step with the FLOPs and the bytes of some rows multiplied (a factor, or one per row)."""
        f, q = (np.where(rows, factor, 1.0) for factor in (flops, size))
        changed = self.with_roofs(self._column("compute_ns") * f, self._column("memory_ns") * q)
        work = {"tensor_compute_ns": f, "flops": f, "bytes": q}
        return replace(changed, rows=changed.rows.assign(**{c: self._column(c) * by for c, by in work.items()}))

    def with_device(self, compute: float = 1.0, bandwidth: float = 1.0) -> StepModel:
        """The step on a device with other peaks, as factors of this one's. Copies and communication do not change."""
        changed = self.with_roofs(self._column("compute_ns") / compute, self._column("memory_ns") / bandwidth)
        return replace(changed, rows=changed.rows.assign(tensor_compute_ns=self._column("tensor_compute_ns") / compute))

    def with_weights(self, factor: float, effect: float = 1.0) -> StepModel:
        """The step with weights of another size; of the time that the bytes save, a share `effect` is kept."""
        return self._with_part("weight_bytes", self.of_category(*MATRIX_CATEGORIES), factor, effect)

    def with_kv(self, factor: float, effect: float = 1.0) -> StepModel:
        """The step with a KV cache of another size per token."""
        return self._with_part("kv_bytes", self.of_category("attention"), factor, effect)

    def _with_part(self, column: str, rows: Bools, factor: float, effect: float) -> StepModel:
        part, size = self._column(column), self._column("bytes")
        share = np.divide(part, size, out=np.zeros_like(part), where=rows & (size > 0) & ~np.isnan(part))
        changed = self.with_work(rows, size=1.0 - share * (1.0 - factor))
        changed = replace(changed, rows=changed.rows.assign(**{column: np.where(rows, part * factor, part)}))
        if effect == 1.0:
            return changed
        kept = self.apply(Change(self.durations - (self.durations - changed.durations) * effect))
        return replace(kept, rows=kept.rows.assign(**{c: changed.rows[c] for c in WORK}))

    def with_roofs(self, compute: Floats, memory: Floats) -> StepModel:
        """The step with other least times of math and traffic per row; see the module docstring for the rule."""
        old, new = self._ideal(), np.maximum(compute, memory)
        fixed = np.minimum(self._column("fixed_ns"), self.durations)
        moved = np.minimum(self.durations - fixed, NEAR_A_ROOF * np.nan_to_num(old))
        ratio = np.divide(new, old, out=np.ones_like(old), where=(old > 0) & ~np.isnan(new))
        changed = self.apply(Change(self.durations + moved * (ratio - 1.0)))
        return replace(changed, rows=changed.rows.assign(compute_ns=compute, memory_ns=memory))

    def against(self, base: StepModel) -> Prediction:
        """This step compared with the one it was made from."""
        now, before = self.tokens_per_s, base.tokens_per_s
        saved = base.step_ns - self.step_ns
        return Prediction(
            step_ns=self.step_ns,
            tokens_per_s=now,
            saving_ns=saved,
            saving_share=saved / base.step_ns if base.step_ns > 0 else 0.0,
            speedup=base.step_ns / self.step_ns if self.step_ns > 0 else float("inf"),
            throughput_gain=now / before if now and before else None,
            known_share=base.known_share,
        )


def _share_of(part: Floats, whole: Floats) -> float:
    """The share of a sum that a share of each of its terms makes; 0 of nothing."""
    total = float(whole.sum())
    return float((part * whole).sum()) / total if total > 0 else 0.0
