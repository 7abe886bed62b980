"""The work of products by their role: projections, dense MLPs, routed experts, the output layer.

The figures are those of `analysis.work` for recorded shapes: 2 m n k per product, each operand once, weights at their
stored bits; experts by their assignments, with the weights of those that an even draw makes active between the fewest
and the most. Sizes are those of one tensor parallel rank.

What could be wrong: quantised activations are taken for 16-bit ones where the kernel's name does not say otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from traceanalyzer.analysis.model.sizes import active_experts
from traceanalyzer.analysis.replay.roles import EXPERT_ROLES
from traceanalyzer.analysis.replay.sizes import Facts, Sizes
from traceanalyzer.analysis.work.opwork import OpWork

SMALL: Mapping[str, float] = {"fp8": 1.0, "int8": 1.0, "fp4": 9 / 16}
"""Bytes of an activation that is multiplied as quantised, its scales included."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight: outputs, inputs, stored bits of a number, whether a bias is added, how many of it (one per head)."""

    n: float
    k: float
    bits: float
    bias: bool = False
    count: int = 1


def matrix(role: str, sizes: Sizes) -> Matrix | None:
    """The weight that a product of this role multiplies by; None for experts."""
    return _attention(role, sizes) or _latent(role, sizes) or _rest(role, sizes)


def _attention(role: str, sizes: Sizes) -> Matrix | None:
    config, bits = sizes.config, sizes.bits.attention
    wide, narrow = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    outputs = {"qkv": wide + 2 * narrow, "q": wide, "k": narrow, "v": narrow, "kv": 2 * narrow}
    if role == "o":
        value = sizes.heads * config.mla.v_head_dim if config.mla else wide
        return Matrix(sizes.hidden, value, bits, config.o_bias)
    if config.mla is None and role in outputs:
        return Matrix(outputs[role], sizes.hidden, bits, config.qkv_bias)
    return None


def _latent(role: str, sizes: Sizes) -> Matrix | None:
    mla, bits, hidden = sizes.config.mla, sizes.bits.attention, sizes.hidden
    if mla is None:
        return None
    queries = sizes.heads * (mla.qk_nope + mla.qk_rope)
    compressed = mla.q_lora_rank or hidden
    shapes = {
        "q": (queries, hidden),
        "q_a": (compressed, hidden),
        "q_b": (queries, compressed),
        "kv_a": (sizes.latent, hidden),
        "q_kv_a": (compressed + sizes.latent, hidden),
        "kv_b": (sizes.heads * (mla.qk_nope + mla.v_head_dim), mla.kv_lora_rank),
    }
    if role in shapes:
        n, k = shapes[role]
        return Matrix(n, k, bits)
    per_head = {"absorb": (mla.kv_lora_rank, mla.qk_nope), "restore": (mla.v_head_dim, mla.kv_lora_rank)}
    if role in per_head:  # kept apart from the layer's quantised weights, in the activations' type
        n, k = per_head[role]
        return Matrix(n, k, 8 * sizes.size, count=sizes.heads)
    return None


def _rest(role: str, sizes: Sizes) -> Matrix | None:
    config, hidden, moe = sizes.config, sizes.hidden, sizes.config.moe
    if role == "lm_head":
        return Matrix(sizes.vocab, hidden, sizes.bits.lm_head)
    if role == "router" and moe:
        return Matrix(moe.experts, hidden, sizes.bits.other, moe.router_bias)
    shared = role.startswith("shared_")
    width, bias = (sizes.shared_ffn, False) if shared else (sizes.ffn, config.mlp_bias)
    part = role.removeprefix("shared_")
    if part == "gate_up":
        return Matrix(2 * width, hidden, sizes.bits.mlp, bias)
    if part in ("gate", "up"):
        return Matrix(width, hidden, sizes.bits.mlp, bias)
    return Matrix(hidden, width, sizes.bits.mlp, bias) if part == "down" else None


def product(role: str, sizes: Sizes, facts: Facts, dtype: str | None, fused: bool) -> OpWork | None:
    """The work of a product of this role; None where the step does not tell its rows.

    Args:
        role: as `roles` calls it.
        sizes, facts: of the rank and of the step.
        dtype: that the kernel's name says it computes in.
        fused: of experts, whether the product before the activation applies it.
    """
    if role in EXPERT_ROLES:
        return _experts(role, sizes, facts, dtype, fused)
    rows = facts.logits if role == "lm_head" else facts.keys if role == "kv_b" else facts.rows
    found = matrix(role, sizes)
    if found is None or not rows:
        return None
    outputs, addend = rows * found.n, rows * found.n if found.bias else 0.0
    weight = found.count * (found.n * found.k * found.bits / 8 + (found.n * sizes.size if found.bias else 0.0))
    read = rows * found.k * SMALL.get(dtype or "", sizes.size)
    return OpWork(
        model="gemm",
        category="gemm",
        role=role,
        flops=found.count * (2.0 * outputs * found.k + addend),
        bytes=found.count * (read + outputs * sizes.size) + weight,
        dtype=dtype or sizes.dtype,
        m=int(rows),
        n=round(found.n),
        k=round(found.k),
        batch=found.count,
        weight_bytes=weight,
    )


def _experts(role: str, sizes: Sizes, facts: Facts, dtype: str | None, fused: bool) -> OpWork | None:
    """A product of the routed experts, or all of them in one kernel."""
    moe = sizes.config.moe
    if moe is None:
        return None
    sent, size, gates = facts.rows * moe.experts_per_token, sizes.size, 2 if sizes.config.mlp_gated else 1
    hidden, width = sizes.hidden_padded, sizes.expert_ffn_padded
    up = 1.0 if role in ("expert_gate", "expert_up") else 0.0 if role == "expert_down" else float(gates)
    down = 1.0 if role in ("expert_down", "experts") else 0.0
    left = width if fused or role == "experts" else up * width
    biases = (up * width + down * hidden) * size if moe.expert_bias else 0.0
    each = (up + down) * hidden * width * sizes.bits.experts / 8 + biases
    least, middle, most = (count * each for count in active_experts(moe.experts, moe.experts_per_token, facts.rows))
    moved = (facts.rows * hidden if up else sent * width) * size
    moved += (facts.rows * hidden if role == "experts" else sent * (hidden if down else left)) * size
    base = OpWork(
        model="experts",
        category="moe",
        role=role,
        flops=2.0 * sent * (up + down) * sizes.hidden * sizes.expert_ffn,  # padding is no work
        bytes=moved + middle,
        dtype=dtype or sizes.dtype,
        m=facts.rows,
    )
    return replace(
        base,
        weight_bytes=middle,
        weight_bytes_min=least,
        weight_bytes_max=most,
        bytes_min=moved + least,
        estimated=least != most,
    )
