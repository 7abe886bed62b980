"""What was recorded beside the trace, as data: the log of all steps against these windows, counters, the recording.

A figure that is not known on either side has no row. What could be wrong: the log's times are the host's, from one
step's start to the next one's; on a GPU that runs behind its host, single steps differ from the device's own times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from traceanalyzer.analysis.beside import UNUSUAL
from traceanalyzer.report import format as fmt
from traceanalyzer.report import rows
from traceanalyzer.report.document import Counters, Recording, Report, StepLog
from traceanalyzer.report.strings.page import TEXT, text
from traceanalyzer.report.views.pieces import Fact, Figure

TYPICAL = UNUSUAL
"""Relative difference of decode steps up to which windows are called typical."""
_OF_STEPS = ("prefill", "decode", "mixed", "draft", "encoder", "warmup")
_SAME = 0.005
LOST = (
    "recording_dropped", "windows_without_ranks", "recording_files_missing",
    "recording_files_unreadable", "recording_files_changed", "recording_steps_lost",
    "recording_unfinished", "other_processes_left_out", "windows_overlap", "recording_unreadable",
)  # fmt: skip
"""Codes of notes that say what a recording lacks, which a reader has to know before any figure."""


@dataclass(frozen=True, slots=True)
class LogRow:
    """One figure of these windows and of all steps."""

    label: str
    here: str
    everywhere: str


@dataclass(frozen=True, slots=True)
class BesideView:
    """The section; empty parts were not recorded."""

    log_column: str
    log: tuple[LogRow, ...]
    typical: str
    counters: tuple[Fact, ...]
    recording: tuple[Fact, ...]


def beside_view(report: Report) -> BesideView | None:
    """The section, or None for a trace without anything beside it."""
    log, counters, recording = report.steplog, report.counters, report.recording
    if log is None and counters is None and recording is None:
        return None
    return BesideView(
        log_column=text("log.all", time=fmt.duration(log.seconds * 1e6)) if log and log.seconds is not None else "",
        log=tuple(_log_rows(report, log)) if log and _goes_beyond(report) else (),
        typical=_typical(report),
        counters=tuple(all_counters(counters)) if counters else (),
        recording=tuple(_recording(recording)) if recording else (),
    )


def lost(report: Report) -> tuple[str, ...]:
    """What the recording lacks, in sentences; nothing for a trace that is no recording."""
    if report.recording is None:
        return ()
    return tuple(note.message for code in LOST for note in report.quality if note.code == code)


def profiling_line(report: Report) -> str:
    """What profiling cost, in a sentence; empty where it was not measured."""
    cost = report.profiling
    if cost is None:
        return ""
    if cost.overhead_share is None:
        return text("profiling.step", with_=fmt.duration(cost.step_us)) if cost.step_us is not None else ""
    share = fmt.percent(cost.overhead_share)
    if cost.step_us is None or cost.unprofiled_step_us is None:
        return text("profiling.share", share=share)
    key = "profiling" if cost.overhead_share >= _SAME else "profiling.none"
    if cost.overhead_share < -_SAME:
        key = "profiling.faster"
    times = {"with_": fmt.duration(cost.step_us), "without": fmt.duration(cost.unprofiled_step_us)}
    return text(key, share=share, **times) if key == "profiling" else text(key, **times)


def log_line(report: Report) -> str:
    """The log of all steps in two sentences, for the first screen; empty without one that goes beyond the windows."""
    log = report.steplog
    if log is None or not fmt.known(log.decode_period_us_p50) or log.seconds is None or not _goes_beyond(report):
        return ""
    facts = {"steps": fmt.count(log.steps), "time": fmt.duration(log.seconds * 1e6)}
    facts["p50"] = fmt.duration(log.decode_period_us_p50)
    key = "speed.log_median"
    if fmt.known(log.decode_period_us_p99):
        key, facts["p99"] = "speed.log", fmt.duration(log.decode_period_us_p99)
    parts = [text(key, **facts)]
    here = _shares(report).get("prefill")
    if log.prefill_share is not None and here is not None:
        parts.append(text("speed.log_split", log=fmt.percent(log.prefill_share), here=fmt.percent(here)))
    return " ".join(parts)


def counters_line(report: Report) -> tuple[Fact, ...]:
    """The counters that stand beside derived figures on the first screen."""
    if report.counters is None:
        return ()
    return tuple(_beside_derived(report.counters))


def _beside_derived(gpu: Counters) -> Iterator[Fact]:
    for key, share in (
        ("counters.util", gpu.util_gpu),
        ("counters.tensor", gpu.tensor_active),
        ("counters.dram", gpu.dram_active),
    ):
        if share is not None:
            yield Fact(text(key), Figure(fmt.percent(share)))


def all_counters(gpu: Counters) -> Iterator[Fact]:
    """Every counter that was read."""
    yield from _beside_derived(gpu)
    if gpu.sm_mhz is not None and gpu.sm_mhz_max is not None:
        value = text("counters.clock_value", mhz=fmt.count(round(gpu.sm_mhz)), most=fmt.count(round(gpu.sm_mhz_max)))
        yield Fact(text("counters.clock"), Figure(value))
    if gpu.throttle_share is not None:
        held = text("counters.throttled_value", share=fmt.percent(gpu.throttle_share))
        yield Fact(text("counters.throttled"), Figure(held))
    if gpu.throttle_reasons:
        yield Fact(text("counters.reasons"), Figure(", ".join(r.replace("_", " ") for r in gpu.throttle_reasons)))
    if gpu.power_w is not None:
        key = "counters.power_only" if gpu.power_limit_w is None else "counters.power_value"
        limit = {} if gpu.power_limit_w is None else {"limit": fmt.count(round(gpu.power_limit_w))}
        yield Fact(text("counters.power"), Figure(text(key, watts=fmt.count(round(gpu.power_w)), **limit)))
    if gpu.memory_used_bytes is not None:
        yield Fact(text("counters.memory"), Figure(fmt.size(gpu.memory_used_bytes)))
    if gpu.other_processes is not None:
        yield Fact(text("counters.others"), Figure(fmt.count(gpu.other_processes)))
    if gpu.samples is not None:
        yield Fact(text("counters.samples"), Figure(fmt.count(gpu.samples)))


def _goes_beyond(report: Report) -> bool:
    """Whether the log holds steps that no window does; else the trace says all of it, and more exactly."""
    windows = len(rows.steps_of(report, rows.slowest_device(report))) + report.steps_omitted
    return report.steplog is not None and (report.steplog.steps or 0) > windows


def _shares(report: Report) -> dict[str, float]:
    """The part of each phase in the time of all steps in these windows."""
    phases = rows.phases_of(report, rows.slowest_device(report))
    of_steps = {row.phase: row.time_share for row in phases if row.phase in _OF_STEPS and row.steps}
    whole = sum(of_steps.values())
    return {phase: share / whole for phase, share in of_steps.items()} if whole else {}


def _log_rows(report: Report, log: StepLog) -> Iterator[LogRow]:
    phases = {row.phase: row for row in rows.phases_of(report, rows.slowest_device(report))}
    prefill, decode = phases.get("prefill"), phases.get("decode")
    request, shares = report.request, _shares(report)
    steps = sum(row.steps for row in phases.values())
    for key, here, everywhere in (
        ("log.steps", fmt.count(steps), fmt.count(log.steps)),
        ("log.decode_p50", fmt.duration(request.tpot_us_p50 if request else None),
         fmt.duration(log.decode_period_us_p50)),
        ("log.decode_p99", fmt.duration(request.tpot_us_p99 if request else None),
         fmt.duration(log.decode_period_us_p99)),
        ("log.prefill_p50", fmt.duration(prefill.step_us.p50 if prefill and prefill.step_us else None),
         fmt.duration(log.prefill_us_p50)),
        ("log.prefill_share", fmt.percent(shares.get("prefill")), fmt.percent(log.prefill_share)),
        ("log.decode_share", fmt.percent(shares.get("decode")), fmt.percent(log.decode_share)),
        ("log.mixed_share", fmt.percent(shares.get("mixed")), fmt.percent(log.mixed_share or None)),
        ("log.sequences", fmt.count(decode.sequences_mean if decode else None), fmt.count(log.sequences_mean)),
        ("log.context", fmt.count(decode.context_mean if decode else None), fmt.count(log.context_mean)),
        ("log.tokens_in", fmt.count(prefill.prefill_tokens if prefill else None), fmt.count(log.tokens_in)),
        ("log.tokens_out", fmt.count(decode.decode_tokens if decode else None), fmt.count(log.tokens_out)),
    ):  # fmt: skip
        if everywhere != fmt.UNKNOWN:
            yield LogRow(text(key), here, everywhere)


def _typical(report: Report) -> str:
    """Whether the windows' decode step is about as long as one without the profiler."""
    cost = report.profiling
    if cost is None or not cost.step_us or not cost.unprofiled_step_us:
        return ""
    key = "log.typical" if abs(cost.step_us / cost.unprofiled_step_us - 1) <= TYPICAL else "log.unusual"
    return text(key, here=fmt.duration(cost.step_us), usual=fmt.duration(cost.unprofiled_step_us))


def _reasons(trigger: str | None) -> str | None:
    """Why the windows were recorded, in words; a reason that is not known stands as it is."""
    if not trigger:
        return None
    keys = [f"recording.reason.{reason}" for reason in trigger.split(", ")]
    return ", ".join(text(key) if key in TEXT else key.rsplit(".", 1)[-1] for key in keys)


def _recording(one: Recording) -> Iterator[Fact]:
    total = one.windows_total
    windows = fmt.count(one.windows_read)
    if total is not None and total != one.windows_read:
        windows = text("recording.windows_value", read=windows, total=fmt.count(total))
    stable = {True: text("recording.stable_yes"), False: text("recording.stable_no"), None: None}[one.stable_batch]
    dropped = ", ".join(f"{reason.replace('_', ' ')} {count}" for reason, count in one.dropped.items())
    for key, value in (
        ("recording.windows", windows),
        ("recording.mode", one.mode),
        ("recording.recorder", one.recorder),
        ("recording.trigger", _reasons(one.trigger)),
        ("recording.weight", fmt.duration(one.weight_s * 1e6) if one.weight_s else None),
        ("recording.stable", stable),
        ("recording.dropped", dropped or None),
    ):
        if value:
            yield Fact(text(key), Figure(value))
