"""Scenarios with a name: one for each thing a report should find, small enough to write in seconds."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from traceanalyzer.errors import InputError
from traceanalyzer.simulate import captured, reference
from traceanalyzer.simulate.scenario import Scenario

PRESETS: Mapping[str, Scenario] = MappingProxyType({
    "alone": reference.ALONE,
    "eight": reference.EIGHT,
    "single": Scenario(output=64),
    "batch": Scenario(batch=32, output=64),
    "graph": Scenario(batch=32, output=128, mode="graph", gpu="h100-sxm-80gb"),
    "padded": Scenario(batch=27, output=32, mode="graph", capture_sizes=captured.USUAL, gpu="h100-sxm-80gb"),
    "piecewise": Scenario(
        batch=12, prompt=700, output=24, chunk=256, arrivals_every=3, mode="full-and-piecewise",
        capture_sizes=captured.USUAL, gpu="h100-sxm-80gb",
    ),
    "speculative": Scenario(batch=4, output=48, speculate=3, gpu="h100-sxm-80gb"),
    "prefix": Scenario(batch=8, prompt=2048, prefix=1920, output=16),
    "in-turns": Scenario(batch=8, output=16, together=False),
    "chunked": Scenario(batch=16, prompt=2048, output=32, chunk=512, arrivals_every=4),
    "unfused": Scenario(output=32, fused=False, kv_cache="cat", attention="math", sampler="full"),
    "long-context": Scenario(prompt=32_000, output=16, split_kv=False),
    "fp8": Scenario(batch=32, output=32, weights="fp8", kv="fp8", gpu="h100-sxm-80gb"),
    "int4": Scenario(output=32, weights="int4"),
    "experts": Scenario(model="qwen3-30b-a3b", batch=8, output=32, gpu="h100-sxm-80gb"),
    "tensor-parallel": Scenario(model="llama-3.1-70b", batch=8, output=16, ranks=4),
})  # fmt: skip


def preset(name: str) -> Scenario:
    """The scenario of this name.

    Raises:
        InputError: there is none; the hint names near matches, or all.
    """
    found = PRESETS.get(name)
    if found is None:
        near = difflib.get_close_matches(name, PRESETS, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(PRESETS)}"
        raise InputError(f"unknown preset {name[:40]!r}", hint)
    return found
