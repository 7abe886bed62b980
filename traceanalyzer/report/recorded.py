"""What the collector recorded beside the trace, for the document: its block of the main trace, and the manifest.

What could be wrong: on a run of several ranks these are the slowest one's; a value of another type than the document's
is unknown.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from traceanalyzer.analysis.beside import profiled_step
from traceanalyzer.analysis.pipeline import Analysis
from traceanalyzer.report import document as doc
from traceanalyzer.report.strings.redaction import REDACTED
from traceanalyzer.report.values import capped
from traceanalyzer.trace.collector import Section, is_collected, number, section, word
from traceanalyzer.trace.tables import Trace, Window

MAX_WINDOWS = 500
_LEVELS: tuple[Literal["none", "default", "strict"], ...] = ("none", "default", "strict")


def profiling(trace: Trace) -> doc.Profiling | None:
    """What recording cost: the step within the window against the steps far from any; None where not measured."""
    step = profiled_step(trace)
    if step.us is None and step.unprofiled_us is None:
        return None
    share = step.us / step.unprofiled_us - 1.0 if step.us is not None and step.unprofiled_us else None
    return doc.Profiling(step_us=step.us, unprofiled_step_us=step.unprofiled_us, overhead_share=share)


def service(trace: Trace) -> doc.Service | None:
    """The engine's own metrics, the mean of the window's open and close; None where it was not asked."""
    said = section(trace.metadata.collector, "service")

    def mean(key: str) -> float | None:
        known = [value for name in (key, f"{key}_close") if (value := number(said, name)) is not None]
        return sum(known) / len(known) if known else None

    figures = {name: mean(name) for name in ("running", "waiting", "kv_used_share")}
    rate = number(said, "preemptions_per_s")
    if rate is None and all(value is None for value in figures.values()):
        return None
    return doc.Service(**figures, preemptions_per_s=rate, source=capped(word(said, "source") or "recorder"))


def steplog(trace: Trace) -> doc.StepLog | None:
    """The log of all steps; None without one, or with one that holds no step."""
    log = section(trace.metadata.collector, "steplog")
    if not number(log, "steps"):
        return None
    return doc.StepLog(
        seconds=number(log, "seconds"),
        steps=_whole(log, "steps"),
        prefill_steps=_whole(log, "prefill_steps"),
        decode_steps=_whole(log, "decode_steps"),
        mixed_steps=_whole(log, "mixed_steps"),
        prefill_share=number(log, "prefill_share"),
        decode_share=number(log, "decode_share"),
        mixed_share=number(log, "mixed_share"),
        other_share=number(log, "other_share"),
        idle_s=number(log, "idle_s"),
        decode_period_us_p50=number(log, "decode_period_p50_us"),
        decode_period_us_p99=number(log, "decode_period_p99_us"),
        prefill_us_p50=number(log, "prefill_p50_us"),
        prefill_us_p99=number(log, "prefill_p99_us"),
        tokens_in=_whole(log, "tokens_in"),
        tokens_out=_whole(log, "tokens_out"),
        sequences_mean=number(log, "sequences_mean"),
        context_mean=number(log, "context_mean"),
        source="collector",
    )


def counters(trace: Trace) -> doc.Counters | None:
    """The GPU's own counters; None where none was sampled in the window."""
    gpu = section(trace.metadata.collector, "gpu")
    if not number(gpu, "samples"):
        return None
    reasons = gpu.get("throttle_reasons")
    return doc.Counters(
        util_gpu=number(gpu, "util_gpu"),
        power_w=number(gpu, "power_w"),
        power_limit_w=number(gpu, "power_limit_w"),
        sm_mhz=number(gpu, "sm_mhz"),
        sm_mhz_max=number(gpu, "sm_mhz_max"),
        throttle_share=number(gpu, "throttle_share"),
        throttle_reasons=[capped(item) for item in reasons if isinstance(item, str)]
        if isinstance(reasons, list)
        else [],
        other_processes=_whole(gpu, "other_processes"),
        tensor_active=number(gpu, "tensor_active"),
        dram_active=number(gpu, "dram_active"),
        memory_used_bytes=number(gpu, "memory_used_bytes"),
        samples=_whole(gpu, "samples"),
        seconds=number(gpu, "seconds"),
        source="NVML",
    )


def recording(analysis: Analysis) -> doc.Recording | None:
    """What was recorded; None for a trace that no collector recorded, and that is not joined from windows."""
    trace = analysis.main.timeline.trace
    manifest, block = trace.recording, trace.metadata.collector
    if manifest is None and not trace.windows and not is_collected(block):
        return None
    window, sampling = section(block, "window"), section(block, "sampling")
    stable, cold = window.get("stable_batch"), window.get("cold_start")
    origin = analysis.main.timeline.start_ns
    return doc.Recording(
        mode=(manifest.mode if manifest else None) or word(sampling, "mode"),
        recorder=word(window, "recorder") or (manifest.recorder if manifest else None),
        trigger=word(window, "reason") or word(sampling, "trigger"),
        windows_read=max(len(trace.windows), 1),
        windows_total=manifest.windows if manifest else None,
        ranks_missing=list(manifest.ranks_missing) if manifest else _ranks(window),
        dropped=dict(manifest.dropped) if manifest else {},
        weight_s=number(sampling, "weight_s"),
        stable_batch=stable if isinstance(stable, bool) else None,
        cold_start=cold if isinstance(cold, bool) else None,
        windows=[_window(one, origin) for one in trace.windows[:MAX_WINDOWS]],
    )


def redaction(analysis: Analysis) -> doc.Redaction | None:
    """What was taken out of the files before they were shared; None where no file says that it was rewritten for it."""
    metas = [window.metadata for trace in analysis.traces for window in trace.windows or (trace,)]
    said = [section(meta.collector, "redaction") for meta in metas]
    found = [(_LEVELS.index(level), one) for one in said if (level := word(one, "level")) in _LEVELS]
    if not found:
        return None
    counts: Counter[str] = Counter()
    for _, one in found:
        counts.update({kind: count for kind in REDACTED if (count := _whole(one, kind))})
    level = _LEVELS[min(place for place, _ in found)]
    return doc.Redaction(level=level, files=len(found), counts={k: counts[k] for k in REDACTED if counts[k] > 0})


def _window(window: Window, origin_ns: int) -> doc.RecordedWindow:
    facts = section(window.metadata.collector, "window")
    return doc.RecordedWindow(
        start_us=(window.start_ns - origin_ns) / 1e3,
        duration_us=(window.end_ns - window.start_ns) / 1e3,
        number=_whole(facts, "number"),
        reason=word(facts, "reason"),
        closed_by=word(facts, "closed_by"),
    )


def _ranks(window: Section) -> list[int]:
    missing = window.get("ranks_missing")
    return [rank for rank in missing if isinstance(rank, int)] if isinstance(missing, list) else []


def _whole(facts: Section, key: str) -> int | None:
    value = number(facts, key)
    return None if value is None else round(value)
