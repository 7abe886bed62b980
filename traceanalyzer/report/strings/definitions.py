"""What every term of the report means, how its figure is computed, and how to read the page.

Formulas follow the roofline model (Williams, Waterman and Patterson, CACM 2009), NVML's definition of GPU utilisation
and the usual definitions of MFU and MBU.
"""

from __future__ import annotations

from collections.abc import Mapping

DEFINITIONS: Mapping[str, tuple[str, str]] = {
    "span": (
        "Analysed span",
        "From the start of the first GPU activity to the end of the last one, per device. All shares of time are "
        "shares of it unless another base is named.",
    ),
    "gpu-util": (
        "GPU-Util",
        "Share of the span in which at least one kernel runs, copies left out: the figure nvidia-smi shows. It says "
        "nothing of how much of the GPU the kernel uses. Holes in the recording do not count.",
    ),
    "bandwidth-share": (
        "Memory bandwidth used",
        "Bytes the algorithms must move, divided by the time and by the bandwidth of the sheet. Bytes that are not "
        "known count as none, so the true figure may be higher; the page says at least where that is so.",
    ),
    "compute-share": (
        "Compute used",
        "FLOPs counted, divided by the time and by the dense peak of the sheet for the data type used.",
    ),
    "tensor-core-useful": (
        "Tensor cores useful",
        "The time the FLOPs of the tensor-core kernels take at the peak, as a share of the span. Where the work of "
        "some kernels is not known this is a range: from none of their time to all of it.",
    ),
    "phase": (
        "Phase",
        "Prefill reads the prompt, many tokens in one step; decode writes one token per sequence and step. A mixed "
        "step does both. What the evidence does not settle is other; nothing is put into a phase by default.",
    ),
    "step": (
        "Step",
        "One forward pass of the model. Averages and percentiles use steps that lie wholly inside the recording.",
    ),
    "bound": (
        "Bound",
        "What takes most of a phase's time: kernels near the memory or the compute roof, waiting for the host, or "
        "communication; two causes close to each other are mixed. The confidence falls with the time that is unknown.",
    ),
    "ledger": (
        "Ledger",
        "Every nanosecond of the span is in exactly one bucket. Where activities overlap, a tensor-core kernel "
        "counts before another kernel, a kernel before communication, communication before copies, copies before "
        "idle.",
    ),
    "arithmetic-intensity": (
        "Arithmetic intensity",
        "FLOPs per byte. Below the ridge (peak divided by bandwidth) memory is the limit, above it compute is.",
    ),
    "roofline": (
        "Roofline",
        "The highest rate a kernel can reach at its arithmetic intensity: the lower of the peak and intensity times "
        "bandwidth.",
    ),
    "floor": (
        "Floor",
        "The least time a decode step can take: the bytes of the weights and of the KV cache it reads, over the "
        "bandwidth; or its math at the peak, where that is longer. The weights are read again for every step, however "
        "many sequences it serves, which is why a larger batch costs little.",
    ),
    "mbu": (
        "MBU",
        "Model bandwidth utilisation: the bytes of weights and KV cache that a step reads, over its measured time "
        "(gaps included) and the bandwidth; busy MBU leaves the gaps out.",
    ),
    "context-slope": (
        "Time per 1k context",
        "What a thousand more tokens of context, summed over all sequences of the batch, add to a decode step: "
        "ideally the time to read their KV cache at full bandwidth, measured the slope of step times over context.",
    ),
    "mfu": (
        "MFU",
        "FLOPs of the matrix products and of attention in the prefill over its time and the dense peak. They are the "
        "FLOPs that ran, padding included.",
    ),
    "wasted": (
        "Wasted time",
        "Time of a kernel beyond what its FLOPs at the peak or its bytes at full bandwidth need, whichever is "
        "longer. Not known where the work is not known.",
    ),
    "saving": (
        "Saving",
        "What one change alone is predicted to save of a step, the output unchanged: from a model whose parts add up "
        "to the measured step. Savings of several changes do not add up. A larger batch saves time per token: the "
        "figure is what it saves on the tokens of one of today's steps.",
    ),
    "batching-efficiency": (
        "Batching efficiency",
        "Measured tokens per second over those of as many single sequences, each at the predicted step of one. Times "
        "the sequences of the batch it is the effective batch: the number of single sequences that the batch is worth.",
    ),
    "confidence": (
        "Confidence",
        "How far a statement rests on what was recorded, from 0 to 1: it falls with the time of kernels whose work is "
        "not known, with what was estimated, and with what the profiler itself disturbs. It is no probability.",
    ),
    "ttft": (
        "TTFT",
        "Time to first token: from the first GPU activity of the prompt to the end of the step that gives it.",
    ),
    "tpot": ("TPOT", "Time per output token: from one token of a sequence to its next, gaps between steps included."),
    "grid-fill": ("Grid fill", "Blocks of the kernel over the number of multiprocessors, at most 1."),
}
"""Anchor -> (term, meaning). Every term has an anchor `def-...` on the page."""

METHOD: tuple[str, ...] = (
    "Kernels are tied to the operator that launched them by correlation ids, and to steps by the launch, not by time.",
    "FLOPs and bytes come from the tensor shapes of the operators, else from the model as its recorder describes it. "
    "Times set no amount of work; they divide it among kernels that do it together, and check that a kernel without "
    "shapes did the work of its like elsewhere in the trace.",
    "What is not known is shown as unknown, never as zero, and counted neither as idle nor as useful.",
    "All interval arithmetic is on integer nanoseconds, and overlapping activities are united, not added.",
    "Figures have three significant digits; the full precision is in the embedded JSON.",
)

READING: tuple[str, ...] = (
    "Start with the sentence at the top and the three meters under it: a GPU that is always busy can still do little.",
    "The first things to do come from the findings: each opens to its evidence, the kernels it touches and what it "
    "takes for granted.",
    "Compare prefill with decode: the same model is usually bound by compute in one and by memory in the other.",
    "In the ledger, look for the widest segment that is not useful; its row in the table says what it means.",
    "The floor says how far a decode step is from the best this card can do with these weights and this context.",
    "A figure marked with a warning sign is above what the hardware can do: check the GPU, the clocks or the counts.",
)
