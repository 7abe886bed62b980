"""What a step runs over, for the work of its kernels: its tokens with padding, its sequences, its context.

The captured size of a replayed graph is told by kernels whose grid is a count of tokens. In vLLM these are the rotary
embedding, the write to the cache and the norm that adds the residual: one block per token (`dim3 grid(num_tokens)` in
csrc/pos_encoding_kernels.cu, cache_kernels.cu, layernorm_kernels.cu).

What could be wrong: a step whose label counts other tokens than its kernels run over; grids that contradict the label
by more than padding can do leave the step unanswered.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import pandas as pd

from traceanalyzer.analysis.replay.sequence import Alike
from traceanalyzer.analysis.replay.sizes import Facts
from traceanalyzer.trace.tables import Trace

_PER_TOKEN = re.compile(
    r"vllm::(?:batched_)?(?:rotary_embedding|reshape_and_cache(?:_flash)?|concat_and_cache_mla|fused_add_rms_norm)_kernel"
)
_MOST_PADDING = 2
"""A graph's batch is less than this many times the tokens in it, or it would have been a smaller graph's."""
_SMALL = 8
"""Below so many tokens graphs are captured in steps that are larger than the tokens themselves."""


def captured_rows(trace: Trace, table: pd.DataFrame, alike: Alike, texts: Sequence[str]) -> int | None:
    """The tokens that the kernels of a sequence run over, by their grids; None where these say nothing, or several."""
    places = [i for i, text in zip(alike.carriers.at.tolist(), texts, strict=True) if _PER_TOKEN.search(text)]
    kernels = trace.kernels.iloc[table["kernel"].to_numpy(np.int64)[alike.rows[0, places]]]
    axes = kernels[["grid_x", "grid_y", "grid_z"]].to_numpy(np.int64)
    counts = set(axes[(axes > 0).all(axis=1), 0].tolist())
    return int(counts.pop()) if len(counts) == 1 else None


def facts_of(step: Mapping[Hashable, object], captured: int | None) -> Facts | str | None:
    """The facts of a step; a reason where grids and label contradict each other, None without tokens.

    Args:
        step: its row of the step table.
        captured: tokens by the grids, None where these say nothing.
    """
    known = {str(name): _known(value) for name, value in step.items()}
    tokens, padding = known["tokens"], known["padded_tokens"] or 0.0
    if tokens is None and captured is not None and step["phase"] == "decode":
        tokens = float(captured)
    if tokens is None or tokens < 1:
        return None
    rows = tokens + padding
    if captured is not None and captured != rows:
        if not tokens <= captured <= max(_MOST_PADDING * tokens, _SMALL):
            return f"{captured} tokens by the kernels' grids, {tokens:g} by the step"
        rows = captured
    sequences, keys, pairs = known["sequences"], known["context_sum"], known["query_context_sum"]
    if pairs is None and keys is not None:
        pairs = keys if tokens == sequences else tokens * keys if sequences == 1 else None
    even = tokens**2 / sequences if pairs is None and sequences and keys == tokens else None
    if even is not None:  # prompts without a past, taken to be equally long
        pairs = even
    squares, exact = _squares(known, tokens, keys, pairs)
    if squares is not None and pairs is not None and pairs < squares:  # no query is longer than its context
        return f"{tokens:g} tokens attend to themselves more often than the {pairs:g} times the step says"
    verified = step["phase"] == "decode" and sequences is not None and tokens > sequences
    logits = tokens if verified else sequences
    return Facts(
        rows=int(rows),
        tokens=int(tokens),
        sequences=None if sequences is None else int(sequences),
        logits=None if logits is None else int(logits),
        keys=keys,
        pairs=pairs if squares is not None else None,
        squares=squares or 0.0,
        exact=exact and even is None,
    )


def _known(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float, np.number)) and value == value else None


def _squares(
    known: dict[str, float | None], tokens: float, keys: float | None, pairs: float | None
) -> tuple[float | None, bool]:
    """Squared query lengths of the sequences with several queries, and whether that is exact; None where unknown."""
    sequences = known["sequences"]
    if tokens == sequences:
        return 0.0, True
    if keys == tokens and pairs is not None:  # no sequence has a past: each product of lengths is a square
        return pairs, True
    if sequences == 1:
        return tokens**2, True
    total, exact = 0.0, True
    for kind in ("prefill", "decode"):
        count, queries = known[f"{kind}_sequences"], known[f"{kind}_tokens"]
        if count is None or queries is None:
            return None, False
        if queries > count:
            total += queries**2 / count
            exact &= count == 1
    return total, exact
