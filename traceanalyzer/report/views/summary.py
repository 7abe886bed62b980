"""The first screen as data: what the page, the Markdown and the terminal all say, in the same order.

A line whose data is not in the report is left out: never faked, never zero. Figures come from `rows.flatten`, sentences
from `strings`; the renderers only lay them out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from traceanalyzer.report import format as fmt
from traceanalyzer.report import rows, strings
from traceanalyzer.report.document import Device, QualityNote, Report
from traceanalyzer.report.strings.labels import GRAPH_MODES, WORKLOADS
from traceanalyzer.report.strings.page import text
from traceanalyzer.report.views.beside import counters_line, log_line, lost, profiling_line
from traceanalyzer.report.views.beyond import beyond_floor
from traceanalyzer.report.views.findings import FindingView, findings_view
from traceanalyzer.report.views.pieces import (
    Fact,
    Figure,
    PhaseLine,
    above_limit,
    bound_chip,
    device_name,
    floor_lead,
    is_partial,
    limits_known,
    phase_line,
    prefill_lead,
    share_figure,
    simulated,
    step_head,
)
from traceanalyzer.report.views.ranks import straggler_line
from traceanalyzer.report.views.redaction import redaction_line

_SEVERITY_ORDER = ("error", "warning", "info")
_ACTIONS = 3
_VISIBLE_BAND = 0.005
_ENOUGH_FOR_P99 = 100
BUSY = 0.5
"""From this GPU-Util on, a reader has to be told that busy is not useful; below it, idleness is the news."""


@dataclass(frozen=True, slots=True)
class Meter:
    """A share of a maximum: certain up to `low`, possible up to `high`; both are at most one and drawn as a bar."""

    anchor: str
    label: str
    note: str
    figure: Figure
    low: float
    high: float

    @property
    def banded(self) -> bool:
        """Whether there is a visible band between what is certain and what is possible."""
        return self.high - self.low > _VISIBLE_BAND


@dataclass(frozen=True, slots=True)
class FirstScreen:
    """Everything of the first screen, in its order."""

    title: str
    simulated: str
    lost: tuple[str, ...]
    subject: tuple[str, ...]
    ran: tuple[Fact, ...]
    headline: str
    bound: str
    bound_label: str
    confidence: str
    does_not_help: str
    quality: str
    quality_severity: str
    quality_notes: tuple[QualityNote, ...]
    profiling: str
    redacted: str
    straggler: str
    service: tuple[Fact, ...]
    speed: tuple[Fact, ...]
    work_ratio: str
    log: str
    counters: tuple[Fact, ...]
    meters_title: str
    meters: tuple[Meter, ...]
    phases: tuple[PhaseLine, ...]
    step_head: str
    floor: str
    beyond: str
    ideal: str
    limits: str
    actions: tuple[FindingView, ...]
    nothing_to_do: str
    ruled_out: tuple[str, ...]
    cost: tuple[Fact, ...]
    cost_assumptions: tuple[str, ...]


def first_screen(report: Report) -> FirstScreen:
    """The first screen of a report."""
    figures = rows.flatten(report)
    device = rows.slowest_device(report)
    notes = sorted(report.quality, key=lambda note: _SEVERITY_ORDER.index(note.severity))
    bound = report.verdict.bound
    ruled_out = report.verdict.ruled_out
    lines = [phase_line(row) for row in rows.recorded_phases(report, device)]
    findings = findings_view(report)
    return FirstScreen(
        title=_title(report, device),
        simulated=simulated(report),
        lost=lost(report),
        subject=tuple(_subject(report, device)),
        ran=tuple(_ran(report, device)),
        headline=report.verdict.headline,
        bound=bound,
        bound_label=bound_chip(bound),
        confidence=_optional("verdict.confidence", share=report.verdict.confidence),
        does_not_help=ruled_out[0] if ruled_out else "",
        quality=_quality_badge(notes),
        quality_severity=notes[0].severity if notes else "clean",
        quality_notes=tuple(notes),
        profiling=profiling_line(report),
        redacted=redaction_line(report),
        straggler=straggler_line(report),
        service=tuple(_service(report)),
        speed=tuple(_speed(figures)),
        meters_title="meters.title" if (report.span.gpu_util or 0.0) >= BUSY else "meters.title_idle",
        meters=tuple(_meters(figures, device)),
        phases=tuple(lines),
        step_head=step_head(lines),
        floor=floor_lead(report.decode_floor) if report.decode_floor else "",
        beyond=beyond_floor(report),
        ideal=prefill_lead(report.prefill_ideal, rows.step_count(report, "prefill")) if report.prefill_ideal else "",
        limits="" if limits_known(device) or _said(notes, "gpu_unknown") else text("limits.hint"),
        work_ratio=_work_ratio(report),
        log=log_line(report),
        counters=counters_line(report),
        actions=tuple(row for row in findings.found if row.action)[:_ACTIONS] if findings else (),
        nothing_to_do=findings.nothing if findings else "",
        ruled_out=tuple(ruled_out[1:]),
        cost=tuple(_cost(report)),
        cost_assumptions=tuple(report.cost.assumptions) if report.cost else (),
    )


def _subject(report: Report, device: Device | None) -> list[str]:
    """Model, engine and device, as far as they are known: they stand in the title."""
    run = report.run
    engine = " ".join(part for part in (run.engine, run.engine_version) if part)
    known_device = device is not None and (device.name or device.kind == "cpu")
    parts = [run.model.name if run.model else None, engine, device_name(device) if known_device else None]
    return [part for part in parts if part]


def _title(report: Report, device: Device | None) -> str:
    subject = " \N{MIDDLE DOT} ".join(_subject(report, device))
    return text("title", subject=subject) if subject else text("title.plain")


def _ran(report: Report, device: Device | None) -> list[Fact]:
    """What the title does not say already."""
    facts: list[tuple[str, str | None]] = [
        ("ran.gpu", device_name(device) if device_name(device) == fmt.UNKNOWN else None),
        ("ran.workload", _workload(report)),
        ("ran.span", _span(report, device)),
        ("ran.steps", _steps(report, device)),
        ("ran.recorded", _recorded(report)),
        ("ran.traces", _trace_names(report)),
    ]
    if len(report.devices) > 1:
        facts.insert(1, ("appendix.devices", text("ran.devices", count=len(report.devices))))
    return [Fact(text(key), Figure(value)) for key, value in facts if value]


def _span(report: Report, device: Device | None) -> str:
    """How long the analysed span is; of several windows, how much of it they recorded."""
    whole = fmt.duration(report.span.duration_us)
    if not rows.is_joined(report):
        return whole
    time = report.span.duration_us - sum(rows.not_recorded(report, device).values())
    windows = report.recording.windows_read if report.recording else 1
    return text("ran.span_windows", time=fmt.duration(time), count=fmt.count(windows), over=whole)


def _workload(report: Report) -> str:
    words = [WORKLOADS[report.run.workload]]
    if report.run.graph_mode:
        words.append(GRAPH_MODES.get(report.run.graph_mode, report.run.graph_mode))
    return ", ".join(words)


def _recorded(report: Report) -> str | None:
    times = sorted(trace.recorded_at for trace in report.traces if trace.recorded_at)
    return times[0].replace("T", " ").replace("Z", " UTC") if times else None


def _steps(report: Report, device: Device | None) -> str:
    """How many whole steps each phase has, and how many that the recording cuts."""
    cut: Mapping[str, int] = Counter(step.phase for step in rows.steps_of(report, device) if not step.complete)
    whole: Mapping[str, int] = {row.phase: row.steps for row in rows.phases_of(report, device)}
    parts = [
        text(key, count=fmt.count(counts[phase]), phase=strings.phase_label(phase).lower())
        for phase in rows.PHASES
        for key, counts in (("ran.steps_of", whole), ("ran.steps_cut", cut))
        if counts.get(phase)
    ]
    return ", ".join(parts) if parts else text("ran.no_steps")


def _trace_names(report: Report) -> str | None:
    names = [trace.name for trace in report.traces]
    if len(names) < 2:
        return names[0] if names else None
    return text("ran.more", first=names[0], count=len(names) - 1)


def _quality_badge(notes: list[QualityNote]) -> str:
    if not notes:
        return text("quality.clean")
    counts = {severity: sum(note.severity == severity for note in notes) for severity in _SEVERITY_ORDER}
    keys = {"error": "quality.errors", "warning": "quality.warnings", "info": "quality.infos"}
    parts = [text(keys[name], count=many, s="" if many == 1 else "s") for name, many in counts.items() if many]
    return text("quality.badge", counts=", ".join(parts))


def _service(report: Report) -> list[Fact]:
    service = report.service
    if service is None:
        return []
    facts = (
        ("service.running", fmt.count(service.running), service.running),
        ("service.waiting", fmt.count(service.waiting), service.waiting),
        ("service.kv", fmt.percent(service.kv_used_share), service.kv_used_share),
        ("service.preemptions", fmt.rate(service.preemptions_per_s, "").strip(), service.preemptions_per_s),
    )
    return [Fact(text(key), Figure(printed)) for key, printed, value in facts if value is not None]


def _speed(figures: Mapping[str, float]) -> list[Fact]:
    facts = [
        ("speed.out", fmt.rate(figures.get("decode.tokens_per_s"), "tokens")),
        ("speed.in", fmt.rate(figures.get("prefill.tokens_per_s"), "tokens")),
        ("speed.mixed", fmt.rate(figures.get("mixed.tokens_per_s"), "tokens")),
    ]
    if "decode.sequences_mean" in figures:
        facts.append(("speed.sequences", fmt.count(figures["decode.sequences_mean"])))
    steps = figures.get("decode.steps", 0.0)
    if "request.tpot_us_p50" in figures:  # from step to step: two steps give one
        one = 0 < steps <= 2 and figures["request.tpot_us_p50"] == figures.get("request.tpot_us_p99")
        facts += _percentiles("speed.tpot", figures, "request.tpot_us_{}", one)
    else:
        facts += _percentiles("speed.step", figures, "decode.step_us.{}", steps == 1)
    if "request.ttft_us" in figures:
        facts.append(("speed.ttft", fmt.duration(figures["request.ttft_us"])))
    else:
        one = figures.get("prefill.steps") == 1
        key = "speed.prefill_step_one" if one else "speed.prefill_step"
        facts.append((key, fmt.duration(figures.get("prefill.step_us.p50"))))
    return [Fact(text(key), Figure(printed)) for key, printed in facts if printed != fmt.UNKNOWN]


def _percentiles(key: str, figures: Mapping[str, float], template: str, one: bool) -> list[tuple[str, str]]:
    """Median and, of enough steps, the 99th percentile; or the one time there is, which is no percentile."""
    median = fmt.duration(figures.get(template.format("p50")))
    if one:
        return [(f"{key}_one", median)]
    if figures.get("decode.steps", 0.0) < _ENOUGH_FOR_P99:
        return [(key, median)]
    return [(key, median), (f"{key}_p99", fmt.duration(figures.get(template.format("p99"))))]


def _work_ratio(report: Report) -> str:
    """How little of the prefill's work a decode step does: why the two are bound by different things."""
    request = report.request
    if request is None or not fmt.known(request.decode_step_flops_over_prefill_flops):
        return ""
    share = fmt.fraction(request.decode_step_flops_over_prefill_flops)
    if not request.ttft_us or not request.tpot_us_p50:
        return text("speed.work_ratio", share=share)
    return text("speed.work_and_time", share=share, time=fmt.fraction(request.tpot_us_p50 / request.ttft_us))


def _said(notes: list[QualityNote], code: str) -> bool:
    return any(note.code == code for note in notes)


def _meters(figures: Mapping[str, float], device: Device | None) -> list[Meter]:
    meters = []
    util = figures.get("span.gpu_util")
    if util is not None:
        key = "meters.cpu_busy" if device and device.kind == "cpu" else "meters.gpu_util"
        meters.append(_meter("gpu-util", key, text(f"{key}_note"), share_figure(util), util, 0))
    bandwidth = figures.get("span.bandwidth_share")
    if bandwidth is not None and device:
        figure = share_figure(bandwidth, at_least=is_partial(figures.get("span.bytes_known_share")))
        note = text("meters.bandwidth_note", peak=fmt.byte_rate(device.bandwidth_gbs))
        meters.append(_meter("bandwidth-share", "meters.bandwidth", note, figure, bandwidth, 0))
    useful = figures.get("span.tensor_core_useful_share")
    if useful is not None and (device is None or device.has_tensor_cores is not False):
        band = figures.get("span.tensor_core_unknown_share", 0.0)
        figure = Figure(fmt.percent_range(useful, useful + band), above_limit(useful))
        note = text("meters.tensor_note")
        meters.append(_meter("tensor-core-useful", "meters.tensor", note, figure, useful, band))
    return meters


def _meter(anchor: str, key: str, note: str, figure: Figure, share: float, band: float) -> Meter:
    low = min(max(share, 0.0), 1.0)
    return Meter(anchor, text(key), note, figure, low, min(low + max(band, 0.0), 1.0))


def _cost(report: Report) -> list[Fact]:
    cost = report.cost
    if cost is None:
        return []
    ratio = text("cost.ratio_value", ratio=fmt.factor(cost.output_over_input))
    price = text(
        "cost.price_value",
        price=fmt.money(cost.price_per_gpu_hour, cost.currency),
        gpus=cost.gpus,
        s="" if cost.gpus == 1 else "s",
    )
    facts = (
        ("cost.input", fmt.money(cost.per_1m_input_tokens, cost.currency), cost.per_1m_input_tokens),
        ("cost.output", fmt.money(cost.per_1m_output_tokens, cost.currency), cost.per_1m_output_tokens),
        ("cost.ratio", ratio, cost.output_over_input),
        ("cost.idle", fmt.percent(cost.idle_share), cost.idle_share),
        ("cost.price", price, cost.price_per_gpu_hour),
    )
    return [Fact(text(key), Figure(printed)) for key, printed, value in facts if value is not None]


def _optional(key: str, share: float | None) -> str:
    return text(key, share=fmt.percent(share)) if share is not None else ""
