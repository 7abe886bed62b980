"""Reports on recordings, made by hand on top of the factory's: a service that was sampled, and one that had trouble."""

from __future__ import annotations

from typing import Any

from tests.report import factory
from traceanalyzer.report import document as doc

STEPLOG = doc.StepLog(
    seconds=580.0, steps=24_310, prefill_steps=410, decode_steps=23_900, mixed_steps=0, prefill_share=0.11,
    decode_share=0.88, mixed_share=0.0, other_share=0.01, idle_s=12.5, decode_period_us_p50=20_500.0,
    decode_period_us_p99=61_000.0, prefill_us_p50=58_000.0, prefill_us_p99=190_000.0, tokens_in=209_920,
    tokens_out=191_200, sequences_mean=8.0, context_mean=913.5, source="collector",
)  # fmt: skip
COUNTERS = doc.Counters(
    util_gpu=0.97, power_w=412.4, power_limit_w=700.0, sm_mhz=1979.6, sm_mhz_max=1980.0, throttle_share=0.0,
    throttle_reasons=[], other_processes=0, tensor_active=0.06, dram_active=0.61, memory_used_bytes=71.2e9, samples=21,
    seconds=2.1, source="NVML",
)  # fmt: skip
WINDOW_US = 1_336_200.0
BETWEEN_US = 300_000_000.0


def recording(**changes: Any) -> doc.Recording:
    """Two windows, five minutes apart, of three."""
    windows = [
        doc.RecordedWindow(start_us=0.0, duration_us=WINDOW_US, number=2, reason="every", closed_by="steps"),
        doc.RecordedWindow(start_us=WINDOW_US + BETWEEN_US, duration_us=WINDOW_US, number=3, reason="latency",
                           closed_by="steps"),
    ]  # fmt: skip
    values: dict[str, Any] = {
        "mode": "sample", "recorder": "ondemand", "trigger": "every, latency", "windows_read": 2, "windows_total": 3,
        "ranks_missing": [], "dropped": {}, "weight_s": 600.0, "stable_batch": True, "cold_start": False,
        "windows": windows,
    }  # fmt: skip
    return doc.Recording(**{**values, **changes})


def sampled(**changes: Any) -> doc.Report:
    """The factory's run as two windows, with everything beside it."""
    base = factory.gpu_generation()
    second = WINDOW_US + BETWEEN_US
    steps = [
        step if step.start_us < WINDOW_US else step.model_copy(update={"start_us": step.start_us - WINDOW_US + second})
        for step in base.steps
    ]
    hole = doc.LedgerRow(rank=0, device=0, phase="other", group="idle", bucket="idle_artefact", us=BETWEEN_US)
    phases = [
        row.model_copy(update={"duration_us": row.duration_us + BETWEEN_US}) if row.phase == "other" else row
        for row in base.phases
    ]
    if not any(row.phase == "other" for row in phases):
        phases.append(factory.phase("other", duration_us=19_300.0 + BETWEEN_US, time_share=0.007, gpu_busy_us=0.0))
    values: dict[str, Any] = {
        "steps": steps, "ledger": [*base.ledger, hole], "phases": phases, "steplog": STEPLOG, "counters": COUNTERS,
        "recording": recording(),
        "span": base.span.model_copy(update={"duration_us": base.span.duration_us + BETWEEN_US}),
        "devices": [base.devices[0].model_copy(update={"span_us": base.devices[0].span_us + BETWEEN_US})],
        "profiling": doc.Profiling(step_us=21_000.0, unprofiled_step_us=20_000.0, overhead_share=0.05),
        "service": doc.Service(running=8.0, waiting=3.0, kv_used_share=0.62, preemptions_per_s=0.1, source="vllm"),
        "run": base.run.model_copy(update={"engine": "vLLM", "engine_version": "0.33.0", "sample_weight": 600.0}),
    }  # fmt: skip
    return doc.with_id(base.model_copy(update=values | changes))


def troubled() -> doc.Report:
    """The same, with a clock held down, another process, a lost rank and dropped windows."""
    notes = [
        ("recording_dropped", "The recorder dropped 3 of what it was asked for (busy 2, quota 1).", 3),
        ("windows_without_ranks", "1 window has no file of some ranks (1): a slower one may be missing there.", 1),
        ("gpu_throttled", "The GPU's clock was held down (34 %, sw power cap): kernels take longer.", 1),
        ("gpu_shared", "2 other processes used the GPU during the recording.", 2),
    ]
    counters = COUNTERS.model_copy(
        update={"throttle_share": 0.34, "throttle_reasons": ["sw_power_cap"], "other_processes": 2, "sm_mhz": 1410.2}
    )
    return sampled(
        counters=counters,
        recording=recording(dropped={"busy": 2, "quota": 1}, ranks_missing=[1], stable_batch=False),
        profiling=doc.Profiling(step_us=31_000.0, unprofiled_step_us=20_000.0, overhead_share=0.55),
        quality=[
            doc.QualityNote(code=code, severity="warning", message=message, count=count)
            for code, message, count in notes
        ],
    )
