"""The long lists of the Report: phases, ledger rows, steps and kernels, device by device.

Lists are bounded; what does not fit is counted (steps) or summed into "(rest)" rows (kernels), never dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from traceanalyzer.analysis.ledger import GROUPS
from traceanalyzer.analysis.phases import PhaseSummary
from traceanalyzer.analysis.pipeline import DeviceAnalysis
from traceanalyzer.analysis.unknown import kernels_without_work
from traceanalyzer.report import document as doc
from traceanalyzer.report.values import capped, number, us, whole

MAX_STEPS = 2000
MAX_KERNELS = 500
MAX_UNKNOWN = 50


def phase_row(device: DeviceAnalysis, phase: PhaseSummary) -> doc.Phase:
    """One phase of one device."""
    info = device.timeline.device
    busy = phase.busy_ns / 1e9
    return doc.Phase(
        rank=info.rank,
        device=info.device,
        phase=phase.phase,
        bound=phase.bound.name,
        steps=phase.steps,
        duration_us=phase.duration_ns / 1e3,
        gpu_busy_us=phase.busy_ns / 1e3,
        time_share=phase.time_share,
        prefill_tokens=phase.prefill_tokens,
        decode_tokens=phase.decode_tokens,
        output_tokens=phase.output_tokens,
        padded_tokens=phase.padded_tokens,
        sequences_mean=phase.sequences_mean,
        context_mean=phase.context_mean,
        flops=phase.flops,
        bytes=phase.bytes,
        arithmetic_intensity=phase.arithmetic_intensity,
        achieved_tflops=phase.flops / busy / 1e12 if phase.flops is not None and busy else None,
        achieved_gbs=phase.bytes / busy / 1e9 if phase.bytes is not None and busy else None,
        compute_share=phase.compute_share,
        bandwidth_share=phase.bandwidth_share,
        step_us=_percentiles(phase.step_ns),
        period_us_mean=us(phase.period_ns_mean),
        us_per_output_token=phase.observed_ns / 1e3 / phase.output_tokens if phase.output_tokens else None,
        tokens_per_s=phase.tokens_per_s,
        kernels_per_step=phase.kernels_per_step,
        launches_per_step=phase.launches_per_step,
        flops_known_share=phase.flops_known_share,
        bytes_known_share=phase.bytes_known_share,
        prefill_time_share=phase.split.prefill_share if phase.split else None,
        prefill_time_confidence=phase.split.confidence if phase.split else None,
    )


def _percentiles(values: tuple[float, float, float, float] | None) -> doc.Percentiles | None:
    if values is None:
        return None
    p10, p50, p90, p99 = (value / 1e3 for value in values)
    return doc.Percentiles(p10=p10, p50=p50, p90=p90, p99=p99)


def ledger_rows(device: DeviceAnalysis) -> list[doc.LedgerRow]:
    """The ledger of one device, in microseconds."""
    info = device.timeline.device
    return [
        doc.LedgerRow(rank=info.rank, device=info.device, phase=phase, group=GROUPS[bucket], bucket=bucket, us=ns / 1e3)
        for phase, bucket, ns in device.ledger.table.itertuples(index=False)
    ]


def step_rows(devices: Sequence[DeviceAnalysis]) -> tuple[list[doc.Step], int]:
    """Forward passes that ran, device by device in start order, and how many more there are.

    The first device, which the rest of the report is about, is served first. A graph capture runs nothing: its time is
    in the phases and the ledger, but it is no step.
    """
    rows: list[doc.Step] = []
    total = 0
    for device in devices:
        steps = device.timeline.steps
        steps = steps[steps["phase"] != "capture"]
        total += len(steps)
        rows += _steps(device, steps.iloc[: MAX_STEPS - len(rows)])
    return rows, total - len(rows)


def _steps(device: DeviceAnalysis, steps: pd.DataFrame) -> list[doc.Step]:
    """Times count from the start of the device's analysed span."""
    info, origin = device.timeline.device, device.timeline.start_ns
    counts = (
        "tokens", "prefill_tokens", "decode_tokens", "sequences", "prefill_sequences", "decode_sequences",
        "context_sum", "query_context_sum", "padded_tokens",
    )  # fmt: skip
    return [
        doc.Step(
            index=int(index),
            rank=info.rank,
            device=info.device,
            phase=row["phase"],
            confidence=round(float(row["confidence"]), 2),
            evidence=[capped(text) for text in row["evidence"]],
            start_us=(row["start_ns"] - origin) / 1e3,
            duration_us=row["duration_ns"] / 1e3,
            period_us=us(row["period_ns"]),
            gpu_busy_us=row["busy_ns"] / 1e3,
            parent_step=int(row["parent_step"]) if row["parent_step"] >= 0 else None,
            complete=bool(row["complete"]),
            **{name: whole(row[name]) for name in counts},
        )
        for index, row in zip(steps.index, steps.to_dict("records"), strict=True)
    ]


def kernel_rows(devices: Sequence[DeviceAnalysis]) -> list[doc.Kernel]:
    """The longest kernels, the first device's before the others', then the rest per device and phase: none is lost."""
    groups = pd.concat([device.kernels.assign(owner=owner) for owner, device in enumerate(devices)], ignore_index=True)
    groups = groups.assign(later=groups["owner"] > 0)
    groups = groups.sort_values(["later", "duration_ns"], ascending=[True, False], kind="stable")
    shown, rest = groups.iloc[:MAX_KERNELS], groups.iloc[MAX_KERNELS:]
    kernels = [_kernel(devices[row["owner"]], row) for _, row in shown.iterrows()]
    for owner, device in enumerate(devices):
        left = rest[rest["owner"] == owner]
        kernels += [_rest(device, phase, left[left["phase"] == phase]) for phase in sorted(left["phase"].unique())]
    return kernels


def unknown_rows(device: DeviceAnalysis) -> list[doc.UnknownWork]:
    """The kernels of a GPU that lack work, longest first. On a CPU the views and wrappers would be all there is."""
    line = device.timeline
    if line.device.kind == "cpu":
        return []
    return [
        doc.UnknownWork(
            phase=row["phase"],
            name=capped(line.trace.text(int(row["name"]))),
            category=row["category"],
            role=row["role"] or None,
            op=capped(line.trace.text(int(row["op"]))) if row["op"] >= 0 else None,
            lacks=row["lacks"],
            count=int(row["count"]),
            total_us=row["duration_ns"] / 1e3,
            share=float(row["share"]),
            rule=row["rule"],
        )
        for row in kernels_without_work(line).head(MAX_UNKNOWN).to_dict("records")
    ]


def _kernel(device: DeviceAnalysis, row: pd.Series) -> doc.Kernel:
    info, code = device.timeline.device, int(row["tensor_core"])
    return doc.Kernel(
        name=capped(device.timeline.trace.text(int(row["name"]))),
        category=row["category"],
        role=row["role"] or None,
        tensor_core=None if code < 0 else bool(code),
        dtype=row["dtype"] if isinstance(row["dtype"], str) else None,
        rank=info.rank,
        device=info.device,
        phase=row["phase"],
        count=int(row["count"]),
        total_us=int(row["duration_ns"]) / 1e3,
        flops=number(row["flops"]),
        bytes=number(row["bytes"]),
        arithmetic_intensity=number(row["arithmetic_intensity"]),
        achieved_tflops=number(row["achieved_tflops"]),
        achieved_gbs=number(row["achieved_gbs"]),
        grid_fill=number(row["grid_fill"]),
        bound=row["bound"],
        work_source=row["source"],
        wasted_us=us(number(row["wasted_ns"])),
    )


def _rest(device: DeviceAnalysis, phase: str, rows: pd.DataFrame) -> doc.Kernel:
    info = device.timeline.device
    return doc.Kernel(
        name="(rest)", category="rest", role=None, tensor_core=None, dtype=None, rank=info.rank, device=info.device,
        phase=phase, count=int(rows["count"].sum()), total_us=int(rows["duration_ns"].sum()) / 1e3, flops=None,
        bytes=None, arithmetic_intensity=None, achieved_tflops=None, achieved_gbs=None, grid_fill=None,
        bound="unknown", work_source="none", wasted_us=None,
    )  # fmt: skip
