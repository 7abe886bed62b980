"""The host's part of an analysis -> its sections of the document: names capped, nanoseconds to microseconds.

What could be wrong: names of calls, ops, frames and annotations come from the trace and are hostile; they are capped
here and escaped by every rendering.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from traceanalyzer.analysis import idle
from traceanalyzer.analysis.pipeline import Analysis, DeviceAnalysis
from traceanalyzer.report.idle import CriticalPart, CriticalPath, HostRead, IdleCause, Launches
from traceanalyzer.report.values import capped, us

_MOST_READS = 5


def idle_causes(device: DeviceAnalysis) -> list[IdleCause]:
    """The idle time of one device by cause and culprit, phase by phase, the longest first."""
    summaries = {phase.phase: phase for phase in device.phases}
    rows = idle.culprits(device.timeline, device.ledger.idle)
    rows = rows.sort_values("ns", ascending=False, kind="stable")
    return [_cause(device, row, summaries) for row in rows.to_dict("records")]


def _cause(device: DeviceAnalysis, row: Mapping[Hashable, Any], summaries: Mapping[str, Any]) -> IdleCause:
    info, phase = device.timeline.device, summaries.get(row["phase"])
    ns = int(row["ns"])
    steps, observed = (phase.steps, phase.observed_ns) if phase else (0, 0)
    counts = observed > 0 and row["cause"] != "artefact"
    return IdleCause(
        rank=info.rank,
        device=info.device,
        phase=row["phase"],
        cause=row["cause"],
        bucket=row["bucket"],
        us=ns / 1e3,
        us_per_step=ns / steps / 1e3 if steps else None,
        share_of_phase=ns / observed if counts else None,
        gaps=int(row["gaps"]),
        longest_us=int(row["longest_ns"]) / 1e3,
        **{key: capped(str(row[key])) or None for key in ("call", "op", "frame", "during")},
        others=int(row["others"]),
    )


def launches(analysis: Analysis) -> list[Launches]:
    """The launch statistics of the slowest device, by phase."""
    return [
        Launches(
            phase=stats.phase,
            steps=stats.steps,
            kernels_per_step=stats.kernels,
            calls_per_step=stats.calls,
            graph_calls_per_step=stats.graph_calls,
            us_per_call=us(stats.call_ns),
            us_per_launch=us(stats.cost_ns),
            queue_depth_p50=stats.queue_median,
            queue_empty_share=stats.queue_empty_share,
            short_kernels_share=stats.short_share,
            short_kernels_time_share=stats.short_time_share,
            known_share=stats.known_share,
            reads=[HostRead(op=capped(r.op), per_step=r.per_step, us_per_step=r.ns_per_step / 1e3)
                   for r in stats.reads[:_MOST_READS]],
        )
        for stats in analysis.main.launch_stats.values()
    ]  # fmt: skip


def critical_paths(analysis: Analysis) -> list[CriticalPath]:
    """The critical path of the median step of each phase of the slowest device."""
    return [
        CriticalPath(
            phase=path.phase,
            step=path.step,
            step_us=path.step_ns / 1e3,
            parts=[
                CriticalPart(kind=kind, us=us(path.parts.get(kind)), saves_us=us(path.saved.get(_saved_as(kind))))
                for kind in dict.fromkeys((*path.parts, *(kind for kind in path.saved if kind != "launches")))
            ],
        )
        for path in analysis.main.critical_paths.values()
    ]


def _saved_as(kind: str) -> str:
    """Launches of kernels and of graphs are saved together."""
    return "launches" if kind in ("launch", "graph_launch") else kind
