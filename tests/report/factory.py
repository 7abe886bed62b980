"""Reports made by hand, so that the renderers are tested without a trace: plausible figures, and hostile ones.

The GPU figures are Llama-3-8B in bf16 on an A100-80: 15.01 GB of weights read per step, 131072 bytes of KV per token,
2039 GB/s and 312 TFLOP/s on the sheet.
"""

from __future__ import annotations

from typing import Any

from traceanalyzer.report import document as doc
from traceanalyzer.report.sections import FindingKernel

A100 = doc.Device(
    rank=0, device=0, kind="cuda", gpu_id="a100-sxm-80gb", name="NVIDIA A100-SXM4-80GB", identified_by="name",
    span_us=2_672_400.0, busy_us=1_497_200.0, kernel_us=1_489_100.0,
    peaks_tflops={"fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0, "int8": 624.0},
    achievable_tflops={"bf16": 271.0}, bandwidth_gbs=2039.0, achievable_gbs=1700.0, memory_bytes=85_170_000_000,
    ridge_flop_per_byte={"bf16": 153.0}, has_tensor_cores=True,
)  # fmt: skip

LLAMA = doc.ModelInfo(
    name="Llama-3-8B", layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=128256,
    parameters=8_030_000_000, dtype="bf16", kv_dtype="bf16", source="shapes",
)  # fmt: skip


def trace(name: str = "llama-3-8b-generate.pt.trace.json.gz", **changes: Any) -> doc.TraceInfo:
    values: dict[str, Any] = {
        "name": name, "sha256": "3f" * 32, "format": "kineto-json.gz", "bytes": 6_300_000, "events": 412_310,
        "kernels": 80_512, "rank": 0, "world_size": 1, "recorded_at": "2026-11-02T01:04:55Z", "host_hash": "9a" * 8,
        "producer": {"torch": "2.13.0", "cuda_runtime": "12.9"}, "collector": None,
    }  # fmt: skip
    return doc.TraceInfo(**{**values, **changes})


def phase(name: str, **changes: Any) -> doc.Phase:
    """A phase of which nothing but its time is known, plus what is given."""
    optional = (
        "prefill_tokens", "decode_tokens", "output_tokens", "padded_tokens", "sequences_mean", "context_mean", "flops",
        "bytes", "arithmetic_intensity", "achieved_tflops", "achieved_gbs", "compute_share", "bandwidth_share",
        "step_us", "period_us_mean", "us_per_output_token", "tokens_per_s", "kernels_per_step", "launches_per_step",
        "flops_known_share", "bytes_known_share",
    )  # fmt: skip
    values: dict[str, Any] = dict.fromkeys(optional)
    values |= {"rank": 0, "device": 0, "phase": name, "bound": "unknown", "steps": 0}
    values |= {"duration_us": 1000.0, "gpu_busy_us": 900.0, "time_share": 0.5}
    return doc.Phase(**{**values, **changes})


def kernel(name: str, phase: str, count: int, total_us: float, **changes: Any) -> doc.Kernel:
    values: dict[str, Any] = dict.fromkeys(
        ("role", "tensor_core", "dtype", "flops", "bytes", "arithmetic_intensity", "achieved_tflops", "achieved_gbs",
         "grid_fill", "wasted_us")
    )  # fmt: skip
    values |= {"name": name, "category": "other", "rank": 0, "device": 0, "phase": phase, "count": count}
    values |= {"total_us": total_us, "bound": "unknown", "work_source": "none"}
    return doc.Kernel(**{**values, **changes})


def worked(
    name: str, phase: str, count: int, total_us: float, flops: float, moved: float, **changes: Any
) -> doc.Kernel:
    """A kernel with known work on the A100."""
    ideal = max(flops / 312e12, moved / 2039e9) * 1e6
    values: dict[str, Any] = {
        "flops": flops, "bytes": moved, "arithmetic_intensity": flops / moved if moved else None,
        "achieved_tflops": flops / total_us / 1e6, "achieved_gbs": moved / total_us / 1e3,
        "bound": "compute" if flops / 312e12 > moved / 2039e9 else "memory", "work_source": "shapes", "dtype": "bf16",
        "wasted_us": max(0.0, total_us - ideal), "grid_fill": 1.0,
    }  # fmt: skip
    return kernel(name, phase, count, total_us, **{**values, **changes})


def step(index: int, name: str, start_us: float, duration_us: float, **changes: Any) -> doc.Step:
    values: dict[str, Any] = dict.fromkeys(
        ("period_us", "tokens", "prefill_tokens", "decode_tokens", "sequences", "prefill_sequences", "decode_sequences",
         "context_sum", "query_context_sum", "padded_tokens", "parent_step")
    )  # fmt: skip
    values |= {"index": index, "rank": 0, "device": 0, "phase": name, "confidence": 0.9, "evidence": ["lm_head rows"]}
    values |= {"start_us": start_us, "duration_us": duration_us, "gpu_busy_us": 0.6 * duration_us, "complete": True}
    return doc.Step(**{**values, **changes})


GROUP_OF = {
    "idle_launch": "idle", "idle_artefact": "idle", "idle_unknown": "idle", "memcpy": "moving",
    "communication": "moving", "no_tensor_core": "busy_no_tensor_core", "tensor_core_memory": "tensor_core_waiting",
    "tensor_core_other": "tensor_core_waiting", "tensor_core_unknown": "tensor_core_waiting",
    "tensor_core_useful": "tensor_core_useful",
}  # fmt: skip


def ledger(phases: dict[str, dict[str, float]]) -> list[doc.LedgerRow]:
    return [
        doc.LedgerRow(rank=0, device=0, phase=name, group=GROUP_OF[bucket], bucket=bucket, us=us)  # type: ignore[arg-type]
        for name, buckets in phases.items()
        for bucket, us in buckets.items()
    ]


def report(**changes: Any) -> doc.Report:
    """A report of which only the span is known; everything else as given."""
    values: dict[str, Any] = {
        "schema_version": doc.SCHEMA_VERSION, "report_id": "", "tool": doc.Tool(name="traceanalyzer", version="0.1.0"),
        "options": doc.Options(),
        "run": doc.Run(workload="unknown", engine=None, engine_version=None, parallel={}, graph_mode=None, labels={},
                       sample_weight=None, model=None),
        "traces": [], "devices": [], "quality": [],
        "verdict": doc.Verdict(headline="What binds the run cannot be told from this trace.", bound="unknown",
                               confidence=None, ruled_out=[]),
        "span": doc.Span(duration_us=1000.0, gpu_busy_us=900.0, gpu_util=None, tensor_core_useful_us=None,
                         tensor_core_idle_us_min=None, tensor_core_idle_us_max=None, sm_fill=None),
        "steps_omitted": 0,
    }  # fmt: skip
    values |= {key: [] for key in ("phases", "ledger", "steps", "kernels", "findings")}
    values |= dict.fromkeys(
        ("profiling", "service", "request", "decode_floor", "prefill_ideal", "memory", "sensitivity", "cost")
    )
    return doc.with_id(doc.Report(**{**values, **changes}))


GPU_LEDGER = {
    "prefill": {
        "idle_launch": 1_900.0, "memcpy": 300.0, "no_tensor_core": 14_000.0, "tensor_core_memory": 3_100.0,
        "tensor_core_other": 14_600.0, "tensor_core_useful": 26_500.0,
    },
    "decode": {
        "idle_launch": 1_150_000.0, "idle_unknown": 4_000.0, "memcpy": 7_800.0, "no_tensor_core": 410_000.0,
        "tensor_core_memory": 892_400.0, "tensor_core_other": 83_800.0, "tensor_core_unknown": 37_200.0,
        "tensor_core_useful": 7_500.0,
    },
    "other": {"idle_unknown": 19_300.0},
}  # fmt: skip


def closeup(phase: str, names: list[str], **changes: Any) -> doc.CloseUp:
    """One step of a millisecond: ops and calls of one thread, a kernel per name and two that stand together."""
    count = len(names) + 1
    each = 800.0 / count
    start = [200.0 + each * i for i in range(count)]
    host = {"number": 1, "start_us": [0.0, 300.0], "duration_us": [250.0, 100.0], "name": [0, len(names) - 1],
            "category": [None, None], "count": [1, 1]}  # fmt: skip
    stream = doc.CloseUpRow(kind="stream", number=7, start_us=start, duration_us=[each * 0.75] * count,
                            name=[*range(len(names)), None], category=["gemm"] * len(names) + ["norm"],
                            count=[1] * len(names) + [2])  # fmt: skip
    fields: dict[str, Any] = {
        "phase": phase, "step": 3, "from_us": 500.0, "device_from_us": 200.0, "duration_us": 1000.0, "names": names,
        "rows": [doc.CloseUpRow(kind="op", **host), doc.CloseUpRow(kind="call", **host), stream], "rows_left_out": 0,
        "gaps": doc.CloseUpGaps(start_us=[at + each * 0.75 for at in start[:-1]],
                                duration_us=[each * 0.25] * (count - 1),
                                cause=["launch", "latency", *["sync"] * (count - 3)]),
    }  # fmt: skip
    return doc.CloseUp(**{**fields, **changes})


def finding(id: str, title: str, status: str, **changes: Any) -> doc.Finding:
    """A rule's answer of which nothing but the status is known, plus what is given."""
    values: dict[str, Any] = dict.fromkeys(("phase", "saving_us_per_step", "saving_share", "confidence", "action"))
    values |= {"id": id, "title": title, "status": status, "evidence": []}
    return doc.Finding(**{**values, **changes})


BATCHING = doc.Batching(
    points=[doc.BatchPoint(sequences=n, step_us=20_000.0 + 105.0 * n, tokens_per_s=n / (0.020 + 105e-6 * n))
            for n in (1, 2, 4, 8, 16, 32, 64, 128, 153)],
    cap=153, cap_reason="ridge", batching_efficiency=None, effective_batch=None, streams=None, source="steps",
    confidence=0.6, assumptions=["Further sequences are as long as these."],
)  # fmt: skip

FINDINGS = [
    finding("tf32", "Matrix products in fp32", "passed", reason="Every matrix product runs in bf16."),
    finding("batch", "Decode more sequences together", "found", phase="decode", saving_us_per_step=10_100.0,
            saving_share=0.496, saving_share_of_span=0.48, predicted_step_us=21_900.0, predicted_tokens_per_s=365.0,
            confidence=0.6, evidence=["A step reads 15.0 GB of weights for one token."],
            action="Serve requests with continuous batching.", assumptions=["The requests are there."]),
    finding("decode-graph", "Replay decode from a graph", "found", phase="decode", saving_us_per_step=9_060.0,
            saving_share=0.445, saving_share_of_span=0.431, predicted_step_us=11_300.0, predicted_tokens_per_s=88.5,
            confidence=0.8, action="Use a static KV cache and torch.compile in reduce-overhead mode.",
            evidence=["The GPU waits for the next launch 44 % of a decode step.", "629 launches per step."],
            kernels=[FindingKernel(name="void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16>(Params)",
                                       us_per_step=7_409.0, count_per_step=224.0),
                     FindingKernel(name="void at::native::reduce_kernel<512, 1, MeanOps>", us_per_step=459.0,
                                       count_per_step=65.0)],
            kernels_omitted=9, assumptions=["A replayed graph leaves no gap between kernels."]),
    finding("prefill-attention", "Fused attention in prefill", "found", phase="prefill", saving_us_per_step=3_100.0,
            saving_share=0.051, saving_share_of_span=0.0012, predicted_step_us=57_300.0, confidence=0.5,
            evidence=["Scores are written to memory."], action="Use scaled_dot_product_attention."),
    finding("collectives", "Communication in the way", "not_applicable", reason="One GPU ran."),
    finding("experts", "Experts run one by one", "not_applicable", reason="The model has no experts."),
    finding("weights-int4", "Quantise the weights", "error", reason="The bytes of 12 kernels are not known."),
]  # fmt: skip


def gpu_generation(**changes: Any) -> doc.Report:
    """Llama-3-8B, eager, on an A100: one prefill of 512 tokens, 127 decode steps bound by the host."""
    steps = [step(0, "prefill", 0.0, 60_400.0, tokens=512, prefill_tokens=512, sequences=1, context_sum=512)]
    start = 61_000.0
    for index in range(1, 128):
        duration = 20_100.0 + (9_000.0 if index % 41 == 0 else 130.0 * (index % 7))
        steps.append(step(index, "decode", start, duration, period_us=duration + 300, tokens=1, decode_tokens=1,
                          sequences=1, context_sum=512 + index))  # fmt: skip
        start += duration + 300.0
    prefill = phase(
        "prefill", bound="compute", steps=1, duration_us=60_400.0, gpu_busy_us=58_500.0, time_share=60_400 / 2_672_400,
        prefill_tokens=512, output_tokens=1, sequences_mean=1.0, context_mean=512.0, flops=8.22e12, bytes=2.41e10,
        arithmetic_intensity=341.0, achieved_tflops=136.1, achieved_gbs=399.0, compute_share=0.436,
        bandwidth_share=0.196, step_us=doc.Percentiles(p10=60_400, p50=60_400, p90=60_400, p99=60_400),
        tokens_per_s=8476.8, kernels_per_step=1127.0, launches_per_step=1127.0, flops_known_share=0.999,
        bytes_known_share=0.998,
    )  # fmt: skip
    decode = phase(
        "decode", bound="host", steps=127, duration_us=2_592_700.0, gpu_busy_us=1_438_700.0,
        time_share=2_592_700 / 2_672_400, decode_tokens=127, output_tokens=127, sequences_mean=1.0, context_mean=576.0,
        flops=2.04e12, bytes=1.92e12, arithmetic_intensity=1.06, achieved_tflops=0.787, achieved_gbs=740.0,
        compute_share=0.0025, bandwidth_share=0.363,
        step_us=doc.Percentiles(p10=20_100, p50=20_360, p90=20_880, p99=29_100), period_us_mean=20_700.0,
        us_per_output_token=20_415.0, tokens_per_s=48.98, kernels_per_step=629.0, launches_per_step=629.0,
        flops_known_share=0.974, bytes_known_share=0.971,
    )  # fmt: skip
    names = "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>(Params)"
    kernels = [
        worked(names, "decode", 28_448, 941_000.0, 1.9e12, 1.72e12, category="gemm", role="mlp", tensor_core=True),
        worked("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn", "prefill", 225, 44_200.0, 8.1e12, 1.9e10,
               category="gemm", role="mlp", tensor_core=True),
        worked("void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<c10::BFloat16>>(int)",
               "decode", 16_256, 96_000.0, 0.0, 2.1e9, category="elementwise", tensor_core=False),
        worked("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)", "decode",
               4_064, 61_000.0, 1.2e9, 9.4e9, category="attention", tensor_core=True),
        worked("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps>>", "decode",
               8_255, 58_300.0, 6.7e7, 1.4e8, category="norm", tensor_core=False, bound="latency"),
        kernel("void some_vendor::opaque_kernel<7>(int, float*)", "decode", 127, 12_100.0, category="other"),
        kernel("(rest)", "decode", 23_000, 92_700.0, category="rest"),
        kernel("(rest)", "prefill", 900, 14_300.0, category="rest"),
    ]  # fmt: skip
    values: dict[str, Any] = {
        "run": doc.Run(workload="generation", engine="Hugging Face", engine_version="5.2.0", parallel={"tp": 1},
                       graph_mode="eager", labels={"team": "chat"}, sample_weight=None, model=LLAMA),
        "traces": [trace()], "devices": [A100],
        "quality": [
            doc.QualityNote(code="kernel_without_launch", severity="warning", count=12,
                            message="12 kernels at the start have no launch in the recording; they are in other."),
            doc.QualityNote(code="with_stack", severity="info", count=1,
                            message="Python stacks were recorded, which slows the host down."),
        ],
        "verdict": doc.Verdict(
            headline="Decode is bound by the host, which cannot feed the GPU fast enough: the GPU is idle 45 % of the "
            "time while memory bandwidth is used to 36 %. A step takes 20.4 ms, 2.8 \u00d7 its floor.",
            bound="host", confidence=0.86, ruled_out=["More compute does not help.", "Faster links do not help."]),
        "span": doc.Span(duration_us=2_672_400.0, gpu_busy_us=1_497_200.0, gpu_util=0.557,
                         tensor_core_useful_us=34_000.0, tensor_core_idle_us_min=2_601_200.0,
                         tensor_core_idle_us_max=2_638_400.0, sm_fill=0.71, bandwidth_share=0.357,
                         bytes_known_share=0.99),
        "profiling": doc.Profiling(step_us=20_360.0, unprofiled_step_us=18_200.0, overhead_share=0.119),
        "phases": [prefill, decode,
                   phase("other", duration_us=19_300.0, gpu_busy_us=0.0, time_share=19_300 / 2_672_400)],
        "request": doc.Request(input_tokens=512, output_tokens=128, ttft_us=60_400.0, tpot_us_p50=20_660.0,
                               tpot_us_p99=29_400.0, decode_step_flops_over_prefill_flops=1 / 512, source="steps"),
        "ledger": ledger(GPU_LEDGER), "steps": steps, "kernels": kernels,
        "decode_floor": doc.DecodeFloor(
            weight_bytes_held=1.606e10, weight_bytes_read=1.501e10, kv_bytes=7.55e7, floor_us=7_399.0,
            floor_achievable_us=8_874.0, measured_us=20_360.0, ratio=2.752, mbu=0.363, mbu_busy=0.655,
            us_per_1k_context_ideal=64.3, us_per_1k_context_measured=None, source="shapes", confidence=0.9,
            assumptions=["Weight bytes are counted from shapes.", "Each weight is read once."]),
        "prefill_ideal": doc.PrefillIdeal(flops=8.22e12, ideal_us=26_346.0, measured_us=60_400.0, ratio=2.29, mfu=0.436,
                                          source="shapes", confidence=0.9,
                                          assumptions=["Padding is counted."]),
        "memory": doc.Memory(
            total_bytes=85_170_000_000, weight_bytes=1.606e10, kv_bytes_per_token=131_072.0, kv_reserved_bytes=None,
            kv_used_bytes=7.55e7, free_bytes=6.6e10, max_sequences=874, source="shapes", confidence=0.8,
            assumptions=["Every sequence is as long as these."]),
        "sensitivity": doc.Sensitivity(compute_2x=0.002, bandwidth_2x=0.21, launches_free=0.445, weights_half=0.19,
                                       kv_half=0.001),
        "batching": BATCHING, "findings": FINDINGS,
        "cost": doc.Cost(price_per_gpu_hour=2.5, currency="USD", gpus=1, per_1m_input_tokens=0.0819,
                         per_1m_output_tokens=14.18, output_over_input=173.0, idle_share=0.44,
                         assumptions=["Every recorded GPU is priced."]),
    }  # fmt: skip
    return report(**{**values, **changes})


def graph_decode(**changes: Any) -> doc.Report:
    """A full-graph decode step of which the work of most kernels is not known."""
    device = A100.model_copy(update={
        "kind": "rocm", "gpu_id": "mi300x", "name": "AMD Instinct MI300X", "identified_by":
        "compute capability, SM count and memory", "span_us": 5_210.0, "busy_us": 5_199.0, "kernel_us": 5_199.0,
        "peaks_tflops": {"bf16": 1307.0, "fp32": 163.4, "fp8": 2615.0}, "achievable_tflops": {"bf16": 708.0},
        "bandwidth_gbs": 5300.0, "achievable_gbs": 4230.0, "memory_bytes": 206_000_000_000,
        "ridge_flop_per_byte": {"bf16": 247.0}})  # fmt: skip
    rows = {"decode": {"idle_unknown": 11.0, "no_tensor_core": 1_912.0, "tensor_core_unknown": 2_801.0,
                       "tensor_core_memory": 420.0, "tensor_core_other": 12.0, "tensor_core_useful": 54.0}}  # fmt: skip
    decode = phase(
        "decode", bound="memory", steps=1, duration_us=5_210.0, gpu_busy_us=5_199.0, time_share=1.0, decode_tokens=32,
        output_tokens=32, sequences_mean=32.0, context_mean=1721.0, flops=3.7e11, bytes=2.06e9,
        bandwidth_share=0.0746, compute_share=0.0103, achieved_gbs=395.0, achieved_tflops=13.5,
        step_us=doc.Percentiles(p10=5_210, p50=5_210, p90=5_210, p99=5_210), tokens_per_s=6142.0,
        kernels_per_step=421.0, launches_per_step=1.0, flops_known_share=0.11, bytes_known_share=0.11,
    )  # fmt: skip
    values: dict[str, Any] = {
        "run": doc.Run(workload="generation", engine="vLLM", engine_version=None, parallel={}, graph_mode="full",
                       labels={}, sample_weight=None, model=None),
        "traces": [trace("mi300x-vllm-decode-full-graph.json.gz", recorded_at=None)], "devices": [device],
        "quality": [doc.QualityNote(code="graph_without_capture", severity="warning", count=421,
                                    message="421 kernels were replayed from a graph, so their shapes are not known.")],
        "verdict": doc.Verdict(
            headline="Decode is bound by memory bandwidth. A step takes 5.21 ms.", bound="memory", confidence=0.55,
            ruled_out=["Fewer launches do not help."]),
        "span": doc.Span(duration_us=5_210.0, gpu_busy_us=5_199.0, gpu_util=0.998, tensor_core_useful_us=54.0,
                         tensor_core_idle_us_min=2_355.0, tensor_core_idle_us_max=5_156.0, sm_fill=0.9,
                         bandwidth_share=0.0746, bytes_known_share=0.11),
        "phases": [decode], "ledger": ledger(rows),
        "steps": [step(0, "decode", 0.0, 5_210.0, tokens=32, decode_tokens=32, sequences=32, context_sum=55_086,
                       evidence=["annotation execute_context_0(0)_generation_32(32)"])],
        "kernels": [
            worked("Cijk_Alik_Bljk_BBS_BH_MT16x32x512_MI16x16x1_SN_LDSB1", "decode", 1, 487.0, 3.7e11, 2.06e9,
                   category="gemm", role="lm_head", tensor_core=True, wasted_us=98.0),
            kernel("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "decode", 24, 1_402.0, category="moe",
                   tensor_core=True, dtype="bf16"),
            kernel("kernel_unified_attention_3d", "decode", 12, 611.0, category="attention", tensor_core=True),
            kernel("(rest)", "decode", 384, 2_699.0, category="rest"),
        ],
        "decode_floor": doc.DecodeFloor(
            weight_bytes_held=None, weight_bytes_read=None, kv_bytes=None, floor_us=None, floor_achievable_us=None,
            measured_us=5_210.0, ratio=None, mbu=None, mbu_busy=None, us_per_1k_context_ideal=None,
            us_per_1k_context_measured=None, source="none", confidence=0.2,
            assumptions=["Weight bytes are not known, so there is no floor."]),
    }  # fmt: skip
    return report(**{**values, **changes})


def cpu_sample(**changes: Any) -> doc.Report:
    """A tiny Llama on a CPU: work known, peaks not."""
    device = A100.model_copy(update={
        "kind": "cpu", "gpu_id": None, "name": None, "identified_by": None, "span_us": 96_000.0, "busy_us": 31_000.0,
        "kernel_us": 31_000.0, "peaks_tflops": {}, "achievable_tflops": {}, "bandwidth_gbs": None,
        "achievable_gbs": None, "memory_bytes": None, "ridge_flop_per_byte": {}, "has_tensor_cores": False,
    })  # fmt: skip
    rows = {"prefill": {"idle_unknown": 4_000.0, "no_tensor_core": 8_000.0},
            "decode": {"idle_unknown": 58_000.0, "no_tensor_core": 23_000.0},
            "other": {"idle_unknown": 3_000.0}}  # fmt: skip
    common: dict[str, Any] = {"flops_known_share": 1.0, "bytes_known_share": 1.0, "bound": "unknown"}
    prefill = phase("prefill", steps=1, duration_us=12_000.0, gpu_busy_us=8_000.0, time_share=0.125, prefill_tokens=24,
                    flops=2.9e9, bytes=8.2e7, arithmetic_intensity=35.4, achieved_tflops=0.24, achieved_gbs=6.8,
                    step_us=doc.Percentiles(p10=12_000, p50=12_000, p90=12_000, p99=12_000), tokens_per_s=2000.0,
                    **common)  # fmt: skip
    decode = phase("decode", steps=15, duration_us=81_000.0, gpu_busy_us=23_000.0, time_share=0.844, decode_tokens=15,
                   output_tokens=15, flops=1.8e9, bytes=1.1e9, arithmetic_intensity=1.6, achieved_tflops=0.022,
                   achieved_gbs=13.6, step_us=doc.Percentiles(p10=5_100, p50=5_400, p90=5_800, p99=6_100),
                   tokens_per_s=185.2, **common)  # fmt: skip
    values: dict[str, Any] = {
        "run": doc.Run(workload="generation", engine="Hugging Face", engine_version=None, parallel={},
                       graph_mode="eager", labels={}, sample_weight=None, model=None),
        "traces": [trace("tiny-llama-cpu.json.gz", rank=None, world_size=None)], "devices": [device],
        "verdict": doc.Verdict(headline="What binds decode cannot be told from this trace. A step takes 5.40 ms.",
                               bound="unknown", confidence=None, ruled_out=[]),
        "span": doc.Span(duration_us=96_000.0, gpu_busy_us=31_000.0, gpu_util=0.323, tensor_core_useful_us=None,
                         tensor_core_idle_us_min=None, tensor_core_idle_us_max=None, sm_fill=None),
        "phases": [prefill, decode, phase("other", duration_us=3_000.0, gpu_busy_us=0.0, time_share=0.031)],
        "ledger": ledger(rows),
        "steps": [step(0, "prefill", 0.0, 12_000.0, tokens=24)]
        + [step(i, "decode", 12_400.0 + 5_500 * (i - 1), 5_300.0, tokens=1) for i in range(1, 16)],
        "kernels": [worked("aten::mm", "decode", 330, 15_000.0, 1.6e9, 9e8, category="gemm", wasted_us=None),
                    worked("aten::scaled_dot_product_attention", "prefill", 4, 900.0, 3e7, 4e5, category="attention",
                           wasted_us=None)],
    }  # fmt: skip
    return report(**{**values, **changes})


HOSTILE = (
    "</script><script>document.title='PWNED'</script>",
    '"><img src=x onerror="document.title=\'PWNED\'">',
    "<built-in function len>",
    "<!--<script>",
    "nul\0 esc\x1b[31mred\x1b[0m bell\x07",
    "right\u202eto left\u2066 isolate",
    "line\u2028separator\u2029paragraph\nnewline\ttab",
    "=cmd|'/c calc'!A1 | pipe `tick` @someone [link](http://evil.example) ![i](http://evil.example/i.png)",
    "lone surrogate \ud800 and {{ 7*7 }} {% raw %} &amp;",
    "k" * 65_536,
)


def hostile() -> doc.Report:
    """Every text field holds something a page, a Markdown file or a terminal could choke on."""
    names = list(HOSTILE)
    kernels = [worked(name, "decode", 3, 100.0 + i, 1e9, 1e9, category=name[:60], role=name[:60], dtype=name[:60])
               for i, name in enumerate(names)]  # fmt: skip
    bad = names[0]
    base = gpu_generation()
    return gpu_generation(
        tool=doc.Tool(name=bad, version=bad),
        options=doc.Options(gpu=bad, model=names[1], peaks_tflops={names[1]: 1.0}, currency=bad),
        run=doc.Run(workload="generation", engine=bad, engine_version=names[1], parallel={bad: 1}, graph_mode=names[4],
                    labels={bad: names[1], names[5]: names[6]}, sample_weight=None,
                    model=LLAMA.model_copy(update={"name": names[7], "source": bad, "dtype": bad})),
        traces=[trace(name, format=bad, producer={name[:50]: name[:99]}, recorded_at=bad) for name in names],
        devices=[A100.model_copy(update={"name": names[8], "gpu_id": bad, "identified_by": bad,
                                         "peaks_tflops": {"bf16": 312.0, bad: 1.0}})],
        quality=[doc.QualityNote(code=name[:50], severity="warning", message=name[:500], count=1) for name in names],
        verdict=doc.Verdict(headline=names[7] + bad, bound="memory", confidence=0.5, ruled_out=names[:9]),
        steps=[step(i, "decode", 100.0 * i, 90.0, evidence=[name[:500]]) for i, name in enumerate(names)],
        kernels=kernels,
        ledger=[*base.ledger, doc.LedgerRow(rank=0, device=0, phase="other", group=bad, bucket=names[1], us=5.0)],
        decode_floor=base.decode_floor
        and base.decode_floor.model_copy(update={"source": bad, "assumptions": names[:9]}),
        service=doc.Service(running=3.0, waiting=None, kv_used_share=0.4, preemptions_per_s=0.0, source=bad),
        cost=base.cost and base.cost.model_copy(update={"currency": bad}),
        memory=base.memory and base.memory.model_copy(update={"source": bad, "assumptions": names[:9]}),
        findings=[
            finding(bad, names[1], "found", phase="decode", saving_us_per_step=12.0, saving_share=0.1, confidence=0.5,
                    evidence=names[:9], action=names[7], assumptions=names[:9], predicted_step_us=1.0,
                    kernels=[FindingKernel(name=name, us_per_step=1.0, count_per_step=1.0) for name in names]),
            *(finding(f"r{at}", name[:500], "passed", reason=name[:500]) for at, name in enumerate(names)),
        ],
        closeups=[closeup("decode", names)],
    )  # fmt: skip


def simulated() -> doc.Report:
    """A report of which the recording says that no GPU ran it."""
    return gpu_generation(traces=[trace(collector={"schema": 1, "simulated": True})])


def almost_empty() -> doc.Report:
    """Nothing is known but that something ran."""
    return report()


def maximal() -> doc.Report:
    """As large as a report may get: 2000 steps and 500 kernels, with long names."""
    steps = [
        step(i, ("prefill", "decode", "mixed")[i % 3 if i % 10 == 0 else 1], 1_234.567 * i, 1_100.123 + i % 13,
             period_us=1_234.567, tokens=i % 512, prefill_tokens=i % 256, decode_tokens=i % 256, sequences=i % 256,
             prefill_sequences=i % 8, decode_sequences=i % 248, context_sum=i * 1021, query_context_sum=i * 99_991,
             padded_tokens=i % 16, evidence=["annotation", "lm_head rows 256 of 8192"])
        for i in range(2000)
    ]  # fmt: skip
    name = "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<{}>>>"
    kernels = [
        worked(name.format("cute::tuple<cute::C<128>, cute::C<176>>, " * (i % 5) + str(i)),
               ("prefill", "decode", "mixed", "other")[i % 4], 1000 + i, 90_000.123 / (i + 1), 1.1e12 / (i + 1),
               1.7e10 / (i % 50 + 1), category="attention", role="attention", tensor_core=True)
        for i in range(500)
    ]  # fmt: skip
    base = gpu_generation()
    phases = [*base.phases, phase("mixed", bound="mixed", steps=70, duration_us=1e5, gpu_busy_us=9e4, time_share=0.04)]
    devices = [A100.model_copy(update={"rank": rank, "span_us": A100.span_us - rank}) for rank in range(8)]
    return gpu_generation(
        steps=steps, steps_omitted=48_211, kernels=kernels, phases=phases, devices=devices,
        traces=[trace(f"dp0_pp0_tp{rank}_rank{rank}.1730509495.pt.trace.json.gz", rank=rank) for rank in range(8)],
    )  # fmt: skip


ALL = {
    "gpu": gpu_generation, "graph": graph_decode, "cpu": cpu_sample, "hostile": hostile, "empty": almost_empty,
    "maximal": maximal, "simulated": simulated,
}  # fmt: skip
