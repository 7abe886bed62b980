"""Bounds on a scenario and its choices, checked before anything is written, so that no file grows without end.

What could be wrong: what a model and a card cannot run together is refused elsewhere (`checks`).
"""

from __future__ import annotations

from dataclasses import fields
from math import isfinite

from traceanalyzer.catalog import gpus, models
from traceanalyzer.catalog.gpus import Gpu
from traceanalyzer.catalog.models import ModelConfig
from traceanalyzer.errors import InputError
from traceanalyzer.simulate import captured, plants, speculation
from traceanalyzer.simulate.scenario import Costs, Scenario

_RANGES = {
    "batch": (1, 4096),
    "prompt": (1, 1 << 20),
    "output": (1, 1 << 17),
    "ranks": (1, 64),
    "chunk": (1, 1 << 20),
    "arrivals_every": (0, 1 << 20),
    "seed": (0, (1 << 63) - 1),
    "prefix": (0, 1 << 20),
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "mode": ("eager", "graph", "piecewise", "full-and-piecewise"),
    "dtype": ("bf16", "fp16", "fp32"),
    "weights": ("same", "fp8", "int8", "int4", "fp4"),
    "kv": ("same", "fp8"),
    "kv_cache": ("static", "cat"),
    "attention": ("flash", "math"),
    "sampler": ("greedy", "full"),
}
_MOST_TOKENS = 1 << 24
"""Tokens that all sequences of a run hold together."""
_MOST_COST = 1e12


def check(scenario: Scenario) -> tuple[Gpu, ModelConfig]:
    """The scenario's GPU and model.

    Raises:
        UnknownGPUError: the catalogue does not hold the GPU; the hint names near matches.
        InputError: nor the model; a count or a cost is out of range, or a choice unknown.
    """
    for name, (least, most) in _RANGES.items():
        value = getattr(scenario, name)
        if value is None and name == "chunk":
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise InputError(f"{name} is {str(value)[:40]}, and must be a whole number from {least} to {most}")
    for name, choices in _CHOICES.items():
        if getattr(scenario, name) not in choices:
            raise InputError(f"{name} is {str(getattr(scenario, name))[:40]!r}", f"choose from {', '.join(choices)}")
    if scenario.batch * (scenario.prompt + scenario.output) > _MOST_TOKENS:
        raise InputError(f"batch x (prompt + output) is more than {_MOST_TOKENS} tokens", "make one of them smaller")
    _check_costs(scenario.costs)
    captured.check(scenario)
    plants.check(scenario)
    speculation.check(scenario)
    gpu, model = gpus.find(scenario.gpu), models.find(scenario.model)
    if gpu.vendor != "nvidia":
        raise InputError(f"{gpu.id} is no NVIDIA GPU, and only CUDA traces are simulated")
    return gpu, model


def _check_costs(costs: Costs) -> None:
    for one in fields(costs):
        value = getattr(costs, one.name)
        share = one.name.startswith(("matrix_", "attention_", "vector_"))
        least, most = (1e-6, 1.0) if share else (1e-6, _MOST_COST) if one.name == "link_gbs" else (0, _MOST_COST)
        if not isfinite(value) or not least <= value <= most:
            raise InputError(f"costs.{one.name} is {value}, and must be from {least:g} to {most:g}")
