"""The names of buckets, groups, phases, bounds and sources, and what each bucket of the ledger holds."""

from __future__ import annotations

from collections.abc import Mapping

GROUPS: Mapping[str, str] = {
    "idle": "Idle",
    "moving": "Moving data",
    "busy_no_tensor_core": "Busy without tensor cores",
    "tensor_core_waiting": "Tensor cores waiting",
    "tensor_core_useful": "Tensor cores useful",
}
"""The five groups of the ledger, in the order they are drawn."""

BUCKETS: Mapping[str, tuple[str, str]] = {
    "idle_launch": (
        "waiting for the next launch",
        "The host was late: when the previous kernel ended, the call that launches the next one had not begun, or was "
        "still running.",
    ),
    "idle_graph_launch": ("waiting for a graph launch", "The gap before a replayed graph starts."),
    "idle_sync": (
        "after a synchronisation",
        "The host waited for the GPU, then had to start over with an empty queue.",
    ),
    "idle_host": ("host work", "The host was busy with something else: scheduler, Python, sampling."),
    "idle_alloc": ("memory allocation", "The host was allocating or freeing device memory."),
    "idle_latency": ("kernel to kernel", "Work was queued; this is the GPU's own gap between two kernels."),
    "idle_wait_rank": ("waiting for another rank", "A collective waited for a rank that came late."),
    "idle_no_work": ("no request to serve", "The server had nothing to do; this is not waste."),
    "idle_artefact": (
        "recording was cut",
        "The recorded window has a hole here, or the profiler held the host up; this is not idleness.",
    ),
    "idle_unknown": ("cause not known", "Nothing ran and the trace does not say why."),
    "communication": ("communication", "Collectives and point-to-point transfers not hidden by computing."),
    "memcpy": ("copies", "Copies and fills between host and device, or within it."),
    "no_tensor_core": (
        "kernels without tensor cores",
        "Norms, activations, softmax, sampling, and matrix products that ran on the vector units.",
    ),
    "tensor_core_memory": (
        "waiting for memory",
        "Tensor-core kernels, the time their bytes need beyond the time their FLOPs need.",
    ),
    "tensor_core_other": (
        "other losses",
        "Tensor-core kernels, the time neither their FLOPs nor their bytes explain: tiles, waves, latency, clocks.",
    ),
    "tensor_core_unknown": (
        "not known",
        "Tensor-core kernels whose FLOPs or bytes are not known: neither counted as useful nor as lost.",
    ),
    "tensor_core_useful": (
        "useful",
        "The time the counted FLOPs take at the peak of the sheet.",
    ),
}
"""The seventeen buckets: label and meaning, in the order they are drawn; `analysis.ledger.GROUPS` has their groups."""

PHASES: Mapping[str, str] = {
    "prefill": "Prefill",
    "decode": "Decode",
    "mixed": "Mixed",
    "draft": "Draft model",
    "encoder": "Encoder",
    "capture": "Graph capture",
    "warmup": "Warm-up",
    "other": "Other",
}

BOUNDS: Mapping[str, str] = {
    "memory": "memory",
    "compute": "compute",
    "host": "host",
    "communication": "communication",
    "mixed": "no single bound",
    "latency": "latency",
    "unknown": "unknown",
}

SOURCES: Mapping[str, str] = {
    "shapes": "tensor shapes",
    "siblings": "the same kernel elsewhere",
    "graph-match": "graph matched to its capture",
    "grid": "launch grid",
    "model-config": "model configuration",
    "annotation": "annotations",
    "steps": "measured steps",
    "trace": "the trace",
    "user": "the given model",
    "catalogue": "the public config of this shape",
    "none": "none",
}

CAPS: Mapping[str, str] = {
    "ridge": "matrix products become bound by compute",
    "kv_memory": "the KV cache fills the memory",
    "unknown": "",
}
"""What ends the growth of a batch, to be read after "where"; nothing where neither limit is known."""

WORKLOADS: Mapping[str, str] = {
    "generation": "generation",
    "prefill_only": "prefill only",
    "training": "training",
    "capture": "graph capture",
    "unknown": "not recognised",
}

GRAPH_MODES: Mapping[str, str] = {
    "eager": "eager",
    "full": "full graph",
    "piecewise": "piecewise graphs",
    "mixed": "graphs and eager",
}

SEVERITIES: Mapping[str, str] = {"info": "note", "warning": "warning", "error": "error"}


def group_label(group: str) -> str:
    """The name of a group of the ledger."""
    return GROUPS.get(group, _spelt(group))


def bucket_label(bucket: str) -> str:
    """The name of a bucket of the ledger, to be read under its group's name."""
    return BUCKETS[bucket][0] if bucket in BUCKETS else _spelt(bucket)


def bucket_meaning(bucket: str) -> str:
    """One sentence on what a bucket holds; empty for a bucket the catalogue does not know."""
    return BUCKETS[bucket][1] if bucket in BUCKETS else ""


def phase_label(phase: str) -> str:
    """The name of a phase, capitalised as at the start of a sentence."""
    return PHASES.get(phase, _spelt(phase))


def bound_label(bound: str) -> str:
    """What limits a phase or a kernel."""
    return BOUNDS.get(bound, _spelt(bound))


def source_label(source: str) -> str:
    """Where a figure comes from."""
    return SOURCES.get(source, _spelt(source))


def cap_reason(code: str) -> str:
    """What ends the growth of a batch."""
    return CAPS.get(code, _spelt(code))


def _spelt(code: str) -> str:
    return code.replace("_", " ")
