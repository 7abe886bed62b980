"""What the trace as a whole is: training or inference, capture or run, which engine, graphs or eager, how many layers.

Training is recognised by what only training runs: the autograd engine, gradient accumulation, optimizer steps, backward
kernels. A capture is recognised by its label or by the capture calls, with launches that no kernel answers: nothing of
it ran. Engines are recognised by their labels, their op namespaces or their version in the metadata.

What could be wrong with it: a forward pass recorded with gradients on has no backward work and counts as inference.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.steps.model import NOT_EXECUTED, Bools, Ints, Workload
from traceanalyzer.analysis.steps.submission import launch_names
from traceanalyzer.trace.collector import section, word
from traceanalyzer.trace.tables import KERNEL, Trace

_TRAINING_OPS = re.compile(
    r"^autograd::engine::|^torch::autograd::AccumulateGrad|^Optimizer\.step#|^\w+Backward\d*$|^aten::\w+_backward$"
)
_TRAINING_LABELS = re.compile(r"^Optimizer\.step#")
_TRAINING_KERNELS = re.compile(
    r"flash_bwd|FlashAttnBwd|fmha_cutlassB|layer_norm_grad_input|GammaBetaBackward|softmax\w{0,40}backward|ln_bwd"
    r"|threshold_backward|(?:sigmoid|tanh|gelu|silu)_backward|nll_loss_backward|multi_tensor_apply_kernel<.*(?:Adam|Lamb)"
)
_MOST_CHARACTERS = 2000
"""How much of a name is read."""
_MIN_TRAINING_KERNELS = 2
"""Distinct backward or optimizer kernels before their names alone mean training."""
_CAPTURE_CALL = re.compile(r"StreamBeginCapture")
_KERNEL_LAUNCH = re.compile(r"Launch(?:Cooperative)?Kernel")
_ANSWERED = 0.2
"""Below this share of launches with a kernel, a trace with capture calls is a capture."""
_NAMESPACES = (
    ("SGLang", re.compile(r"^(?:sglang|sgl_kernel)::")),
    ("vLLM", re.compile(r"^(?:vllm|_C|_C_cache_ops|_vllm_fa[23]_C|_moe_C)::")),
    ("TensorRT-LLM", re.compile(r"^(?:trtllm|tensorrt_llm)::")),
    ("LMDeploy", re.compile(r"^lmdeploy::")),
)
_PRODUCERS = {"vllm": "vLLM", "sglang": "SGLang", "tensorrt_llm": "TensorRT-LLM", "atom": "ATOM",
              "transformers": "Transformers"}  # fmt: skip


def is_training(trace: Trace) -> bool:
    """Whether anything was recorded that only training runs."""
    if any(_TRAINING_OPS.search(name) for name in _names(trace, trace.ops)):
        return True
    if any(_TRAINING_LABELS.search(name) for name in _names(trace, trace.annotations)):
        return True
    kernels = [name for name in _names(trace, trace.kernels) if _TRAINING_KERNELS.search(name)]
    return len(kernels) >= _MIN_TRAINING_KERNELS


def is_capture(trace: Trace, activity: Activity) -> bool:
    """Whether the trace records graph capture and little else: capture calls, and launches without kernels."""
    if activity.on_cpu or not launch_names(trace, _CAPTURE_CALL).any():
        return False
    launches = int(launch_names(trace, _KERNEL_LAUNCH).sum())
    kernels = int((activity.table["kind"] == KERNEL).sum())
    return kernels < _ANSWERED * launches


def engine(trace: Trace, labels: list[str | None]) -> str | None:
    """The engine that ran, by its collector, its step labels, its ops' namespaces, or versions; None where unsaid.

    Args:
        trace: the trace.
        labels: the engine of each step label found.
    """
    collected = word(section(trace.metadata.collector, "window"), "engine")
    if collected is not None:
        return _PRODUCERS.get(collected.lower(), collected)
    said = [label for label in labels if label]
    if said:
        return max(set(said), key=said.count)
    names = _names(trace, trace.ops)
    for name, namespace in _NAMESPACES:
        if any(namespace.search(op) for op in names):
            return name
    producers = trace.metadata.producer or {}
    return next((name for key, name in _PRODUCERS.items() if key in producers), None)


def graph_mode(graph: Bools, launch: Ints, step: Ints, phase: list[str]) -> str | None:
    """How steps are launched: `full`, `piecewise`, `eager`, or `mixed` where the decode steps differ.

    Args:
        graph: which activity rows a graph launch started.
        launch, step: the launch and the step of each activity row.
        phase: the phase of each step; decode steps are asked where there are any.
    """
    asked = [i for i, name in enumerate(phase) if name == "decode"] or [
        i for i, name in enumerate(phase) if name not in NOT_EXECUTED
    ]
    if not asked:
        return None
    launches = pd.Series(launch[graph]).groupby(step[graph]).nunique().reindex(asked).fillna(0)
    modes = {"eager" if n == 0 else "full" if n == 1 else "piecewise" for n in launches.tolist()}
    return modes.pop() if len(modes) == 1 else "mixed"


def workload(phases: list[str], chooses: Bools, whole: Bools) -> Workload:
    """What the steps amount to: generation chooses tokens; prefill-only runs whole passes and never does.

    Args:
        phases: of each step.
        chooses: which steps compute logits for fewer tokens than they run, or sample after them.
        whole: which steps are a whole forward pass, from its input on.
    """
    if any(phase in ("decode", "mixed") for phase in phases):
        return "generation"
    prefill = np.array([phase == "prefill" for phase in phases], np.bool_)
    if not prefill.any():
        return "unknown"
    if (chooses & prefill).any():
        return "generation"
    return "prefill_only" if (whole & prefill).any() else "unknown"


def layers(count: Ints, complete: Bools, phases: list[str]) -> int | None:
    """The number of layers most complete steps run; None where no step shows any."""
    seen = np.array([phase not in ("draft", "encoder", *NOT_EXECUTED) for phase in phases], np.bool_) & (count > 0)
    chosen = count[seen & complete] if (seen & complete).any() else count[seen]
    if not len(chosen):
        return None
    values, times = np.unique(chosen, return_counts=True)
    return int(values[np.argmax(times)])


def _names(trace: Trace, table: pd.DataFrame) -> list[str]:
    return [trace.text(code)[:_MOST_CHARACTERS] for code in np.unique(table["name"].to_numpy()).tolist()]
