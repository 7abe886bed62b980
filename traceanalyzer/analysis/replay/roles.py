"""What a layer's products are, by how many there are before attention, after it and in the MLP.

Engines merge projections in a few ways only: queries, keys and values in one product or in three, gate and up in one or
two. Latent attention compresses first, and where it decodes it takes its queries into the latent space and its output
back (absorbed). Experts are two grouped products, three where gate and up stand apart, or one that does everything;
shared experts are products of their own, before or after the routed ones.

What could be wrong: a way of merging that is not listed here leaves a step unanswered; two ways with as many products
(the order of shared gate and router) are told apart by position alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from traceanalyzer.analysis.replay.sequence import EXPERTS, PRODUCT
from traceanalyzer.catalog.models import ModelConfig

Roles = tuple[str, ...]
EXPERT_ROLES = frozenset({"experts", "expert_gate", "expert_up", "expert_gate_up", "expert_down"})


def kind(role: str) -> str:
    """Which part a kernel of this role plays."""
    return EXPERTS if role in EXPERT_ROLES else PRODUCT


def attentions(config: ModelConfig) -> Iterator[tuple[Roles, Roles]]:
    """The products before a layer's attention and after it, in the ways that are known."""
    if config.mla is None:
        yield ("qkv",), ("o",)
        yield ("q", "k", "v"), ("o",)
        yield ("q", "kv"), ("o",)
        return
    queries: tuple[Roles, ...] = (("q", "kv_a"),)
    if config.mla.q_lora_rank is not None:
        queries = (("q_kv_a", "q_b"), ("q_a", "q_b", "kv_a"))
    for first in queries:
        yield (*first, "absorb"), ("restore", "o")
        yield (*first, "kv_b"), ("o",)


def mlps(config: ModelConfig, layer: int) -> Iterator[Roles]:
    """The products of a layer's MLP, in the ways that are known."""
    moe = config.moe
    gates: tuple[Roles, ...] = (("gate_up",), ("gate", "up")) if config.mlp_gated else (("up",),)
    if moe is None or not config.has_experts(layer):
        yield from ((*gate, "down") for gate in gates)
        return
    routed: tuple[Roles, ...] = (("expert_gate_up", "expert_down"), ("experts",))
    routed = (*routed, ("expert_gate", "expert_up", "expert_down")) if config.mlp_gated else routed
    if not moe.shared_experts:
        yield from (("router", *chosen) for chosen in routed)
        return
    for gate in gates:
        shared = (*(f"shared_{role}" for role in gate), "shared_down")
        for chosen in routed:
            yield ("router", *chosen, *shared)
            yield (*shared, "router", *chosen)
            yield ("router", *shared, *chosen)
