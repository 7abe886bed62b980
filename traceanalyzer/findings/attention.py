"""Attention that does not use the device: in separate kernels, or with too few thread blocks."""

from __future__ import annotations

import numpy as np

from traceanalyzer.findings import cat, needs
from traceanalyzer.findings.answer import Answer, Refusal, not_applicable, passed, proposal
from traceanalyzer.findings.change import MINIMAL_KERNEL_NS
from traceanalyzer.findings.model import Fact
from traceanalyzer.findings.subject import Bools, Floats, PhaseSubject

REACHED_COMPUTE = 0.6
"""Share of the peak that fused attention reaches (method: advice)."""
REACHED_BANDWIDTH = 0.8
"""Share of the bandwidth that a good decode kernel reaches (method: advice)."""
LOW_BANDWIDTH = 0.5
BLOCKS_PER_SM = 2
"""Fewer blocks than so many per SM leave the memory idle."""
MATTERS = 0.05


def math_attention(subject: PhaseSubject) -> Answer:
    """Is attention computed as two matrix products with a softmax over a stored score matrix between them?"""
    regions = _regions(subject)
    if not (regions >= 0).any():
        return _no_scores(subject)
    inside = regions >= 0
    share = subject.share(inside)
    if share < MATTERS:
        return passed("attention_small", share=share)
    ideal = _fused_ns(subject, regions)
    products = inside & subject.is_batched
    first = np.zeros(len(inside), np.bool_)
    where = np.flatnonzero(products)
    _, at = np.unique(regions[where], return_index=True)
    first[where[at]] = True
    new = np.where(first, np.append(ideal, np.nan)[regions], subject.duration)
    evidence = (
        Fact("score_matrix", {"share": share, "count": len(ideal) / subject.count}),
        Fact("score_kernels", {"count": float(inside.sum()) / subject.count}),
    )
    return proposal(subject, new, inside, evidence, 0.8, ("flash_reaches", "minimal_kernel"), gone=inside & ~first)


def _no_scores(subject: PhaseSubject) -> Refusal:
    """What it means that no stored scores are to be seen."""
    if subject.is_attention.any():
        return passed("fused_attention")
    unknown = needs.matrix_work(subject)
    softmax = subject.of_category("softmax").any()
    return unknown if unknown is not None and softmax else not_applicable("no_attention")


def _regions(subject: PhaseSubject) -> np.ndarray:
    """Numbers the stretches from a batched product to the next one that have a softmax between them; -1 outside.

    Copies right before the first product that repeat keys and values for every query head belong to it: fused attention
    reads the heads as they are.
    """
    out = np.full(len(subject.rows), -1, np.int64)
    products = np.flatnonzero(subject.is_batched)
    softmax = np.concatenate(([0], np.cumsum(subject.of_category("softmax"))))
    step = subject.rows["step"].to_numpy()
    weight = np.concatenate(([0], np.cumsum(subject.is_weight)))
    first, second = products[:-1], products[1:]
    pair = (step[first] == step[second]) & (softmax[second] > softmax[first + 1]) & (weight[second] == weight[first])
    begins = _with_repeats(subject, first[pair])
    for number, (begin, end) in enumerate(zip(begins, second[pair], strict=True)):
        out[begin : end + 1] = number
    return out


def _with_repeats(subject: PhaseSubject, products: np.ndarray) -> np.ndarray:
    """Where each product begins with the (at most two) copies right before it that write one of its large operands."""
    operand, copied = _keys_bytes(subject)[products], subject.column("bytes")
    step = subject.rows["step"].to_numpy()
    copies = subject.of_category("copy") & ~cat.cache_copies(subject)
    begins = products.copy()
    for _ in range(2):
        before = np.maximum(begins - 1, 0)
        repeats = (begins > 0) & copies[before] & (step[before] == step[products])
        repeats &= (copied[before] > operand) & (copied[before] <= 2.1 * operand)
        begins = np.where(repeats & (begins - before == 1), before, begins)
    return begins


def _element_bytes(subject: PhaseSubject) -> Floats:
    """Bytes of one element of each product; NaN for other kernels, and for products of nothing."""
    m, n, k, batch = (subject.column(name) for name in ("m", "n", "k", "batch"))
    elements = batch * (m * k + k * n + m * n)
    unknown = np.full(len(elements), np.nan)
    size: Floats = np.divide(subject.column("bytes"), elements, out=unknown, where=elements > 0)
    return size


def _keys_bytes(subject: PhaseSubject) -> Floats:
    """Bytes of the keys (or values) of every head that each batched product reads."""
    n, k, batch = (subject.column(name) for name in ("n", "k", "batch"))
    keys: Floats = batch * k * n * _element_bytes(subject)
    return keys


def _fused_ns(subject: PhaseSubject, regions: np.ndarray) -> Floats:
    """Least time of one fused kernel per region: max(F / 0.6 peak, Q / bandwidth).

    Q is the queries, keys, values and output; scores stay on the chip. Keys and values that copies repeat for every
    query head are read as they were before.
    """
    inside = regions >= 0
    rows = np.flatnonzero(subject.is_batched & inside)
    m, n, k, batch = (subject.column(name)[rows] for name in ("m", "n", "k", "batch"))
    number = regions[rows]
    count = int(number.max(initial=-1)) + 1
    first = np.ones(len(rows), np.bool_)
    first[1:] = number[1:] != number[:-1]
    keys = _keys_bytes(subject)
    queries = batch * np.where(first, m * k, m * n) * _element_bytes(subject)[rows]
    moved, math = np.zeros(count), np.zeros(count)
    np.add.at(moved, number, keys[rows] + queries)
    np.add.at(math, number, subject.column("compute_ns")[rows])
    copies = np.flatnonzero(subject.of_category("copy") & inside & _before_products(subject, regions))
    repeated = keys[rows[first]][regions[copies]]
    np.add.at(moved, regions[copies], subject.column("bytes")[copies] - 2.0 * repeated)
    device = subject.timeline.device
    reach = device.achievable_gbs or np.nan
    fused: Floats = np.maximum(np.fmax(math / REACHED_COMPUTE, moved / reach), MINIMAL_KERNEL_NS)
    return fused


def _before_products(subject: PhaseSubject, regions: np.ndarray) -> Bools:
    """Rows of a region that come before its first product."""
    begun = np.cumsum(subject.is_batched)
    rows = np.flatnonzero(regions >= 0)
    _, at, back = np.unique(regions[rows], return_index=True, return_inverse=True)
    out = np.zeros(len(regions), np.bool_)
    out[rows] = (begun[rows] == begun[rows[at]][back]) & ~subject.is_batched[rows] & ~subject.is_batched[rows[at]][back]
    return out


def small_fill(subject: PhaseSubject) -> Answer:
    """Do memory-bound kernels miss the bandwidth because they have too few blocks for the device?"""
    heavy = subject.is_attention | subject.is_weight
    if not heavy.any():
        return not_applicable("no_matrix_products")
    memory, compute = subject.column("memory_ns"), subject.column("compute_ns")
    slow = heavy & (memory >= compute) & (memory < LOW_BANDWIDTH * subject.duration)
    few = slow & (subject.blocks < BLOCKS_PER_SM * (subject.timeline.device.num_sms or 0))
    new = np.maximum(memory / REACHED_BANDWIDTH, MINIMAL_KERNEL_NS)
    few &= new < subject.duration
    share = subject.share(few)
    if share < MATTERS:
        return passed("device_filled", share=share)
    used = subject.per_step(memory, few) / subject.time(few)
    blocks = float(np.median(subject.blocks[few]))
    evidence = (
        Fact("few_blocks", {"blocks": blocks, "sms": subject.timeline.device.num_sms or 0}),
        Fact("bandwidth_of_kernels", {"share": used, "time_share": share}),
    )
    return proposal(subject, new, few, evidence, 0.7, ("kernel_reaches_bandwidth",))


def slow_rows(subject: PhaseSubject) -> Bools:
    """Weight products in decode that reach less than half of the bandwidth though memory bounds them."""
    memory, compute = subject.column("memory_ns"), subject.column("compute_ns")
    return subject.is_weight & (memory >= compute) & (memory < LOW_BANDWIDTH * subject.duration)
