"""What each kernel of a pass is asked to do: its part with everything but the step that its work depends on.

What could be wrong: which of a router's helpers chooses and which adds up is told by place: the first one behind the
router, the last one behind the experts. The others' work depends on data and stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from traceanalyzer.analysis.replay import described, products
from traceanalyzer.analysis.replay.layers import Pass
from traceanalyzer.analysis.replay.roles import EXPERT_ROLES
from traceanalyzer.analysis.replay.sequence import (
    ACTIVATION,
    ATTENTION,
    EMBEDDING,
    HEAVY,
    KV_WRITE,
    NORM,
    QUANTISE,
    ROPE,
    ROUTING,
    Carriers,
)
from traceanalyzer.analysis.replay.sizes import Facts, Sizes
from traceanalyzer.analysis.work.opwork import OpWork

_ADDS = re.compile(r"add|residual", re.IGNORECASE)
"""Names of norms that add the residual first: vLLM's fused_add_rms_norm, aiter's rmsnorm2d_fwd_with_add, FlashInfer's
FusedAddRMSNorm."""


@dataclass(frozen=True, slots=True)
class Part:
    """`what` is the part, `role` the product's role or the place of another kernel; the rest where it matters.

    `absorbed`: of latent attention, whether a product takes its queries into the latent space.
    """

    what: str
    role: str = ""
    dtype: str | None = None
    window: int | None = None
    fused: bool = False
    absorbed: bool = False

    @property
    def follows_context(self) -> bool:
        """Whether its work depends on the step's context, not on its tokens and sequences alone."""
        return self.what == ATTENTION or self.role == "kv_b"


def parts(
    carriers: Carriers, passed: Pass, sizes: Sizes, texts: Sequence[str], dtypes: Sequence[str | None]
) -> list[Part | None]:
    """The part of every carrier, None where its work is not told.

    Args:
        carriers, passed: the sequence, and how it was taken apart.
        sizes: of the rank.
        texts, dtypes: the carriers' names, and the data types that these say.
    """
    out: list[Part | None] = [None] * len(carriers.parts)
    adding = _adding(carriers, passed, texts)
    for number, layer in enumerate(passed.layers):
        window = sizes.config.window(number)
        absorbed = any(passed.roles[i][0] == "absorb" for i in layer.attention if i in passed.roles)
        for i in (*layer.lead, *layer.attention, *layer.mlp):
            if carriers.parts[i] == ATTENTION:
                out[i] = Part(ATTENTION, window=window, absorbed=absorbed)
            else:
                out[i] = _part(carriers, passed, i, adding)
        _latent_norms(carriers, layer.attention, sizes, out)
    for i in passed.after:
        out[i] = Part(EMBEDDING, "last") if carriers.parts[i] == EMBEDDING else _part(carriers, passed, i, adding)
    if passed.head is not None:
        out[passed.head] = Part(HEAVY[0], "lm_head")
    for i, part in enumerate(out):
        if part is not None and part.what == QUANTISE:
            following = next((k for k in range(i, len(out)) if k in passed.roles), i)
            out[i] = Part(QUANTISE, part.role, dtypes[following])
        elif part is not None and part.what in HEAVY:
            fused = part.role in EXPERT_ROLES and not _activated(carriers, passed, i)
            out[i] = Part(part.what, part.role, dtypes[i], fused=fused)
    return out


def _part(carriers: Carriers, passed: Pass, i: int, adding: frozenset[int]) -> Part | None:
    what = carriers.parts[i]
    if i in passed.roles:
        return Part(what, passed.roles[i][0])
    if what == NORM:
        return Part(NORM, "hidden", fused=carriers.names[i] in adding)
    if what == ACTIVATION:
        return Part(what, _beside(carriers, passed, i, -1))
    if what == QUANTISE:
        return Part(what, _beside(carriers, passed, i, 1))
    if what == ROUTING:
        return _routing(carriers, passed, i)
    return Part(what) if what in (ROPE, KV_WRITE, EMBEDDING) else None


def _beside(carriers: Carriers, passed: Pass, i: int, step: int) -> str:
    """The role of the nearest product before or after a carrier; "" without any."""
    i += step
    while 0 <= i < len(carriers.parts) and i not in passed.roles:
        i += step
    return passed.roles[i][0] if i in passed.roles else ""


def _activated(carriers: Carriers, passed: Pass, i: int) -> bool:
    """Whether an activation of its own follows a product."""
    i += 1
    while i < len(carriers.parts) and i not in passed.roles:
        if carriers.parts[i] == ACTIVATION:
            return True
        i += 1
    return False


def _routing(carriers: Carriers, passed: Pass, i: int) -> Part | None:
    """The first kernel behind the router chooses, the last one behind the experts adds up."""
    if carriers.parts[i - 1] in HEAVY and _beside(carriers, passed, i, -1) == "router":
        return Part(ROUTING, "top_k")
    last = i + 1 >= len(carriers.parts) or carriers.parts[i + 1] != ROUTING
    done = _beside(carriers, passed, i, -1) in ("expert_down", "experts") or _beside(carriers, passed, i, 1) not in (
        "expert_gate_up",
        "experts",
        "expert_gate",
    )
    return Part(ROUTING, "finalise") if last and done else None


def _adding(carriers: Carriers, passed: Pass, texts: Sequence[str]) -> frozenset[int]:
    """The names of norms that add the residual: those that say so, or that the first layer cannot use."""
    found = {name for name, text in zip(carriers.names, texts, strict=True) if _ADDS.search(text)}
    heads = [[carriers.names[i] for i in layer.lead if carriers.parts[i] == NORM] for layer in passed.layers[:2]]
    if len(heads) == 2 and heads[0] and heads[1] and heads[0][-1] != heads[1][-1]:
        found.add(heads[1][-1])
    return frozenset(found)


def _latent_norms(carriers: Carriers, attention: range, sizes: Sizes, out: list[Part | None]) -> None:
    """Norms inside attention: of queries and of keys, or of what latent attention compresses."""
    inside = [i for i in attention if carriers.parts[i] == NORM]
    mla = sizes.config.mla
    roles: tuple[str, ...] = ("q", "k") if mla is None else ("compressed", "latent")[0 if mla.q_lora_rank else 1 :]
    for i, role in zip(inside, (*roles, *("",) * len(inside)), strict=False):
        out[i] = Part(NORM, role) if role else None


def work_of(part: Part, sizes: Sizes, facts: Facts) -> OpWork | None:
    """The work of a part in a step; None where the step does not tell it."""
    rows = facts.rows
    if part.what in HEAVY:
        return products.product(part.role, sizes, facts, part.dtype, part.fused)
    if part.what == ATTENTION:
        return described.attention(sizes, facts, part.window, part.absorbed)
    made: Mapping[str, Callable[[], OpWork | None]] = {
        NORM: lambda: _norm(part, sizes, rows),
        ROPE: lambda: described.rope(sizes, rows),
        KV_WRITE: lambda: described.kv_write(sizes, facts.tokens),  # padding has no place in the cache
        ACTIVATION: lambda: _activation(part.role, sizes, rows),
        QUANTISE: lambda: _quantise(part, sizes, rows),
        ROUTING: lambda: described.top_k(sizes, rows) if part.role == "top_k" else described.finalise(sizes, rows),
        EMBEDDING: lambda: described.embedding(sizes, (facts.logits or 0) if part.role == "last" else rows),
    }
    return made[part.what]()


def _norm(part: Part, sizes: Sizes, rows: int) -> OpWork:
    mla, head = sizes.config.mla, sizes.head_dim
    whole = sizes.config.qk_norm == "full_width"
    widths = {"hidden": (1, sizes.hidden)}
    heads = {"q": sizes.heads, "k": sizes.kv_heads}
    widths |= {name: (1, count * head) if whole else (count, head) for name, count in heads.items()}
    if mla is not None:
        widths |= {"latent": (1, mla.kv_lora_rank), "compressed": (1, mla.q_lora_rank or 0)}
    count, width = widths[part.role]
    return described.norm(sizes, float(rows * count * width), float(width), part.fused)


def _activation(product: str, sizes: Sizes, rows: int) -> OpWork | None:
    moe = sizes.config.moe
    if product in EXPERT_ROLES:
        sent = rows * (moe.experts_per_token if moe else 0)
        return described.activation(sizes, sent, sizes.expert_ffn_padded, product == "expert_gate_up")
    width = sizes.shared_ffn if product.startswith("shared_") else sizes.ffn
    return described.activation(sizes, rows, width, product.endswith("gate_up")) if product else None


def _quantise(part: Part, sizes: Sizes, rows: int) -> OpWork | None:
    found = products.matrix(part.role, sizes) if part.role not in EXPERT_ROLES else None
    small = products.SMALL.get(part.dtype or "", 1.0)
    return described.quantise(sizes, rows, found.k, small) if found else None
