"""Scaled dot-product attention: F = 2 H P (d_qk + d_v) with P the query-key pairs that the mask keeps.

Bytes: Q and O once per query head, K and V once per KV head, an explicit mask once. P counts the pairs one by one, but
those on the diagonal of a causal mask as half, with a sliding window as without: the usual convention for attention
FLOPs, in which P = q k - q^2 / 2, half of the square for q = k (PyTorch's FlopCounter counts all q k). One query has
no causal mask: P = k, or the keys in its window. With fewer queries than keys the two alignments differ: flash kernels
align the last query with the last key (bottom right: a chunk or a decode step sees its whole past), PyTorch's
`is_causal` for its CPU, memory-efficient and cuDNN kernels aligns the first query with the first key (top left). An
explicit mask's values are not recorded: all pairs count, which is what the kernel computes.

Variable-length batches record only totals. They are exact where the totals determine every length (one sequence, or
tokens = sequences x longest); else sequences of equal length are assumed and the result is marked `estimated`, a lower
bound of the true FLOPs. A paged KV pool does not tell how many keys are used: where the longest key length exceeds the
longest query length, or the op records no length at all, FLOPs and bytes are unknown here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from traceanalyzer.analysis.shapes import Signature, numel
from traceanalyzer.analysis.work.opwork import Operand, OpWork, named, number, value
from traceanalyzer.catalog.op_models import OpModel


@dataclass(frozen=True, slots=True)
class Mask:
    """Which keys a query sees: `right` keys after its own position (0 when causal), `left` before; None: no limit."""

    bottom_right: bool
    left: int | None
    right: int | None


@dataclass(frozen=True, slots=True)
class _Lengths:
    """`count` sequences of q queries and k keys each. `estimated`: equal lengths are an assumption."""

    count: int
    q: float
    k: float
    estimated: bool = False


def attention(model: OpModel, sig: Signature) -> OpWork | None:
    """One attention call, dense (B,H,S,D or B,S,H,D) or packed (T,H,D); None where q, k and v do not fit."""
    q, k, v = named(model, sig, "q"), named(model, sig, "k"), named(model, sig, "v")
    if q is None or k is None or v is None or not 3 <= len(q.shape) <= 4 or len(k.shape) < 3 or len(v.shape) < 3:
        return None
    cu_q = named(model, sig, "cu_q")
    packed = len(q.shape) == 3 or cu_q is not None
    heads_first = model.options.get("layout") == "bhsd" and not packed
    base = _heads(model, q, k.shape[1] if heads_first else k.shape[-2], heads_first)
    if base.heads is None or base.kv_heads is None or base.kv_heads == 0 or base.heads % base.kv_heads:
        return None
    tokens = numel(q.shape) // max(base.heads * q.shape[-1], 1)
    if not packed:
        lengths = _dense(q, k, heads_first, paged=named(model, sig, "block_table") is not None)
        if lengths is None:
            return replace(base, batch=q.shape[0], q_len=tokens // max(q.shape[0], 1))
        return _counted(model, sig, base, lengths, (q, k, v))
    sequences = cu_q.shape[0] - 1 if cu_q is not None and cu_q.shape else 0
    if sequences < 1:
        return replace(base, q_len=tokens)
    packed_lengths = _packed(model, sig, k, tokens, sequences)
    if packed_lengths is None:
        each = tokens // sequences if number(model, sig, "max_q") == tokens / sequences else None
        return replace(base, batch=sequences, q_len=each)
    return _counted(model, sig, base, packed_lengths, (q, k, v))


def paged(model: OpModel, sig: Signature) -> OpWork | None:
    """Attention over a cache kept in pages, by an op that records no context: sizes without FLOPs and bytes.

    q is (B, H, D), one query per sequence, or (B, S, H, D), or (T, H, D) where the catalogue says `packed`. Latent
    attention has one head of keys, and its queries may come in two parts (`q_rope`), which are added.
    """
    q, rotated = named(model, sig, "q"), named(model, sig, "q_rope")
    if q is None or not 3 <= len(q.shape) <= 4:
        return None
    kv_heads = number(model, sig, "kv_heads") if "kv_heads" in model.at else model.options.get("kv_heads")
    base = _heads(model, q, int(kv_heads) if kv_heads and int(kv_heads) > 0 else None, heads_first=False)
    base = replace(base, head_dim=q.shape[-1] + (rotated.shape[-1] if rotated and rotated.shape else 0))
    if "packed" in model.options:
        return replace(base, q_len=q.shape[0])
    return replace(base, batch=q.shape[0], q_len=1 if len(q.shape) == 3 else q.shape[1])


def _heads(model: OpModel, q: Operand, kv_heads: int | None, heads_first: bool) -> OpWork:
    return OpWork(
        model=model.kind,
        category=model.category,
        role=model.role,
        dtype=q.dtype.word,
        heads=q.shape[1] if heads_first else q.shape[-2],
        kv_heads=kv_heads,
        head_dim=q.shape[-1],
    )


def _dense(q: Operand, k: Operand, heads_first: bool, paged: bool) -> _Lengths | None:
    if paged or len(k.shape) != 4 or k.shape[0] != q.shape[0]:
        return None
    axis = 2 if heads_first else 1
    return _Lengths(q.shape[0], float(q.shape[axis]), float(k.shape[axis]))


def _packed(model: OpModel, sig: Signature, k: Operand, tokens: int, sequences: int) -> _Lengths | None:
    """The lengths of a packed batch, from its totals and its longest sequence; None where the keys are not told."""
    longest_q, longest_k = number(model, sig, "max_q"), number(model, sig, "max_k")
    pool = named(model, sig, "block_table") is not None or (len(k.shape) > 3 and k.shape[0] != 1)
    same_q = sequences == 1 or (longest_q is not None and tokens == sequences * longest_q)
    if not pool:
        keys = numel(k.shape) // max(k.shape[-1] * k.shape[-2], 1)
    elif sequences == 1 and longest_k is not None and longest_k >= 0:
        keys = longest_k
    elif longest_q is not None and longest_q == longest_k:
        keys = tokens  # no sequence has a past: every one attends to itself
    else:
        return None
    mask = _mask(model, sig)
    windowed = mask.left is not None or (mask.right is not None and not mask.bottom_right)
    same_k = sequences == 1 or (longest_k is not None and keys == sequences * longest_k)
    # With q the same for all, the pairs of a plain mask are linear in k, so their total depends on the sum of k only.
    exact = same_q and (same_k or not windowed)
    return _Lengths(sequences, tokens / sequences, keys / sequences, estimated=not exact)


def _counted(
    model: OpModel, sig: Signature, base: OpWork, lengths: _Lengths, qkv: tuple[Operand, Operand, Operand]
) -> OpWork | None:
    q, k, v = qkv
    if q.shape[-1] != k.shape[-1] or base.heads is None or base.kv_heads is None:
        return None
    mask = _mask(model, sig)
    pairs = lengths.count * pairs_kept(lengths.q, lengths.k, mask)
    latent = named(model, sig, "q_latent")  # scored against V, where the rest of q is scored against K
    head_dims = q.shape[-1] + v.shape[-1] + (latent.shape[-1] if latent and latent.shape else 0)
    keys = lengths.count * keys_seen(lengths.q, lengths.k, mask)
    kv_bytes = keys * base.kv_heads * (k.shape[-1] * _stored(k) + v.shape[-1] * _stored(v))
    out = named(model, sig, "out")
    out_bytes = out.dtype.bytes if out else max(q.dtype.bytes, 2)  # fp8 queries answer in 16 bits
    tokens = lengths.count * lengths.q
    moved = tokens * base.heads * (q.shape[-1] * q.dtype.bytes + v.shape[-1] * out_bytes) + kv_bytes
    bias = named(model, sig, "mask")
    moved += sum(o.bytes for o in (bias, latent) if o)
    same = not lengths.estimated
    return replace(
        base,
        flops=2.0 * base.heads * pairs * head_dims,
        bytes=moved,
        batch=lengths.count,
        q_len=_whole(lengths.q) if same else None,
        kv_len=_whole(lengths.k) if same else None,
        kv_bytes=kv_bytes,
        estimated=lengths.estimated,
    )


def _stored(tensor: Operand) -> float:
    """Bytes per element, less where a broadcast dimension repeats the same memory."""
    return tensor.dtype.bytes * tensor.unique / max(numel(tensor.shape), 1)


def _mask(model: OpModel, sig: Signature) -> Mask:
    kind = value(model, sig, "mask_type")
    causal = value(model, sig, "causal") in ("True", "1") or kind in ("1", "2")
    bottom_right = model.options.get("align") == "bottom_right" or kind == "2"
    left, right = number(model, sig, "window_left"), number(model, sig, "window_right")
    window = number(model, sig, "window")  # the query's own position included
    if window:
        left = window - 1
    return Mask(
        bottom_right=bottom_right,
        left=None if left is None or left < 0 else left,
        right=0 if causal else None if right is None or right < 0 else right,
    )


def pairs_kept(q: float, k: float, mask: Mask) -> float:
    """Query-key pairs of one sequence that the mask keeps, by the convention of the module docstring."""
    offset = k - q if mask.bottom_right else 0.0
    upper = q * k if mask.right is None else _clipped_sum(offset + mask.right + 1, q, k)
    lower = 0.0 if mask.left is None else _clipped_sum(offset - mask.left, q, k)
    diagonal = min(q, k) if mask.right == 0 and q > 1 else 0.0
    return max(upper - lower - diagonal / 2, 0.0)


def _clipped_sum(first: float, q: float, k: float) -> float:
    """Sum over i in 0..q-1 of first + i, each term held between 0 and k."""
    start = min(q, max(0.0, -first))
    stop = min(q, max(start, k - first))
    ramp = stop - start
    return ramp * (first + start) + ramp * (ramp - 1) / 2 + k * (q - stop)


def keys_seen(q: float, k: float, mask: Mask) -> float:
    """Keys of one sequence that at least one query sees: what has to be read."""
    offset = k - q if mask.bottom_right else 0.0
    last = k if mask.right is None else min(k, offset + q + mask.right)
    first = 0.0 if mask.left is None else max(0.0, offset - mask.left)
    return max(last - first, 0.0)


def _whole(number: float) -> int | None:
    return int(number) if number == int(number) else None
