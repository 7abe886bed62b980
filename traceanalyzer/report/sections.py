"""The sections of `document.Report`, one model each. Units are in the field names; None means unknown."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Bound = Literal["memory", "compute", "host", "communication", "mixed", "unknown"]
KernelBound = Literal["memory", "compute", "latency", "unknown"]
PhaseName = Literal["prefill", "decode", "mixed", "draft", "encoder", "capture", "warmup", "other"]
Workload = Literal["generation", "prefill_only", "training", "capture", "unknown"]
DeviceKind = Literal["cuda", "rocm", "cpu"]
Share = Annotated[float, Field(ge=0.0)]


class Section(BaseModel):
    """What all sections have in common: frozen, no unknown fields, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Tool(Section):
    """What made the report."""

    name: str
    version: str


class Options(Section):
    """What the user asked for; file names are base names, so that the same input gives the same bytes."""

    gpu: str | None = None
    model: str | None = None
    captures: list[str] = []
    price_per_gpu_hour: float | None = None
    currency: str | None = None
    peaks_tflops: dict[str, float] = {}
    bandwidth_gbs: float | None = None


class LatentAttention(Section):
    """Multi-head latent attention: what is kept of a token and layer are `kv_lora_rank` + `qk_rope` numbers."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope: int
    qk_rope: int
    v_head_dim: int


class StoredBits(Section):
    """Bits that a weight takes where it is stored, scales included, by what it belongs to."""

    attention: float
    mlp: float
    experts: float
    lm_head: float
    embedding: float


class ModelInfo(Section):
    """The model that ran, as far as it is known, whole; of each field `sources` says where it comes from."""

    name: str | None = None
    fingerprint: str | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn: int | None = None
    vocab: int | None = None
    experts: int | None = None
    experts_per_token: int | None = None
    parameters: int | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    quantization: str | None = None
    source: str | None = None
    architecture: str | None = None
    gated: bool | None = None
    expert_ffn: int | None = None
    shared_experts: int | None = None
    first_dense_layers: int | None = None
    sliding_window: int | None = None  # keys that a query sees at most, in layers that have a window
    full_attention_every: int | None = None  # every so many layers one has none; null where all have one
    mla: LatentAttention | None = None
    tied_embeddings: bool | None = None
    weight_bits: StoredBits | None = None
    sources: dict[str, str] = {}


class Run(Section):
    """What ran."""

    workload: Workload
    engine: str | None
    engine_version: str | None
    parallel: dict[str, int]
    graph_mode: str | None  # "eager", "full", "piecewise", "mixed"
    labels: dict[str, str]
    sample_weight: float | None
    model: ModelInfo | None


class TraceInfo(Section):
    """One input file."""

    name: str
    sha256: str
    format: str
    bytes: int
    events: int
    kernels: int
    rank: int | None
    world_size: int | None
    recorded_at: str | None  # ISO 8601, UTC
    host_hash: str | None
    producer: dict[str, str]
    collector: dict[str, object] | None


class Device(Section):
    """One device of one rank, with the peaks its figures are measured against."""

    rank: int | None
    device: int
    kind: DeviceKind
    gpu_id: str | None
    name: str | None
    identified_by: str | None
    span_us: float
    busy_us: float
    kernel_us: float
    peaks_tflops: dict[str, float]
    achievable_tflops: dict[str, float]
    bandwidth_gbs: float | None
    achievable_gbs: float | None
    memory_bytes: int | None
    ridge_flop_per_byte: dict[str, float]
    has_tensor_cores: bool | None
    vector_peaks_tflops: dict[str, float] = {}


class QualityNote(Section):
    """One thing lost, repaired or inconsistent in the data."""

    code: str
    severity: Literal["info", "warning", "error"]
    message: str
    count: int


class Verdict(Section):
    """The answer in a sentence, and what does not help."""

    headline: str
    bound: Bound
    confidence: float | None
    ruled_out: list[str]


class Span(Section):
    """The analysed span of the slowest device. Unknown tensor-core time is a band: idle is a range."""

    duration_us: float
    gpu_busy_us: float
    gpu_util: float | None
    tensor_core_useful_us: float | None
    tensor_core_idle_us_min: float | None
    tensor_core_idle_us_max: float | None
    sm_fill: float | None
    bandwidth_share: float | None = None  # a lower bound while bytes_known_share is below 1
    bytes_known_share: float | None = None


class Profiling(Section):
    """What the recording itself cost."""

    step_us: float | None
    unprofiled_step_us: float | None
    overhead_share: float | None


class Service(Section):
    """The serving engine's own metrics."""

    running: float | None
    waiting: float | None
    kv_used_share: float | None
    preemptions_per_s: float | None
    source: str


class Percentiles(Section):
    """Percentiles over complete steps, in microseconds."""

    p10: float
    p50: float
    p90: float
    p99: float


class Phase(Section):
    """One phase on one device. `duration_us` is the sum of that phase's ledger."""

    rank: int | None
    device: int
    phase: PhaseName
    bound: Bound
    steps: int
    duration_us: float
    gpu_busy_us: float
    time_share: Share
    prefill_tokens: int | None
    decode_tokens: int | None
    output_tokens: int | None
    padded_tokens: int | None
    sequences_mean: float | None
    context_mean: float | None
    flops: float | None
    bytes: float | None
    arithmetic_intensity: float | None
    achieved_tflops: float | None
    achieved_gbs: float | None
    compute_share: float | None
    bandwidth_share: float | None
    step_us: Percentiles | None
    period_us_mean: float | None
    us_per_output_token: float | None
    tokens_per_s: float | None
    kernels_per_step: float | None
    launches_per_step: float | None
    flops_known_share: float | None
    bytes_known_share: float | None
    prefill_time_share: Share | None = None  # of mixed steps: the part of their time that is the prompts'
    prefill_time_confidence: Share | None = None  # how sure that part is


class Request(Section):
    """What one request sees."""

    input_tokens: int | None
    output_tokens: int | None
    ttft_us: float | None
    tpot_us_p50: float | None
    tpot_us_p99: float | None
    decode_step_flops_over_prefill_flops: float | None
    source: str
    requests: int | None = None  # sequences whose prompts were read


class LedgerRow(Section):
    """Time of one bucket in one phase of one device. Sums to `Device.span_us` per device."""

    rank: int | None
    device: int
    phase: PhaseName
    group: str
    bucket: str
    us: float


class Step(Section):
    """One forward pass."""

    index: int
    rank: int | None
    device: int
    phase: PhaseName
    confidence: float
    evidence: list[str]
    start_us: float
    duration_us: float
    period_us: float | None
    gpu_busy_us: float
    tokens: int | None
    prefill_tokens: int | None
    decode_tokens: int | None
    sequences: int | None
    prefill_sequences: int | None
    decode_sequences: int | None
    context_sum: int | None
    query_context_sum: int | None
    padded_tokens: int | None
    parent_step: int | None
    complete: bool


class Kernel(Section):
    """One kernel name in one phase on one device, or the "(rest)" row of a phase."""

    name: str
    category: str
    role: str | None
    tensor_core: bool | None
    dtype: str | None
    rank: int | None
    device: int
    phase: PhaseName
    count: int
    total_us: float
    flops: float | None
    bytes: float | None
    arithmetic_intensity: float | None
    achieved_tflops: float | None
    achieved_gbs: float | None
    grid_fill: float | None
    bound: KernelBound
    work_source: str
    wasted_us: float | None


class DecodeFloor(Section):
    """The least time a decode step can take: its bytes over bandwidth, or its math where that is longer.

    `weight_bytes_read_min` and `_max` are the range where a mixture's experts are chosen per token.
    """

    weight_bytes_held: float | None
    weight_bytes_read: float | None
    kv_bytes: float | None
    floor_us: float | None
    floor_achievable_us: float | None
    measured_us: float
    ratio: float | None
    mbu: float | None
    mbu_busy: float | None
    us_per_1k_context_ideal: float | None
    us_per_1k_context_measured: float | None
    source: str
    confidence: float
    assumptions: list[str]
    floor_bytes_us: float | None = None
    floor_compute_us: float | None = None
    weight_bytes_read_min: float | None = None
    weight_bytes_read_max: float | None = None


class PrefillIdeal(Section):
    """The least time the measured prefill can take: its FLOPs over the peak."""

    flops: float | None
    ideal_us: float | None
    measured_us: float
    ratio: float | None
    mfu: float | None
    source: str
    confidence: float
    assumptions: list[str]


class Cost(Section):
    """What a token costs, input and output apart."""

    price_per_gpu_hour: float
    currency: str
    gpus: int
    per_1m_input_tokens: float | None
    per_1m_output_tokens: float | None
    output_over_input: float | None
    idle_share: float | None
    assumptions: list[str]


class FindingKernel(Section):
    """A kernel that a finding's change touches, with its mean time and launches in one step of the phase."""

    name: str
    us_per_step: float
    count_per_step: float


class Finding(Section):
    """One rule's answer.

    `saving_us_per_step` is the time saved per step at unchanged output, quantised; for a larger batch the time saved on
    the tokens of one of today's steps. `saving_share` is of the step, `saving_share_of_span` of the analysed span.
    `reason` says why a rule passed, does not apply, or could not be judged.
    """

    id: str
    title: str
    status: Literal["found", "passed", "not_applicable", "error"]
    phase: PhaseName | None
    saving_us_per_step: float | None
    saving_share: float | None
    confidence: float | None
    evidence: list[str]
    action: str | None
    saving_share_of_span: float | None = None
    predicted_step_us: float | None = None
    predicted_tokens_per_s: float | None = None
    reason: str | None = None
    kernels: list[FindingKernel] = []
    kernels_omitted: int = 0
    assumptions: list[str] = []
