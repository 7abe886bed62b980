"""What a figure takes for granted: one sentence per assumption code."""

from __future__ import annotations

from collections.abc import Mapping

ASSUMPTIONS: Mapping[str, str] = {
    # peaks and ceilings
    "achievable_default": "What the card reaches is taken as 88 % of its bandwidth and 80 % of its compute peak.",
    "achievable_measured": "What the card reaches is a published measurement on the same model of card.",
    # decode floor
    "weights_from_shapes": "Weight bytes are counted from the shapes of the matrix products; each weight is read once "
    "a step, and the input embedding is gathered, not read as a whole.",
    "bytes_from_model": "The shapes of the step are not recorded; its bytes are those of the model as the recorder "
    "describes it: all weights but the input embedding, and the whole cache of its sequences.",
    "bytes_from_given_model": "Where shapes do not tell, bytes are those of the model that was given, divided among "
    "tensor parallel ranks: a step reads all weights but the input embedding, and the cache of its sequences, which "
    "are taken to be equally long.",
    "bytes_from_recognised_model": "Where shapes do not tell, bytes are those of the public model whose vocabulary, "
    "hidden size and layers the trace shows, stored as published: a step reads all weights but the input embedding, "
    "and the cache of its sequences, which are taken to be equally long.",
    "weights_unknown": "Weight bytes are not known, so there is no floor.",
    "kv_unknown": "KV bytes are not known, so the floor holds the weights alone and is too low.",
    "kv_read_is_kept": "Attention runs in separate products, which read copies of the cache; KV bytes are those that "
    "the cache keeps of the whole context.",
    "single_step_duration": "There are not enough steps for a period; the time of the step itself is used, without "
    "the gap before the next one.",
    "math_longer_than_bytes": "At this batch size the math of the step takes longer than its bytes, so the floor is "
    "that of the math.",
    "experts_drawn_evenly": "Which experts a step reads is not recorded; they are taken to be drawn evenly, with the "
    "range given.",
    # memory
    "every_parameter_of_one_size": "Every parameter is taken to have the size of the model's dtype.",
    "held_is_read": "The weights held are those that a step reads; the output layer shares the input embedding.",
    "held_is_read_and_embedding": "The weights held are those that a step reads and the input embedding.",
    "held_at_least_read": "At least the weights that a step reads are held; an input embedding of its own and experts "
    "that were not chosen come on top.",
    "kv_kept_is_read": "The cache per token is what attention reads per token of context; layers that look back only "
    "so far keep more, or less, than that.",
    "one_pool_per_layer": "Every KV write of a step is taken to fill a pool of its own.",
    "kv_pool_shared": "Layers share pools, for together they would be larger than the device; how much is set aside "
    "is not known.",
    "usable_memory": "90 % of the memory is taken to be usable for weights and cache; activations fit in the rest.",
    "same_context": "Further sequences are taken to have the mean context of the present ones.",
    # batching
    "weights_read_once": "Weights are read once a step, however many sequences it has; all else grows with them.",
    "experts_grow_with_batch": "Experts are taken to be read as often as sequences grow, so batching gains nothing "
    "there.",
    "work_from_model": "The step carries no shapes; its weights and cache are those of the model as it is described, "
    "divided among its kernels by time.",
    "kv_room_unknown": "How many sequences fit in memory is not known.",
    # prefill ideal
    "causal_half": "Causal attention counts only the pairs it may look at.",
    "dense_flops": "FLOPs are those that ran, padding included.",
    "prefill_work_unknown": "The FLOPs of the prefill are not known in full, so there is no ideal.",
    # cost
    "idle_shared_by_time": "Time outside prefill and decode is shared out in proportion to theirs.",
    "all_gpus_priced": "Every recorded GPU is priced.",
    "window_is_typical": "The recorded window is taken as typical of the run.",
    "tensor_parallel_assumed": "All ranks are taken to work on the same tokens (tensor parallel); with data parallel "
    "ranks a token costs that many times less.",
    "mixed_by_decode_steps": "Of mixed steps, input pays what the prompts add to decode steps of like batch and "
    "context in this window, output pays the rest, all reading of weights included (confidence 85 %).",
    "mixed_by_decode_steps_any_context": "Of mixed steps, input pays what the prompts add to decode steps of like "
    "batch in this window, whose contexts cannot be compared; output pays the rest, all reading of weights included "
    "(confidence 70 %).",
    "mixed_by_attention_apart": "Of mixed steps without a like decode step, each side pays the time of its own "
    "attention kernels, and the rest by its tokens (confidence 75 %).",
    "mixed_by_roofline": "Of mixed steps without a like decode step, each side pays by the least time of its "
    "attention, and for the matrix products by its tokens (confidence 50 %).",
    "mixed_steps_left_out": "Mixed steps are left out, for their time cannot be split between input and output.",
}
"""Code -> sentence."""


def assumption(code: str) -> str:
    """The sentence for an assumption code; a code without one is spelt out."""
    return ASSUMPTIONS.get(code, code.replace("_", " "))
