"""The analysis of one run, as one readable list of questions.

    trace -> activity (what ran) -> classes (which kind of kernel) -> work (FLOPs, bytes) -> steps (prefill, decode)
          -> per device: timeline -> ledger, roofline, phases -> floor, ideal, request, cost, verdict

Several traces are the ranks of one run. Figures without a device are those of the slowest device: the one with the
longest span, since every step waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from traceanalyzer.analysis import activity as activities
from traceanalyzer.analysis import cost as costs
from traceanalyzer.analysis import (
    devices,
    floor,
    kernels,
    ledger,
    phases,
    request,
    roofline,
    steps,
    timeline,
    verdict,
    work,
)
from traceanalyzer.errors import InputError, UnsupportedTraceError
from traceanalyzer.trace.tables import KERNEL, Note, Trace


@dataclass(frozen=True)
class AnalysisOptions:
    """What the user asked for. Peaks in TFLOP/s by dtype, bandwidth in GB/s, price per GPU and hour."""

    gpu: str | None = None
    peaks_tflops: Mapping[str, float] = field(default_factory=dict)
    bandwidth_gbs: float | None = None
    price: costs.Price | None = None


@dataclass(frozen=True)
class DeviceAnalysis:
    """Everything that holds for one device."""

    timeline: timeline.Timeline
    ledger: ledger.Ledger
    kernels: pd.DataFrame
    phases: list[phases.PhaseSummary]


@dataclass(frozen=True)
class Analysis:
    """Everything known about one run. `main` is the slowest device; its floor, request and cost are the run's."""

    traces: tuple[Trace, ...]
    options: AnalysisOptions
    runs: tuple[steps.RunFacts, ...]
    devices: tuple[DeviceAnalysis, ...]
    main: DeviceAnalysis
    verdict: verdict.VerdictFacts
    decode_floor: floor.DecodeFloor | None
    prefill_ideal: floor.PrefillIdeal | None
    request: request.RequestView | None
    cost: costs.Cost | None
    sm_fill: float | None
    bandwidth_share: float | None
    bytes_known_share: float | None
    quality: tuple[Note, ...]


def analyze(traces: Sequence[Trace], options: AnalysisOptions | None = None) -> Analysis:
    """Analyse the ranks of one run.

    Raises:
        InputError: no trace, or traces that are not the ranks of one run.
        UnsupportedTraceError: a trace holds nothing that can be analysed.
        UnknownGPUError: the GPU id of the options is not in the catalogue.
    """
    options = options or AnalysisOptions()
    _check_one_run(traces)
    runs: list[steps.RunFacts] = []
    analysed: list[DeviceAnalysis] = []
    notes: list[Note] = []
    for trace in traces:
        facts, found = _analyze_trace(trace, options)
        runs.append(facts)
        analysed.extend(found)
        notes.extend((*trace.quality, *facts.notes))
    main = max(analysed, key=lambda device: device.timeline.span_ns)
    notes.extend(_physics(analysed))
    missing = max(trace.metadata.world_size or 1 for trace in traces) - len(traces)
    if missing > 0:
        notes.append(Note("ranks_not_given", "warning", missing))
    notes.extend(_unknown_work(main.timeline))
    bandwidth_share, bytes_known_share = roofline.bandwidth_share(main.timeline)
    return Analysis(
        traces=tuple(traces),
        options=options,
        runs=tuple(runs),
        devices=tuple(analysed),
        main=main,
        verdict=verdict.decide(main.phases),
        decode_floor=floor.decode_floor(main.timeline),
        prefill_ideal=floor.prefill_ideal(main.timeline),
        request=request.view(main.timeline),
        cost=costs.of(main.phases, _gpus(traces, analysed), options.price) if options.price else None,
        sm_fill=roofline.sm_fill(main.timeline),
        bandwidth_share=bandwidth_share,
        bytes_known_share=bytes_known_share,
        quality=tuple(notes),
    )


MOST_DEVICES = 64
"""One process drives at most a few devices; more of them is a damaged or hostile file."""


def _check_one_run(traces: Sequence[Trace]) -> None:
    if not traces:
        raise InputError("no trace to analyse")
    if len(traces) == 1:
        return
    together = "give the ranks of one run together, other files one at a time"
    seen: dict[int, str] = {}
    for trace in traces:
        rank, name = trace.metadata.rank, trace.source.name
        if rank is None:
            raise InputError(f"{name} does not say which rank it is, so it cannot be analysed with others", together)
        if rank in seen:
            raise InputError(f"{seen[rank]} and {name} are both rank {rank}, so they are not one run", together)
        seen[rank] = name
    if len({trace.metadata.world_size for trace in traces}) > 1:
        raise InputError("the traces come from runs of different world sizes", together)


def _analyze_trace(trace: Trace, options: AnalysisOptions) -> tuple[steps.RunFacts, list[DeviceAnalysis]]:
    activity = activities.build(trace)
    classes = kernels.classes(trace, activity)
    measured = work.measure(trace, activity, classes)
    found = steps.find(trace, activity, measured)
    limits = devices.Limits(options.gpu, options.peaks_tflops, options.bandwidth_gbs)
    hip = any(trace.text(code).startswith("hip") for code in trace.launches["name"].unique())
    analysed = []
    on = sorted(activity.table["device"].unique()) or [_first_device(trace)]
    if len(on) > MOST_DEVICES:
        raise UnsupportedTraceError(f"{trace.source.name} holds kernels of {len(on)} devices, more than one run has")
    for device in on:
        rows = (activity.table["device"] == device).to_numpy()
        if activity.on_cpu:
            info = devices.describe_cpu(trace.metadata, limits)
        else:
            info = devices.describe(trace.metadata, int(device), hip, limits)
        on_device = found.table[found.table["device"] == device]
        line = timeline.build(trace, info, activity.table[rows], measured[rows], on_device, found.activity_step[rows])
        book = ledger.account(line)
        analysed.append(DeviceAnalysis(line, book, roofline.by_kernel(line), phases.summarize(line, book)))
    return found.facts, analysed


def _gpus(traces: Sequence[Trace], analysed: Sequence[DeviceAnalysis]) -> int:
    """How many GPUs the run keeps busy: its world size where known, at least the ones recorded."""
    return max(len(analysed), *(trace.metadata.world_size or 1 for trace in traces))


def _first_device(trace: Trace) -> int:
    """The device to name where a damaged file has lost all device activity."""
    return trace.metadata.devices[0].id if trace.metadata.devices else 0


def _unknown_work(line: timeline.Timeline) -> list[Note]:
    """Says why the work of many kernels is unknown, where it is: graphs, no shapes recorded, or ops without a model."""
    kernels = line.table[(line.table["kind"] == KERNEL) & (line.table["category"] != "comm")]
    time = kernels["duration_ns"].sum()
    unknown = kernels[kernels["bytes"].isna() | kernels["flops"].isna()]
    share = unknown["duration_ns"].sum() / time if time else 0.0
    if share <= 1 - phases.KNOWN_ENOUGH or line.device.kind == "cpu":  # a CPU's views and wrappers have no work
        return []
    percent = f"{100 * share:.0f} %"
    launches = unknown.loc[unknown["launch"] >= 0, "launch"]
    replayed = launches.duplicated(keep=False).sum() > len(unknown) / 2
    if replayed:
        return [Note("unknown_work_in_graphs", "warning", len(unknown), percent)]
    if not line.trace.metadata.record_shapes:
        return [Note("unknown_work_without_shapes", "warning", len(unknown), percent)]
    return [Note("unknown_work_of_ops", "warning", len(unknown), percent)]


def _beats_bandwidth(table: pd.DataFrame) -> int:
    """Kernels whose bytes need clearly longer than they took: a cache served them, or their bytes are counted wrong."""
    kernels = table[table["kind"] == KERNEL]
    return int((kernels["memory_ns"] > 1.05 * kernels["duration_ns"]).sum())


def _lacks_limits(device: devices.DeviceInfo) -> bool:
    """Whether a GPU is neither in the catalogue nor described well enough by the user."""
    described = bool(device.peaks_tflops) and device.bandwidth_gbs is not None
    return device.kind != "cpu" and device.gpu is None and not described


def _idles(device: DeviceAnalysis) -> bool:
    """Whether the device waits for its host for a tenth of the span or more."""
    return device.ledger.total_ns("idle_launch", "idle_host") >= 0.1 * max(device.timeline.span_ns, 1)


def _physics(analysed: Sequence[DeviceAnalysis]) -> list[Note]:
    """What contradicts the limits: said, because a peak or a work model must then be wrong."""
    beats = sum(device.ledger.beats_peak for device in analysed)
    notes = [Note("kernel_beats_compute_peak", "warning", beats)] if beats else []
    cached = sum(_beats_bandwidth(device.timeline.table) for device in analysed)
    if cached:
        notes.append(Note("kernel_beats_bandwidth", "info", cached))
    if not any(len(device.timeline.table) for device in analysed):
        notes.append(Note("no_device_activity", "error"))
    if any(_lacks_limits(device.timeline.device) for device in analysed):
        notes.append(Note("gpu_unknown", "warning", 1))
    if any(device.timeline.trace.metadata.with_stack and _idles(device) for device in analysed):
        notes.append(Note("stacks_slow_the_host", "warning"))
    artefact = sum(device.ledger.total_ns("idle_artefact") for device in analysed)
    if artefact:
        notes.append(Note("unrecorded_device_time", "warning", 1, f"{artefact / 1e6:.2f}"))
    return notes
