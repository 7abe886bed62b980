"""The sentences of findings: what a rule found, why one passed, does not apply or cannot be judged, and what to do.

One line each. A title says what is wrong; an action what to do about it, in the words of the frameworks; evidence, a
reason and an assumption are one sentence. What could be wrong: an action names what exists today in the common engines;
another engine may call it something else.
"""

from __future__ import annotations

from collections.abc import Mapping

from traceanalyzer.report import format as fmt

Values = Mapping[str, float | int | str]

TITLES: Mapping[str, str] = {
    "launch_bound_decode": "The GPU waits for kernels that are launched one by one",
    "d2h_sync_per_token": "Every step ends with the host waiting for the token, then the GPU for the host",
    "requests_in_turns": "Requests take turns instead of being served together",
    "decode_batch_below_ridge": "Each weight is read for too few sequences",
    "weights_dominate": "Reading the weights takes most of a decode step",
    "kv_dominates": "Reading the KV cache takes much of a decode step",
    "kv_cat_copies": "The whole KV cache is copied for every token",
    "unfused_elementwise": "Decode runs chains of small elementwise kernels",
    "unfused_elementwise_prefill": "Prefill runs chains of elementwise kernels",
    "fp32_gemm": "Decode multiplies matrices in fp32",
    "fp32_gemm_prefill": "Prefill multiplies matrices in fp32",
    "math_attention": "Decode attention stores its score matrix",
    "math_attention_prefill": "Prefill attention stores its score matrix",
    "small_gpu_fill": "Decode kernels have too few blocks to fill the GPU",
    "low_bandwidth_gemm": "Matrix products of decode miss the memory bandwidth",
    "prefill_low_mfu": "Matrix products of prefill miss the compute peak",
    "lm_head_and_sampling": "Picking the next token takes a noticeable part of a step",
    "lm_head_all_positions": "Prefill computes logits for positions that need none",
    "communication_exposed": "Decode waits for communication between GPUs",
    "communication_exposed_prefill": "Prefill waits for communication between GPUs",
    "straggling_rank": "One rank keeps the others waiting in decode",
    "straggling_rank_prefill": "One rank keeps the others waiting in prefill",
    "window_cut_or_short": "The recording holds too few whole decode steps",
}
"""Rule -> what is wrong, where it is found."""

SUBJECTS: Mapping[str, str] = {
    "launch_bound_decode": "Launching decode kernels one by one",
    "d2h_sync_per_token": "Waiting for the token after every step",
    "requests_in_turns": "Requests that take turns",
    "decode_batch_below_ridge": "Sequences per decode step",
    "weights_dominate": "Reading the weights in decode",
    "kv_dominates": "Reading the KV cache in decode",
    "kv_cat_copies": "Copying the KV cache in decode",
    "unfused_elementwise": "Elementwise kernels in decode",
    "unfused_elementwise_prefill": "Elementwise kernels in prefill",
    "fp32_gemm": "Matrix products in fp32 in decode",
    "fp32_gemm_prefill": "Matrix products in fp32 in prefill",
    "math_attention": "Unfused attention in decode",
    "math_attention_prefill": "Unfused attention in prefill",
    "small_gpu_fill": "Blocks per kernel in decode",
    "low_bandwidth_gemm": "Bandwidth of matrix products in decode",
    "prefill_low_mfu": "Compute of matrix products in prefill",
    "lm_head_and_sampling": "Picking the next token",
    "lm_head_all_positions": "Logits in prefill",
    "communication_exposed": "Communication in decode",
    "communication_exposed_prefill": "Communication in prefill",
    "straggling_rank": "Ranks that are slower than others in decode",
    "straggling_rank_prefill": "Ranks that are slower than others in prefill",
    "window_cut_or_short": "Length of the recording",
}
"""Rule -> what it looks at, where nothing was found."""

_FUSE = "Fuse small kernels: torch.compile, or fused norm, rotary embedding and activation kernels."

_STRAGGLER = (
    "Look at that rank's host (CPU pinning, other processes) and at its GPU's clocks and temperature; divide the "
    "work evenly."
)

ACTIONS: Mapping[str, str] = {
    "launch_bound_decode": 'Replay decode from CUDA graphs: torch.compile(mode="reduce-overhead"), or the engine\'s '
    "graph mode (drop enforce_eager).",
    "d2h_sync_per_token": "Keep the sampled ids on the GPU and submit the next step before reading them (asynchronous "
    "scheduling).",
    "requests_in_turns": "Serve the requests in one batch: continuous batching, or one generate() call for all.",
    "decode_batch_below_ridge": "Run more sequences per step: raise the engine's batch limit, or group requests.",
    "weights_dominate": "Quantise the weights, and check the output quality.",
    "kv_dominates": 'Keep the KV cache in 8 bits (kv_cache_dtype="fp8"), and check the output quality.',
    "kv_cat_copies": 'Use a static or paged KV cache (cache_implementation="static", or an engine with pages).',
    "unfused_elementwise": _FUSE,
    "unfused_elementwise_prefill": _FUSE,
    "fp32_gemm": "Load the model in bf16 (dtype=torch.bfloat16).",
    "fp32_gemm_prefill": "Load the model in bf16 (dtype=torch.bfloat16), or at least allow TF32.",
    "math_attention": 'Use flash attention (attn_implementation="sdpa" or "flash_attention_2").',
    "math_attention_prefill": 'Use flash attention (attn_implementation="sdpa" or "flash_attention_2").',
    "small_gpu_fill": "Use kernels that split the work further: split-KV (flash decoding) and split-K.",
    "low_bandwidth_gemm": 'Try other kernels: a newer cuBLAS, torch.compile(mode="max-autotune"), GEMV or split-K '
    "kernels.",
    "prefill_low_mfu": 'Try other kernels: torch.compile(mode="max-autotune"), or prompt lengths and chunks that are '
    "multiples of the tile.",
    "lm_head_and_sampling": "Sample greedily, keep the top k before softmax and sort, or use a fused sampler.",
    "lm_head_all_positions": "Compute the logits of the last position only (logits_to_keep=1).",
    "communication_exposed": "Use a faster all-reduce (custom, fused with the norm), fewer ranks, or overlap it.",
    "communication_exposed_prefill": "Overlap communication with computing in chunks, or use fewer ranks.",
    "straggling_rank": _STRAGGLER,
    "straggling_rank_prefill": _STRAGGLER,
    "window_cut_or_short": "Record a longer window: 16 decode steps or more, after the prefill, without stacks.",
}
"""Rule -> what to do about it."""

FACTS: Mapping[str, str] = {
    # evidence
    "waits_for_launches": "The GPU waits {ns:us} per step for launch calls, {share:%} of the step.",
    "short_kernels": "{share:%} of the {count:n} kernels of a step take less than 10 \N{MICRO SIGN}s.",
    "launch_calls": "The host makes {count:n} launch calls per step, at {ns:us} each; {share:%} of the kernels found "
    "an empty queue.",
    "kernels_under_5_us": "{share:%} of the kernels of a step, with {time:%} of the kernel time, take less than 5 "
    "\N{MICRO SIGN}s.",
    "stacks_recorded": "Python stacks were recorded, which slows the host: the real waiting is shorter.",
    "waits_for_token": "Waits of the host for the GPU per step: {count:n}, {ns:us} in all.",
    "idle_after_token": "The GPU is then idle for {ns:us} until the host has submitted more, {share:%} of the step.",
    "below_ridge": "Sequences per step: {sequences:n}. From {ridge:n} on, matrix products are bound by compute.",
    "room_for": "The memory holds {sequences:n} sequences of this length.",
    "room_unknown": "How many sequences the memory holds is not known.",
    "batch_predicted": "With {sequences:n} sequences a step would take {ns:us}.",
    "streams_alternate": "{count:n} requests decode at a time in {groups:n} groups that take turns, and a step serves "
    "{sequences:n} of them.",
    "beyond_turns": "Counted beyond the {sequences:n} requests that take turns: serving those together comes first.",
    "weights_share": "Products with the weights take {share:%} of a step and read {bytes:B}.",
    "bytes_per_weight": "A weight takes {bytes:n} bytes; in {dtype} it would take {target:n}.",
    "kv_share": "Attention takes {share:%} of a step and reads {bytes:B} of keys and values.",
    "bytes_per_kv": "A number in the cache takes {bytes:n} bytes; in fp8 it would take {target:n}.",
    "cache_copied": "{count:n} copies of the cache per step take {share:%} of it.",
    "cache_bytes_copied": "They move {bytes:B} per step, and more with every token.",
    "elementwise_share": "Elementwise kernels, norms and casts take {share:%} of a step, waiting between them "
    "included; {count:n} are in chains.",
    "chains": "{count:n} chains per step, up to {longest:n} kernels long.",
    "fp32_share": "{count:n} products per step run in fp32, {share:%} of its time.",
    "peak_ratio": "In {dtype} the peak is {ratio:x} as high and the operands are half as large.",
    "score_matrix": "{count:n} times a step scores are written, put through softmax and read again, {share:%} of its "
    "time.",
    "score_kernels": "One fused kernel each would replace {count:n} kernels per step.",
    "few_blocks": "Their grids have {blocks:n} blocks (median), and the GPU has {sms:n} SMs.",
    "bandwidth_of_kernels": "These kernels take {time_share:%} of a step and use {share:%} of the memory bandwidth.",
    "peak_of_kernels": "These kernels take {time_share:%} of a prefill and use {share:%} of the compute peak.",
    "sampling_share": "{count:n} kernels after the last matrix product take {share:%} of a step.",
    "logits_for_all": "Rows of the last product: {rows:n}. Sequences: {sequences:n}.",
    "communication_share": "{count:n} exchanges of {ns:us} per step, and without them it would be {share:%} shorter.",
    "rank_delays": "Rank {rank:n} delays a step by {ns:us}; it is the slowest in {count:n} of {steps:n} steps.",
    "rank_computes_longer": "Its kernels take longer than those of the others.",
    "rank_stands_still": "It stands still longer than the others: its host is late.",
    "few_complete_steps": "Decode steps recorded whole: {count:n}, where {needed:n} are needed to trust their mean.",
    "steps_cut": "Decode steps cut by the window: {count:n}.",
    "few_steps": "Complete steps that this stands on: {count:n}.",
    # why a rule passed
    "replayed_graphs": "Decode is replayed from graphs already.",
    "hardly_waits_for_launches": "The GPU waits for launch calls for {share:%} of a step only.",
    "kernels_are_long": "Only {share:%} of the kernels are shorter than 10 \N{MICRO SIGN}s.",
    "late_kernels_wait_elsewhere": "{share:%} of that waiting ends long after the call: something else delays it.",
    "no_sync_every_step": "The host does not wait for the GPU every step (waits per step: {count:n}).",
    "faster_than_possible": "Kernels take less time than this device's peaks allow: the times or the peaks are wrong.",
    "idle_after_sync_small": "The GPU is idle for {share:%} of a step after the host has waited for it.",
    "batch_at_ridge": "Sequences per step: {sequences:n}. From {ridge:n} on, matrix products are bound by compute.",
    "memory_full": "The memory holds {room:n} sequences of this length, and {sequences:n} are running.",
    "served_together": "Sequences per step: {sequences:n}.",
    "turns_fill_batch": "The {sequences:n} requests that take turns come first; served together they fill the batch as "
    "far as can be promised.",
    "one_stream": "The steps go on with one request at a time.",
    "weights_small": "Products with the weights take {share:%} of a step.",
    "kv_small": "Attention takes {share:%} of a step.",
    "idle_dominates": "Idle time takes {share:%} of a step, more than the reads ({own:%}).",
    "elementwise_dominates": "Elementwise kernels take {share:%} of a step, more than the reads ({own:%}).",
    "compute_binds": "{share:%} of that time is bound by compute, not by bytes.",
    "already_quantised": "A weight takes {bytes:n} bytes already.",
    "fp32_first": "A weight takes {bytes:n} bytes: 16 bits come first.",
    "kv_already_small": "A number in the cache takes {bytes:n} bytes already.",
    "no_cat_per_layer": "Concatenations per step: {count:n}, fewer than layers.",
    "cats_are_small": "Concatenations per step that append to something long: {count:n}, fewer than layers.",
    "elementwise_small": "Elementwise kernels take {share:%} of a step, waiting between them included.",
    "no_chains": "Elementwise kernels take {share:%} of a step, but none follow one another.",
    "no_fp32_products": "Matrix products in fp32 take {share:%} of a step.",
    "fused_attention": "Attention runs in fused kernels.",
    "attention_small": "Attention takes {share:%} of a step.",
    "device_filled": "Kernels with too few blocks and low bandwidth take {share:%} of a step.",
    "bandwidth_reached": "Products with the weights use {share:%} of the memory bandwidth.",
    "prompt_below_ridge": "Tokens per step: {tokens:n}. Matrix products are bound by memory, not by compute.",
    "peak_reached": "Matrix products bound by compute use {share:%} of its peak.",
    "sampling_small": "Picking the next token takes {share:%} of a step.",
    "logits_of_last_position": "Rows of the last product: {rows:n}.",
    "communication_hidden": "Without communication a step would be {share:%} shorter.",
    "ranks_even": "If the slowest rank were like the next, a step would be {share:%} shorter.",
    "enough_steps": "{count:n} decode steps were recorded whole.",
    "saves_too_little": "It would save {share:%} of a step, less than can be told.",
    # why a rule does not apply
    "no_complete_step": "No complete {phase} step was recorded.",
    "too_few_steps": "{count:n} steps are too few to tell whether requests take turns.",
    "not_generation": "This is no generation run.",
    "on_cpu": "The run is on a CPU.",
    "no_matrix_products": "There are no matrix products.",
    "no_attention": "There is no attention.",
    "no_tensor_cores": "The device has no tensor cores for 16 bits, or is not known.",
    "no_sampling": "No kernel picks a token.",
    "no_lm_head": "No product with the vocabulary is to be seen, or every position needs its logits.",
    "no_communication": "Nothing is exchanged with other devices.",
    "one_rank": "There is one rank only.",
    "no_shared_collectives": "The ranks share no collectives.",
    # what was not recorded
    "ranks_not_matched": "No steps could be matched across the ranks.",
    "launches_not_recorded": "Launch calls were not recorded, so what the GPU waits for is not known.",
    "gpu_unknown": "The GPU's bandwidth or size is not known: give --gpu, or --bandwidth-gbs.",
    "work_not_recorded": "Shapes were not recorded: record with record_shapes=True.",
    "work_not_modelled": "The work of {share:%} of these kernels' time is not known: their operators have no work "
    "model here.",
    "work_in_graphs": "Kernels replayed from a graph carry no shapes: record a few steps without graphs.",
    "grids_not_recorded": "The grids of the kernels were not recorded.",
    "shapes_not_recorded": "What the concatenations join is not known: record with record_shapes=True.",
    "tokens_unknown": "How many sequences a step serves is not known.",
    "contexts_unknown": "The contexts of the steps are not known, so one cannot tell requests apart.",
}
"""Code of a `Fact` -> sentence. After a colon stands how a value is written: % a share, us a time given in nanoseconds,
B bytes, n a number, x a factor."""

FINDING_ASSUMPTIONS: Mapping[str, str] = {
    "graphs_leave_a_tenth": "Graphs leave a tenth of the waiting, or the GPU's own gap between queued kernels if that "
    "is more.",
    "shapes_repeat": "Batch sizes repeat, so that a captured step can be replayed.",
    "next_step_submitted_ahead": "The host's own work fits in the time it now waits.",
    "requests_wait": "There are requests to fill the batch.",
    "requests_decode_together": "The requests go on decoding at the same time.",
    "same_context": "The contexts stay as long as they are.",
    "weights_read_once": "A weight is read once per step, whatever the batch.",
    "unpacking_costs": "Unpacking costs a tenth of the gain in 8 bits, a fifth in 4.",
    "quality_suffices": "The output stays good enough.",
    "cache_written_in_place": "New keys and values are written in place, 2 \N{MICRO SIGN}s per copy that is replaced.",
    "chain_moves_its_largest": "A fused chain moves what the largest of its kernels moves, and takes no longer than "
    "the longest of them now.",
    "minimal_kernel": "No kernel takes less than 2 \N{MICRO SIGN}s.",
    "precision_suffices": "16 bits are precise enough.",
    "half_the_bytes": "Operands are half as large, so a product bound by bytes gains a factor of two at most.",
    "flash_reaches": "Fused attention reaches 60 % of the peak, or the bandwidth the card reaches.",
    "kernel_reaches_bandwidth": "A good kernel reaches 80 % of the bandwidth.",
    "product_reaches_peak": "A good kernel reaches what large products reach on this card.",
    "few_best_logits": "A fifth of the sampler's time is left when it only looks at the best logits.",
    "only_last_sampled": "Only the last position of each prompt is sampled, and nobody asked for the prompt's log-"
    "probabilities.",
    "all_hidden": "All of it is hidden: an upper bound.",
    "rank_like_the_next": "The rank becomes as fast as the next one, which stays as it is.",
    "includes_waiting_for_ranks": "The time includes waiting for ranks that come late.",
}
"""Code -> what a prediction takes for granted."""

RULED_OUT_BY: Mapping[str, str] = {
    "compute_2x": "A GPU with twice the compute would save {share:%} of a decode step.",
    "bandwidth_2x": "A GPU with twice the memory bandwidth would save {share:%} of a decode step.",
    "launches_free": "Graphs or fewer launches would save {share:%} of a decode step at most.",
    "weights_half": "Halving the weights would save {share:%} of a decode step.",
    "weights_half_idle": "Halving the weights would save {share:%} of a decode step: idle time takes {idle:%} of it.",
    "kv_half": "Halving the KV cache would save {share:%} of a decode step.",
    "larger_batch": "A larger batch gives no more throughput: {sequences:n} per step, and from {ridge:n} on matrix "
    "products are bound by compute.",
    "not_throttled": "Throttling: the SM clock was at {mhz:n} of {most:n} MHz, and nothing held it down.",
    "gpu_not_shared": "Other processes: none used the GPU during the recording.",
    "larger_batch_memory": "A larger batch does not fit: the memory holds {room:n} sequences of this length.",
}
"""What would hardly help, with its number."""


def finding_title(rule: str, found: bool) -> str:
    """What a rule found, else what it looked at; a rule without a title is spelt out."""
    return (TITLES if found else SUBJECTS).get(rule, _spelt(rule))


def finding_action(rule: str) -> str | None:
    """What to do about it, or None for a rule without an action."""
    return ACTIONS.get(rule)


def finding_fact(code: str, values: Values) -> str:
    """The sentence of a piece of evidence or of a reason."""
    return _filled(FACTS.get(code), code, values)


def finding_assumption(code: str) -> str:
    """What a prediction takes for granted."""
    return FINDING_ASSUMPTIONS.get(code, _spelt(code))


def ruled_out_by(code: str, values: Values) -> str:
    """What would hardly help, with its number."""
    return _filled(RULED_OUT_BY.get(code), code, values)


class _Value:
    """A value that knows how to write itself in a placeholder."""

    def __init__(self, value: float | int | str) -> None:
        self._value = value

    def __format__(self, spec: str) -> str:
        if isinstance(self._value, str):
            return self._value
        value = float(self._value)
        return {
            "%": fmt.percent, "us": lambda ns: fmt.duration(ns / 1e3), "B": fmt.size, "x": fmt.factor, "n": _number,
        }[spec](value)  # fmt: skip


def _number(value: float) -> str:
    """A count; means are rounded to three digits."""
    return fmt.count(round(value, 6))


def _filled(template: str | None, code: str, values: Values) -> str:
    if template is None:
        return _spelt(code)
    return template.format(**{name: _Value(value) for name, value in values.items()})


def _spelt(code: str) -> str:
    return code.replace("_", " ")
