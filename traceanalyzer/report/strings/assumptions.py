"""What a figure takes for granted: one sentence per assumption code."""

from __future__ import annotations

from collections.abc import Mapping

ASSUMPTIONS: Mapping[str, str] = {
    # peaks and ceilings
    "sheet_peaks": "Peaks are the dense figures of the vendor's sheet, at its clocks.",
    "peaks_given": "Peaks are the ones given on the command line.",
    "achievable_default": "What the card reaches is taken as 88 % of its bandwidth and 80 % of its compute peak.",
    "achievable_measured": "What the card reaches is a published measurement on the same model of card.",
    # decode floor
    "weights_from_shapes": "Weight bytes are counted from the operand shapes of the matrix products of the step.",
    "weights_read_once": "Every weight is read once per step and stays in no cache between steps.",
    "embedding_gathered": "The input embedding is gathered, not read as a whole.",
    "kv_from_shapes": "KV bytes are counted from the shapes of the attention operators.",
    "kv_from_annotation": "KV bytes follow from the context lengths in the annotations.",
    "kv_unknown": "KV bytes are not known, so the floor holds the weights alone and is too low.",
    "weights_unknown": "Weight bytes are not known, so there is no floor.",
    "experts_read_once": "Each expert that a token is routed to is read once per step.",
    "shared_cache_ignored": "What the last-level cache keeps between kernels is ignored.",
    # prefill ideal and work
    "causal_half": "Causal attention counts only the pairs it may look at.",
    "algorithmic_bytes": "Bytes are what the algorithm must move once, not what the memory system moved.",
    "dense_flops": "FLOPs are those that ran, padding included.",
    "unknown_kernels_left_out": "Kernels whose work is not known are left out, so the ideal is too low.",
    # request and cost
    "steps_are_tokens": "Each decode step gives each sequence one token; speculation is not taken into account.",
    "idle_shared": "Idle time is shared out in proportion to the busy time of prefill and decode.",
    "mixed_split": "The time of mixed steps is shared out by the tokens of prefill and decode.",
    "all_gpus_priced": "Every GPU of the run is priced, whether it was recorded or not.",
    "window_is_typical": "The recorded window is taken as typical of the run.",
}


def assumption(code: str) -> str:
    """The sentence for an assumption code; a text that is no code is returned as it is."""
    return ASSUMPTIONS.get(code, code)
