"""The analysis of one run, as one readable list of questions.

    trace -> activity (what ran) -> classes (which kind of kernel) -> work (FLOPs, bytes) -> steps (prefill, decode)
          -> model (what is known of it, and from where)
          -> per device: timeline -> ledger, roofline, phases -> floor, ideal, request, cost, verdict
          -> memory -> the mean decode step taken apart -> sensitivities, batching
    ranks: the devices beside each other
          -> Holistic Trace Analysis, beside

Several traces are the ranks of one run, or windows of them; those of one rank are joined first. Figures without a
device are those of the slowest device: the one with the longest span, since every step waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pandas as pd

from traceanalyzer.analysis import activity as activities
from traceanalyzer.analysis import (
    beside,
    critical,
    devices,
    floor,
    forecast,
    held,
    hta,
    idle,
    kernels,
    launches,
    ledger,
    limits,
    memory,
    model,
    phases,
    physics,
    quality,
    ranks,
    replay,
    request,
    roofline,
    steps,
    timeline,
    turns,
    verdict,
    work,
)
from traceanalyzer.analysis import cost as costs
from traceanalyzer.catalog.hf_config import GivenModel
from traceanalyzer.errors import InputError, UnsupportedTraceError
from traceanalyzer.trace.collector import section
from traceanalyzer.trace.tables import Note, Trace


@dataclass(frozen=True)
class AnalysisOptions:
    """What the user asked for. Peaks in TFLOP/s by dtype, bandwidth in GB/s, price per GPU and hour, and the model.

    `captures` are traces of the same run whose shapes its graph replays may take: graph captures, or eager steps.
    `captures_beside` are such traces that were found, not given: what does not fit is left out without a word.

    Raises:
        InputError: a figure is no number above zero in a sensible range, or a dtype is not known.
    """

    gpu: str | None = None
    peaks_tflops: Mapping[str, float] = field(default_factory=dict)
    bandwidth_gbs: float | None = None
    price: costs.Price | None = None
    model: GivenModel | None = None
    captures: tuple[Trace, ...] = ()
    captures_beside: tuple[Trace, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no device has."""
        for dtype, peak in self.peaks_tflops.items():
            limits.check_dtype("peaks_tflops", dtype)
            limits.check(f"peaks_tflops[{dtype!r}]", peak)
        if self.bandwidth_gbs is not None:
            limits.check("bandwidth_gbs", self.bandwidth_gbs)
        if self.price is not None:
            limits.check("price", self.price.per_gpu_hour)


LAUNCHED = ("prefill", "decode", "mixed")
"""The phases whose steps are asked how they were launched."""


@dataclass(frozen=True)
class DeviceAnalysis:
    """Everything that holds for one device.

    What only the slowest device is asked for is worked out when it is first asked for.
    """

    timeline: timeline.Timeline
    ledger: ledger.Ledger
    kernels: pd.DataFrame
    phases: list[phases.PhaseSummary]

    @cached_property
    def critical_paths(self) -> Mapping[str, critical.CriticalPath]:
        """The critical path of the median step of each phase in `LAUNCHED` of which it can be told."""
        found = {phase: critical.critical_path(self.timeline, phase) for phase in LAUNCHED}
        return {phase: path for phase, path in found.items() if path is not None}

    @cached_property
    def launch_stats(self) -> Mapping[str, launches.LaunchStats]:
        """How the complete steps of each phase in `LAUNCHED` were launched; without phases that have no kernel."""
        found = {phase: launches.launch_stats(self.timeline, phase) for phase in LAUNCHED}
        return {phase: stats for phase, stats in found.items() if stats is not None}


@dataclass(frozen=True)
class Analysis:
    """Everything known about one run. `main` is the slowest device; its floor, request and cost are the run's.

    `decode` is its mean complete decode step, taken apart.
    """

    traces: tuple[Trace, ...]
    options: AnalysisOptions
    runs: tuple[steps.RunFacts, ...]
    devices: tuple[DeviceAnalysis, ...]
    main: DeviceAnalysis
    verdict: verdict.VerdictFacts
    decode: forecast.StepModel | None
    decode_floor: floor.DecodeFloor | None
    prefill_ideal: floor.PrefillIdeal | None
    request: request.RequestView | None
    weights: held.Weights | None
    memory: memory.Memory | None
    sensitivity: forecast.Sensitivity | None
    batching: forecast.Batching | None
    cost: costs.Cost | None
    sm_fill: float | None
    bandwidth_share: float | None
    bytes_known_share: float | None
    hta: hta.Figures | None
    ranks: ranks.Ranks | None
    quality: tuple[Note, ...]

    @property
    def main_run(self) -> steps.RunFacts:
        """What the trace of the main device is a recording of."""
        return self.runs[self.traces.index(self.main.timeline.trace)]


def analyze(traces: Sequence[Trace], options: AnalysisOptions | None = None) -> Analysis:
    """Analyse the ranks and windows of one run.

    Raises:
        InputError: no trace, traces that are not the ranks and windows of one run, or a capture that holds no shapes or
            is one of the traces.
        UnsupportedTraceError: a trace holds nothing that can be analysed.
        UnknownGPUError: the GPU id of the options is not in the catalogue.
    """
    options = options or AnalysisOptions()
    _refuse_copies(traces, options.captures)
    traces, notes = ranks.of_one_run(traces)
    runs: list[steps.RunFacts] = []
    analysed: list[DeviceAnalysis] = []
    evidence = _evidence(options)
    for trace in traces:
        facts, found, told = _analyze_trace(trace, options, evidence)
        runs.append(facts)
        analysed.extend(found)
        notes.extend((*trace.quality, *facts.notes, *told))
    main = max(analysed, key=lambda device: device.timeline.span_ns)
    notes.extend(quality.contradictions([(device.timeline, device.ledger) for device in analysed]))
    notes.extend(idle.notes([(device.timeline, device.ledger.idle) for device in analysed]))
    notes.extend(beside.notes([device.timeline for device in analysed]))
    notes.extend(quality.windows([device.timeline for device in analysed]))
    compared = ranks.compare([device.timeline for device in analysed])
    notes.extend(ranks.notes(compared))
    notes.extend(quality.unknown_work(main.timeline))
    holistic, told_by_hta = hta.ask([device.timeline for device in analysed])
    notes.extend(told_by_hta)
    bandwidth_share, bytes_known_share = roofline.bandwidth_share(main.timeline)
    decode = forecast.step_model(main.timeline, main.ledger, "decode")
    decode_floor = floor.decode_floor(main.timeline)
    read = decode_floor.weight_bytes if decode_floor and decode_floor.source in ("shapes", "graph-match") else None
    weights = held.weights(main.timeline, read)
    used = memory.use(main.timeline, weights, decode)
    sensitive = forecast.sensitivity(decode, has_launches(main)) if decode else None
    return Analysis(
        traces=tuple(traces),
        options=options,
        runs=tuple(runs),
        devices=tuple(analysed),
        main=main,
        verdict=verdict.decide(main.phases, sensitive),
        decode=decode,
        decode_floor=decode_floor,
        prefill_ideal=floor.prefill_ideal(main.timeline),
        request=request.view(main.timeline),
        weights=weights,
        memory=used,
        sensitivity=sensitive,
        batching=_batching(main, decode, used) if decode else None,
        cost=costs.of(main.phases, _gpus(traces, analysed), options.price) if options.price else None,
        sm_fill=roofline.sm_fill(main.timeline),
        bandwidth_share=bandwidth_share,
        bytes_known_share=bytes_known_share,
        hta=holistic,
        ranks=compared,
        quality=tuple(notes),
    )


def has_launches(device: DeviceAnalysis) -> bool:
    """Whether the launch calls of most of a device's activity were recorded, so that waiting for them shows."""
    launch = device.timeline.table["launch"].to_numpy()
    return bool(len(launch)) and float((launch >= 0).mean()) >= phases.KNOWN_ENOUGH


def _batching(
    device: DeviceAnalysis, decode: forecast.StepModel, used: memory.Memory | None
) -> forecast.Batching | None:
    steps = device.timeline.complete_steps
    taken = turns.turns(steps[(steps["phase"] == "decode") & (steps["parent_step"] < 0)])
    return forecast.batching(decode, used.max_sequences if used else None, taken)


MOST_DEVICES = 64
"""One process drives at most a few devices; more of them is a damaged or hostile file."""


def _refuse_copies(traces: Sequence[Trace], captures: Sequence[Trace]) -> None:
    """Raise for a capture with the content of a trace that it is to explain: it would only say the same again."""
    content = {(trace.source.bytes, trace.source.sha256): trace.source.name for trace in traces}
    for capture in captures:
        name = content.get((capture.source.bytes, capture.source.sha256))
        if name is not None:
            raise InputError(
                f"the capture {capture.source.name} has the content of {name}, the trace it is to explain",
                "give a capture of its graphs, or an eager trace",
            )


def _evidence(options: AnalysisOptions) -> list[replay.Evidence]:
    """What the traces beside the run hold that its graph replays can be matched with."""
    found = []
    for trace in options.captures:
        evidence = replay.evidence_of(trace)
        if not evidence.parts:
            raise InputError(
                f"{trace.source.name} holds no captured graph with the names of its kernels, and no step with shapes",
                "record the capture of the graphs, or a few steps without graphs, with record_shapes=True",
            )
        found.append(evidence)
    for trace in options.captures_beside:
        try:
            evidence = replay.evidence_of(trace)
        except UnsupportedTraceError:
            continue
        found.append(replace(evidence, given=False))
    return found


def _analyze_trace(
    trace: Trace, options: AnalysisOptions, evidence: Sequence[replay.Evidence]
) -> tuple[steps.RunFacts, list[DeviceAnalysis], tuple[Note, ...]]:
    activity = activities.build(trace)
    classes = kernels.classes(trace, activity)
    measured = work.measure(trace, activity, classes)
    found, doubts = physics.check(trace, activity, steps.find(trace, activity, measured))
    measured = work.fill_weights(trace, activity, measured, found.table, found.activity_step)
    seen = model.observe(trace, activity.table, measured, len(found.table), found.facts.layers)
    described, notes = model.describe(section(trace.metadata.collector, "model"), options.model, seen)
    config = model.config_of(described)
    windows = [config.window(layer) for layer in range(config.layers)] if config else []
    measured = work.fill_attention(trace, activity, measured, found.table, found.activity_step, windows)
    measured = work.fill_experts(trace, activity, measured, _sized(described))
    recorded = replay.Recorded(trace, activity, measured, found.table, found.activity_step)
    measured, fit = replay.fill_matched(recorded, evidence, windows, described.hidden)
    recorded = replace(recorded, work=measured)
    given = devices.Limits(options.gpu, options.peaks_tflops, options.bandwidth_gbs)
    hip = any(trace.text(code).startswith("hip") for code in trace.launches["name"].unique())
    analysed = []
    on = sorted(activity.table["device"].unique()) or [_first_device(trace)]
    if len(on) > MOST_DEVICES:
        raise UnsupportedTraceError(f"{trace.source.name} holds kernels of {len(on)} devices, more than one run has")
    infos = {
        int(device): devices.describe_cpu(trace.metadata, given)
        if activity.on_cpu
        else devices.describe(trace.metadata, int(device), hip, given)
        for device in on
    }
    measured, refused = replay.fill(recorded, described, infos)
    del recorded  # it holds what lacked that work
    for device, info in infos.items():
        rows = (activity.table["device"] == device).to_numpy()
        on_device = found.table[found.table["device"] == device]
        own, own_work = (table if rows.all() else table[rows] for table in (activity.table, measured))
        line = timeline.build(trace, info, own, own_work, on_device, found.activity_step[rows], described)
        book = ledger.account(line)
        analysed.append(DeviceAnalysis(line, book, roofline.by_kernel(line), phases.summarize(line, book)))
    return found.facts, analysed, (*doubts, *notes, *fit, *refused)


def _sized(described: model.Description) -> work.KnownModel | None:
    """The model's sizes on one rank, where it is known how ranks divide it."""
    config, bits = model.config_of(described), described.weight_bits
    if config is None or described.tp is None:
        return None
    return work.KnownModel(config, described.tp, bits.experts if bits else None)


def _gpus(traces: Sequence[Trace], analysed: Sequence[DeviceAnalysis]) -> int:
    """How many GPUs the run keeps busy: its world size where known, at least the ones recorded."""
    return max(len(analysed), *(trace.metadata.world_size or 1 for trace in traces))


def _first_device(trace: Trace) -> int:
    """The device to name where a damaged file has lost all device activity."""
    return trace.metadata.devices[0].id if trace.metadata.devices else 0
