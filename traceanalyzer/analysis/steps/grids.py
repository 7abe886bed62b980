"""What the launch grids of a step's kernels tell where no shape was recorded: grid arithmetic.

    tokens      vLLM's and FlashInfer's kernels of one block per token: KV write, rotary embedding, fused residual norm,
                norm, gated activation (vllm csrc/cache_kernels.cu, pos_encoding_kernels.cu, layernorm_kernels.cu,
                activation_kernels.cu; flashinfer norm.cuh, activation.cuh); PyTorch's layer norm: one block per row.
                The KV write counts the tokens that are kept, the norms those of the padded batch too.
    padding     tokens that get no logits in a step where all others do
    sequences   flash-attention 2: (blocks of queries, sequences, heads); with split keys (blocks, splits, sequences x
                heads), which says nothing (flash_fwd_launch_template.h). vLLM's paged attention: (heads, sequences,
                parts). Triton decode of SGLang and vLLM: (sequences, heads, ...). Unified attention: tokens over
                queries per block, rounded down, plus sequences (triton_unified_attention.py); the queries per block are
                16 or less, a power of two, and the same in the whole trace. The rejection sampler: one block each.
    longest     flash-attention's blocks of 64 or 128 queries bound the longest query from both sides.
    whole       PyTorch's own flash attention with a causal mask and unsplit keys runs only over as many keys as queries
                (aten/src/ATen/native/transformers/cuda/attention.cu aligns its mask to the first key); the prompts of
                a step are the same in all its layers.
    logits      rows gathered before the lm_head, and rows of the softmax and of FlashInfer's samplers after it.

What could be wrong with it: persistent kernels (cuBLAS on Hopper, flash-attention 3, TensorRT-LLM) launch one block per
SM and tell nothing; ROCm replays have no grids. A grid that counts something else under a known name would be
believed, so each rule names kernels exactly, and what two rules contradict is left unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from traceanalyzer.analysis.steps.model import Bools, Ints
from traceanalyzer.trace.tables import MISSING, Trace

_TOKENS = (
    re.compile(r"reshape_and_cache(?:_flash)?_kernel|concat_and_cache_mla_kernel"),
    re.compile(r"vllm::(?:batched_)?rotary_embedding_kernel"),
    re.compile(r"fused_add_rms_norm(?:_static_fp8_quant)?_kernel|flashinfer::norm::FusedAddRMSNormKernel"),
    re.compile(r"vectorized_layer_norm_kernel|vllm::rms_norm_kernel|flashinfer::norm::RMSNormKernel"),
    re.compile(r"(?:vllm|flashinfer::activation)::act_and_mul_kernel"),
)
"""Kernels of one block per token, the most exact first: a norm may run per head, an activation per expert."""
_PADDED = 2
"""The rule above whose kernels run over the padded batch."""
_FA2 = re.compile(r"flash_fwd(_splitkv)?_kernel<[\w:]*_traits<\s*\d+\s*,\s*(\d{1,6})\s*,.*?>\s*,([\w,\s]*)>", re.ASCII)
_CAUSAL = re.compile(r"pytorch_flash::flash_fwd_kernel<.*>\s*,\s*(?:true|false)\s*,\s*true\s*,", re.ASCII)
_UNMASKED = re.compile(r"flash_fwd_kernel<.*>\s*,\s*(?:true|false)\s*,\s*false\s*,\s*false\s*,", re.ASCII)
_FA2_SPLIT = 6
"""Place of Split among the flags after the traits of flash_fwd_splitkv_kernel."""
_PAGED = re.compile(r"vllm::paged_attention_v[12]_kernel")
_STAGES = re.compile(r"^_fwd_(?:grouped_)?kernel_stage[12]$")
_UNIFIED = re.compile(r"^kernel_unified_attention_[23]d")
_REJECTION = re.compile(r"^rejection_(?:greedy|random)_sample_kernel|^expand_kernel$")
_ROWS = re.compile(r"vectorized_gather_kernel|cunn_SoftMaxForward|flashinfer::sampling::\w+Kernel")
_LARGEST_BLOCK = 16
_MOST_CHARACTERS = 2000
_LAYER = ("attention", "kv_cache", "ssm")
_RULES = re.compile("|".join(rule.pattern for rule in (*_TOKENS, _FA2, _PAGED, _STAGES, _UNIFIED, _REJECTION, _ROWS)))


@dataclass(frozen=True)
class Grids:
    """By group, MISSING where the grids do not tell.

    tokens and sequences without padding, padding (tokens that are only that), logits; the longest query of any sequence
    is more than `above` and at most `below`; `whole`: all its flash attention reads whole prompts; `unmasked`:
    all of it lets many queries see every key, as no language model that generates does.
    """

    tokens: Ints
    padding: Ints
    sequences: Ints
    logits: Ints
    above: Ints
    below: Ints
    whole: Bools
    unmasked: Bools


def read(trace: Trace, rows: pd.DataFrame, group: Ints, groups: int) -> Grids:
    """Read the grids of all groups.

    Args:
        trace: for the names.
        rows: from `tokens.step_rows`.
        group: of each row, MISSING for none.
        groups: how many there are.
    """
    codes = np.unique(rows["name"].to_numpy(np.int64)).tolist()
    texts = {code: text for code in codes if _RULES.search(text := trace.text(code)[:_MOST_CHARACTERS])}
    known = (rows["grid_x"].to_numpy() > 0) & (group >= 0) & rows["name"].isin(list(texts)).to_numpy()
    frame = rows.loc[known, ["name", "grid_x", "grid_y"]].assign(group=group[known])

    def named(test: Callable[[str], object]) -> Bools:
        return frame["name"].isin([code for code, text in texts.items() if test(text)]).to_numpy()

    per_token = [_usual(frame[named(rule.search)], "grid_x", groups) for rule in _TOKENS]
    tokens = _first(per_token)
    above, below, by_flash = _flash(frame, texts, groups)
    each = [
        by_flash,
        _usual(frame[named(_PAGED.search)], "grid_y", groups),
        _usual(frame[named(_STAGES.search)], "grid_x", groups),
        _unified(_usual(frame[named(_UNIFIED.search)], "grid_x", groups), tokens),
    ]
    ends = frame[named(_ROWS.search) & _after_layers(rows, group, groups)[known]]
    sequences, logits = _agreed(each), _usual(ends, "grid_x", groups)
    checks = _usual(frame[named(_REJECTION.search)], "grid_x", groups)
    sequences = np.where(np.max(each, axis=0) == MISSING, checks, sequences)
    sequences = np.where((tokens != MISSING) & (sequences > tokens), MISSING, sequences)
    kept, kept_sequences = _without_padding(tokens, sequences, logits)
    ran = np.maximum(tokens, per_token[_PADDED])
    return Grids(
        tokens=kept,
        padding=np.where((kept != MISSING) & ((ran > kept) | (logits == kept)), ran - kept, MISSING),
        sequences=kept_sequences,
        logits=logits,
        above=above,
        below=below,
        whole=_every_flash(frame, texts, _CAUSAL, groups)
        | _one_attention_per_layer(frame, texts, named(_TOKENS[0].search), groups),
        unmasked=_every_flash(frame, texts, _UNMASKED, groups) & (above > 0),
    )


def _without_padding(tokens: Ints, sequences: Ints, logits: Ints) -> tuple[Ints, Ints]:
    """Tokens and sequences of a graph's batch that are real: those that get logits, where every token would.

    A prompt gets one row of logits, so more rows than sequences, or fewer than sequences of one token each, are of a
    batch padded to a captured size.
    """
    even = (sequences > 0) & (tokens % np.maximum(sequences, 1) == 0)
    each = np.where(even, tokens // np.maximum(sequences, 1), 1)
    padded = even & (logits > 0) & (logits < tokens) & (logits % each == 0) & ((each == 1) | (logits > sequences))
    return np.where(padded, logits, tokens), np.where(padded, logits // each, sequences)


def _usual(frame: pd.DataFrame, column: str, groups: int) -> Ints:
    """Per group the most frequent value of a column, the larger one on a tie."""
    counts = frame.groupby(["group", column]).size().reset_index(name="calls")
    counts = counts.sort_values(["group", "calls", column], kind="stable").drop_duplicates("group", keep="last")
    out = np.full(groups, MISSING, np.int64)
    out[counts["group"].to_numpy(np.int64)] = counts[column].to_numpy(np.int64)
    return out


def _first(candidates: list[Ints]) -> Ints:
    """Per group the first known value."""
    out = candidates[0].copy()
    for other in candidates[1:]:
        out = np.where(out == MISSING, other, out)
    return out


def _agreed(candidates: list[Ints]) -> Ints:
    """Per group the known value, MISSING where two differ."""
    stack = np.array(candidates)
    highest = stack.max(axis=0)
    lowest = np.where(stack == MISSING, np.iinfo(np.int64).max, stack).min(axis=0)
    return np.where(highest == lowest, highest, MISSING)


def _after_layers(rows: pd.DataFrame, group: Ints, groups: int) -> Bools:
    """Rows that come after the last attention of their group; rows are in order of submission."""
    layer = np.flatnonzero(rows["category"].isin(_LAYER).to_numpy() & (group >= 0))
    last = np.full(groups + 1, len(rows), np.int64)  # the last is for rows of no group
    last[group[layer]] = layer  # in order, so the last one stays
    after: Bools = np.arange(len(rows)) > last[group]
    return after


def _flash(frame: pd.DataFrame, texts: dict[int, str], groups: int) -> tuple[Ints, Ints, Ints]:
    """(above, below, sequences) of each group from the grids of flash-attention 2.

    A step may run several flash kernels (decodes and prompts apart): their sequences are then not one number.
    """
    kinds = {code: kind for code, text in texts.items() if (kind := _flash_kind(text)) is not None}
    calls = frame[frame["name"].isin(list(kinds))]
    block = calls["name"].map({code: kind[0] for code, kind in kinds.items()}).to_numpy(np.int64)
    split = calls["name"].map({code: kind[1] for code, kind in kinds.items()}).to_numpy(np.bool_)
    above, below = np.full(groups, MISSING, np.int64), np.full(groups, MISSING, np.int64)
    owner, blocks = calls["group"].to_numpy(np.int64), calls["grid_x"].to_numpy(np.int64)
    np.maximum.at(above, owner, (blocks - 1) * block)
    np.maximum.at(below, owner, blocks * block)
    whole = calls[~split]
    unequal = whole.groupby("group")["grid_y"].nunique()
    sequences = _usual(whole, "grid_y", groups)
    sequences[unequal.index[unequal > 1].to_numpy(np.int64)] = MISSING
    return above, below, sequences


def _every_flash(frame: pd.DataFrame, texts: dict[int, str], rule: re.Pattern[str], groups: int) -> Bools:
    """Groups whose flash attention all follows a rule."""
    flash = {code: bool(rule.search(text)) for code, text in texts.items() if _FA2.search(text)}
    calls = frame[frame["name"].isin(list(flash))]
    every = calls["name"].map(flash).astype(bool).groupby(calls["group"].to_numpy()).all()
    out = np.zeros(groups, np.bool_)
    out[every.index.to_numpy(np.int64)] = every.to_numpy(np.bool_)
    return out


def _one_attention_per_layer(frame: pd.DataFrame, texts: dict[int, str], writes: Bools, groups: int) -> Bools:
    """Groups in which some layers' attention reads whole prompts and every layer has only one: then so do the others.

    Layers with a sliding window run another kernel; a step with decodes beside its prompts runs two in a layer.
    """

    def count(rows: Bools) -> Ints:
        return np.bincount(frame["group"].to_numpy(np.int64)[rows], minlength=groups)

    flash = [code for code, text in texts.items() if _FA2.search(text)]
    causal = [code for code in flash if _CAUSAL.search(texts[code])]
    name = frame["name"]
    alone: Bools = count(name.isin(flash).to_numpy()) == count(writes)
    return alone & (count(name.isin(causal).to_numpy()) > 0)


def _flash_kind(name: str) -> tuple[int, bool] | None:
    """(queries per block, whether its grid counts splits) of a flash-attention 2 kernel, None of any other."""
    found = _FA2.search(name)
    if not found:
        return None
    flags = [flag.strip() for flag in found.group(3).split(",")]
    unclear = found.group(1) is not None and len(flags) <= _FA2_SPLIT
    return int(found.group(2)), unclear or (found.group(1) is not None and flags[_FA2_SPLIT] == "true")


def _unified(blocks: Ints, tokens: Ints) -> Ints:
    """Sequences from the grid of unified attention: the queries per block that fit all steps, and most of them simply.

    Simply: as many sequences as tokens, which is what decode steps have. Where none fits simply, nothing is told.
    """
    known = (blocks > 0) & (tokens > 0)
    out = np.full(len(blocks), MISSING, np.int64)
    best, most = MISSING, 0
    size = 1
    while size <= _LARGEST_BLOCK:
        count = blocks[known] - tokens[known] // size
        fits = bool(((count >= 1) & (count <= tokens[known])).all())
        simple = int((count == tokens[known]).sum())
        if fits and simple > most:
            best, most = size, simple
        size *= 2
    if best != MISSING:
        out[known] = blocks[known] - tokens[known] // best
    return out
