"""What each phase did and what binds it: prefill against decode, in the same columns.

A phase's duration is the sum of its ledger, so the phases of a device add up to its span; shares of the peaks leave out
the time that was not recorded. Counts, tokens and averages come from complete steps only. FLOPs and bytes are sums over
the kernels whose work is known; below 80 % of the kernel time known they are unknown, because a sum that misses a fifth
of the time says nothing about the phase. Communication is apart: its bytes cross links, so it has neither FLOPs nor
bytes here, and its time is not in that share.

What binds a phase is where most of its time goes: kernels under the compute roof, kernels under the memory roof,
waiting for the host, or communication. A kernel counts under its roof only while it is within a factor of three of it:
one that needs far more time than its math and its traffic is bound by neither. Idle time without a known cause is
nobody's. Two causes within a third of each other are `mixed`. Where the work of most
kernels is unknown, the tokens per step against the ridge point still decide: a weight matrix is used 2 M / b
FLOPs per byte with M tokens and b bytes per weight (method: GEMM), far below the ridge when M is small.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from traceanalyzer.analysis import mixed
from traceanalyzer.analysis.ledger import Ledger
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.trace.tables import KERNEL

KNOWN_ENOUGH = 0.8
"""Share of kernel time whose work must be known before a phase's sums are shown."""

ORDER = ("prefill", "decode", "mixed", "draft", "encoder", "capture", "warmup", "other")


NEAR_A_ROOF = 3.0
"""A kernel that takes longer than this many times its ideal is bound by neither roof (latency, launch, tiles)."""

STACKS_DOUBT = 0.7
"""Recording Python stacks slows the host, so idle time and a host bound seen with them are less certain."""

_OF_KERNELS = ["category", "step", "call", "launch", "duration_ns", "flops", "bytes", "compute_ns", "memory_ns"]

HOST = ("idle_launch", "idle_graph_launch", "idle_sync", "idle_host", "idle_alloc")
"""Idle time that is the host's."""


@dataclass(frozen=True)
class Bound:
    """What binds a phase, how sure that is (0..1), and the share of the phase's time behind it."""

    name: str
    confidence: float
    share: float
    by_tokens: bool = False


@dataclass(frozen=True)
class PhaseSummary:
    """One phase of one device; times in nanoseconds, work in FLOPs and bytes, None for unknown.

    `split` is how the time of mixed steps divides, None for other phases.
    """

    phase: str
    bound: Bound
    steps: int
    duration_ns: int
    busy_ns: int
    time_share: float
    idle_ns: int
    unrecorded_ns: int
    prefill_tokens: int | None
    decode_tokens: int | None
    padded_tokens: int | None
    tokens_mean: float | None
    sequences_mean: float | None
    context_mean: float | None
    flops: float | None
    bytes: float | None
    arithmetic_intensity: float | None
    compute_share: float | None
    bandwidth_share: float | None
    step_ns: tuple[float, float, float, float] | None
    period_ns_mean: float | None
    kernels_per_step: float | None
    launches_per_step: float | None
    flops_known_share: float | None
    bytes_known_share: float | None
    one_token_each: bool
    split: mixed.Split | None = None

    @property
    def observed_ns(self) -> int:
        """The recorded part of the phase: what every rate and share is taken over."""
        return self.duration_ns - self.unrecorded_ns

    @property
    def idle_share(self) -> float | None:
        """Idle time over the recorded part of the phase."""
        return self.idle_ns / self.observed_ns if self.observed_ns > 0 else None

    @property
    def output_tokens(self) -> int | None:
        """Tokens a decode phase put out, one per sequence and step.

        Unknown for other phases, and where steps check several tokens per sequence: how many were accepted is in no
        trace.
        """
        return self.decode_tokens if self.phase == "decode" and self.one_token_each else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens over the recorded time: put out by decode, read by prefill, both for mixed steps."""
        tokens = {
            "decode": self.output_tokens,
            "prefill": self.prefill_tokens,
            "mixed": None
            if self.prefill_tokens is None or self.decode_tokens is None
            else self.prefill_tokens + self.decode_tokens,
        }.get(self.phase)
        return tokens / self.observed_ns * 1e9 if tokens and self.observed_ns > 0 else None


def summarize(timeline: Timeline, ledger: Ledger) -> list[PhaseSummary]:
    """One summary per phase that has any time, in the order prefill, decode, ..., other."""
    present = set(ledger.table["phase"])
    return [_summary(timeline, ledger, phase) for phase in ORDER if phase in present]


def _total(values: pd.Series) -> int | None:
    known = values.dropna()
    return int(known.sum()) if len(known) == len(values) and len(known) else None


def _mean(values: pd.Series) -> float | None:
    return None if values.isna().any() else _known_mean(values)


def _known_mean(values: pd.Series) -> float | None:
    known = values.dropna()
    return float(known.mean()) if len(known) else None


def _summary(timeline: Timeline, ledger: Ledger, phase: str) -> PhaseSummary:
    steps = timeline.complete_steps
    steps = steps[steps["phase"] == phase]
    entries = ledger.table[ledger.table["phase"] == phase].set_index("bucket")["ns"]
    duration = int(entries.sum())
    unrecorded = int(entries.get("idle_artefact", 0))
    idle = int(entries[entries.index.str.startswith("idle_")].sum()) - unrecorded
    table = timeline.table
    kernels = table.loc[(table["phase"] == phase) & (table["kind"] == KERNEL), _OF_KERNELS]
    counted = kernels[kernels["step"].isin(steps.index)]
    work = _Work(kernels, duration - unrecorded)
    launches = counted.loc[counted["launch"] >= 0, "launch"].nunique()
    return PhaseSummary(
        phase=phase,
        bound=Bound("unknown", 0.0, 0.0)
        if phase in ("capture", "warmup")
        else _bound(timeline, kernels, entries, duration, _mean(steps["tokens"])),
        steps=len(steps),
        duration_ns=duration,
        busy_ns=duration - idle - unrecorded,
        time_share=_time_share(timeline, phase, duration),
        idle_ns=idle,
        unrecorded_ns=unrecorded,
        prefill_tokens=_total(steps["prefill_tokens"]),
        decode_tokens=_total(steps["decode_tokens"]),
        padded_tokens=_total(steps["padded_tokens"]),
        tokens_mean=_mean(steps["tokens"]),
        sequences_mean=_mean(steps["sequences"]),
        context_mean=_mean(steps["context_sum"] / steps["sequences"]),
        flops=work.flops,
        bytes=work.bytes,
        arithmetic_intensity=work.arithmetic_intensity,
        compute_share=work.compute_share,
        bandwidth_share=work.bandwidth_share,
        step_ns=_percentiles(steps["duration_ns"].to_numpy(np.float64)),
        period_ns_mean=_known_mean(steps["period_ns"]),
        kernels_per_step=counted["call"].nunique() / len(steps) if len(steps) else None,
        launches_per_step=launches / len(steps) if len(steps) and launches else None,
        flops_known_share=work.flops_known,
        bytes_known_share=work.bytes_known,
        one_token_each=bool((steps["decode_tokens"] == steps["decode_sequences"]).all()),
        split=mixed.split(timeline) if phase == "mixed" else None,
    )


def _time_share(timeline: Timeline, phase: str, duration: int) -> float:
    """The phase's part of the span. The time between windows is in no phase but `other`, which does not count it."""
    own = duration - timeline.between.length if phase == "other" else duration
    return own / timeline.shared_ns if timeline.shared_ns else 0.0


class _Work:
    """Sums of a phase's kernel work with the shares of time they stand on."""

    def __init__(self, kernels: pd.DataFrame, duration_ns: int) -> None:
        kernels = kernels[kernels["category"] != "comm"]
        time = kernels["duration_ns"].to_numpy(np.float64)
        self.flops, self.flops_known = self._sum(kernels["flops"].to_numpy(np.float64), time)
        self.bytes, self.bytes_known = self._sum(kernels["bytes"].to_numpy(np.float64), time)
        compute, _ = self._sum(kernels["compute_ns"].to_numpy(np.float64), time)
        memory, _ = self._sum(kernels["memory_ns"].to_numpy(np.float64), time)
        self.compute_share = compute / duration_ns if compute is not None and duration_ns else None
        self.bandwidth_share = memory / duration_ns if memory is not None and duration_ns else None
        self.arithmetic_intensity = self._intensity(kernels) if self.flops and self.bytes else None

    @staticmethod
    def _intensity(kernels: pd.DataFrame) -> float | None:
        """FLOPs per byte of the kernels for which both are known."""
        both = kernels[["flops", "bytes"]].dropna().sum()
        return float(both["flops"] / both["bytes"]) if both["bytes"] else None

    @staticmethod
    def _sum(values: np.ndarray, time: np.ndarray) -> tuple[float | None, float | None]:
        known = ~np.isnan(values)
        if not time.sum():
            return None, None
        share = float(time[known].sum() / time.sum())
        return (float(values[known].sum()) if share >= KNOWN_ENOUGH else None), share


def _percentiles(values: np.ndarray) -> tuple[float, float, float, float] | None:
    if not len(values):
        return None
    p10, p50, p90, p99 = np.percentile(values, (10, 50, 90, 99))
    return float(p10), float(p50), float(p90), float(p99)


def _bound(timeline: Timeline, kernels: pd.DataFrame, entries: pd.Series, duration: int, tokens: float | None) -> Bound:
    """The largest cause of a phase's time; see the module docstring for the rule."""
    counted = duration - int(entries.get("idle_artefact", 0)) - int(entries.get("idle_no_work", 0))
    if counted <= 0:
        return Bound("unknown", 0.0, 0.0)
    idle = sum(int(ns) for bucket, ns in entries.items() if str(bucket).startswith("idle_")) - (duration - counted)
    host = sum(int(entries.get(bucket, 0)) for bucket in HOST)
    communication = int(entries.get("communication", 0))
    compute, memory = kernels["compute_ns"].to_numpy(np.float64), kernels["memory_ns"].to_numpy(np.float64)
    busy = kernels["duration_ns"].to_numpy(np.float64) * (kernels["category"] != "comm").to_numpy()
    scale = max(counted - idle - communication, 0) / busy.sum() if busy.sum() else 0.0
    known = ~np.isnan(compute) & ~np.isnan(memory)
    near = known & (kernels["duration_ns"].to_numpy(np.float64) <= NEAR_A_ROOF * np.maximum(compute, memory))

    def share_of(rows: np.ndarray) -> float:
        return scale * float(busy[rows].sum()) / counted

    shares = {
        "host": host / counted,
        "communication": communication / counted,
        "compute": share_of(near & (compute >= memory)),
        "memory": share_of(near & (compute < memory)),
        "mixed": share_of(known & ~near),
        "unknown": share_of(~known) + (idle - host) / counted,
    }
    no_work = kernels["flops"].isna().to_numpy() | kernels["bytes"].isna().to_numpy()
    by_tokens = _memory_by_tokens(timeline, share_of(no_work), tokens)
    if by_tokens is not None:
        return by_tokens
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    (first, share), (_, second) = ranked[0], ranked[1]
    if first == "unknown":
        return Bound("unknown", 0.0, share)
    sure = 1.0 - shares["unknown"]
    if first == "mixed" or share < 1.5 * second:
        return Bound("mixed", round(float(0.9 * sure), 2), share)
    if first == "host" and timeline.trace.metadata.with_stack:
        sure *= STACKS_DOUBT
    return Bound(first, round(float(min(0.95, share + 0.3) * sure), 2), share)


def _memory_by_tokens(timeline: Timeline, unknown: float, tokens: float | None) -> Bound | None:
    """Memory-bound by arithmetic: few tokens per step against the ridge, when most of the time has no known work."""
    ridge = timeline.device.matrix_ridge
    if tokens is None or ridge is None or unknown < 0.5 or tokens >= ridge / 4:
        return None
    return Bound("memory", 0.6, unknown, by_tokens=True)
