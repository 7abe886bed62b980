"""Elementwise work in many small kernels: what one fused kernel per chain would take.

A chain is an unbroken run, on one stream and in one step, of kernels that only read and write a few tensors once
(elementwise, norm, activation, rotary embedding, reduction, cast): between two matrix products they work on the same
activations. Fused, a chain reads what it needs and writes its result once; that is taken to be what the largest of its
kernels moves. What was idle inside the chain goes with it.

What could be wrong: a chain may write a result that is needed elsewhere, and keeps that write.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceanalyzer.findings import cat
from traceanalyzer.findings.answer import Answer, not_applicable, passed, proposal
from traceanalyzer.findings.change import MINIMAL_KERNEL_NS
from traceanalyzer.findings.model import Fact
from traceanalyzer.findings.subject import Bools, Floats, PhaseSubject

FUSIBLE = ("elementwise", "norm", "activation", "rope", "copy", "reduction", "quant")
MATTERS = 0.15
"""Share of the step above which such kernels are worth fusing (method: advice)."""


@dataclass(frozen=True)
class Chains:
    """Chains of two and more kernels. `of` numbers the chain of each row of the subject, -1 for none."""

    of: np.ndarray
    kernels: int
    longest: int

    @property
    def rows(self) -> Bools:
        """Rows that are part of a chain."""
        return self.of >= 0

    @property
    def count(self) -> int:
        """Number of chains."""
        return int(self.of.max(initial=-1)) + 1


def fusible(subject: PhaseSubject) -> Bools:
    """Kernels that could be fused with their neighbours; the tail after the last matrix product is the sampler's."""
    rows = subject.of_category(*FUSIBLE) & ~cat.cache_copies(subject)
    return rows & ~after_last(subject, subject.is_matrix)


def after_last(subject: PhaseSubject, rows: Bools) -> Bools:
    """Rows that come after the last of some rows in their step; none in a step without such a row."""
    position = np.arange(len(subject.rows))
    step = subject.rows["step"].to_numpy()
    last = np.full(len(position), -1, np.int64)
    if rows.any():
        numbers, index = np.unique(step, return_inverse=True)
        at = np.full(len(numbers), len(position), np.int64)
        found = np.full(len(numbers), -1, np.int64)
        np.maximum.at(found, index[rows], position[rows])
        at[found >= 0] = found[found >= 0]
        last = at[index]
        return np.asarray(position > last)
    return np.zeros(len(position), np.bool_)


def find(subject: PhaseSubject, rows: Bools) -> Chains:
    """The chains among some rows."""
    step, stream = subject.rows["step"].to_numpy(), subject.rows["stream"].to_numpy()
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (step[1:] != step[:-1]) | (stream[1:] != stream[:-1]) | ~rows[:-1] | ~rows[1:]
    number = np.cumsum(begins) - 1
    length = np.bincount(number, weights=rows, minlength=1)
    keep = rows & (length[number] >= 2)
    of = np.full(len(rows), -1, np.int64)
    if keep.any():
        of[keep] = np.unique(number[keep], return_inverse=True)[1]
    return Chains(of, int(keep.sum()), int(length.max(initial=0)))


def unfused(subject: PhaseSubject) -> Answer:
    """Do elementwise kernels that could be one take a large part of the step?"""
    rows = fusible(subject)
    if not subject.is_matrix.any():
        return not_applicable("no_matrix_products")
    chains = find(subject, rows)
    share = (subject.time(rows) + subject.per_step(subject.gap_before, inner(chains))) / subject.step_ns
    if share <= MATTERS:
        return passed("elementwise_small", share=share)
    if not chains.count:
        return passed("no_chains", share=share)
    known = chains.rows & subject.rows["memory_ns"].notna().to_numpy()
    trust = subject.time(known) / subject.time(chains.rows)
    gone, stays, stays_ns = fused(subject, chains)
    new = np.where(stays, stays_ns, subject.duration)
    evidence = (
        Fact("elementwise_share", {"share": share, "count": chains.kernels / subject.count}),
        Fact("chains", {"count": chains.count / subject.count, "longest": chains.longest}),
        *_shortness(subject),
    )
    assumptions = ("chain_moves_its_largest", "minimal_kernel")
    return proposal(subject, new, chains.rows, evidence, 0.8 * (0.6 + 0.4 * trust), assumptions, gone=gone)


def _shortness(subject: PhaseSubject) -> tuple[Fact, ...]:
    """How many of a step's kernels are over before the next one could be launched."""
    stats = subject.launching
    return () if stats is None else (
        Fact("kernels_under_5_us", {"share": stats.short_share, "time": stats.short_time_share}),
    )  # fmt: skip


def inner(chains: Chains) -> Bools:
    """Rows of a chain but for its first one: what is idle before them is idle inside the chain."""
    out = np.zeros(len(chains.of), np.bool_)
    out[1:] = (chains.of[1:] >= 0) & (chains.of[1:] == chains.of[:-1])
    return out


def fused(subject: PhaseSubject, chains: Chains) -> tuple[Bools, Bools, Floats]:
    """Which kernels go, which one of each chain stays (its longest), and the time that one takes.

    That is the traffic of the chain's largest kernel at the bandwidth that the card reaches, 2 us at least, and no more
    than the longest kernel takes now; where traffic is not known, what the longest takes now. A chain that would not
    get shorter stays as it is.
    """
    reach = subject.timeline.device.achievable_gbs or np.nan
    peak = subject.timeline.device.bandwidth_gbs or np.nan
    memory = subject.column("memory_ns") * peak / reach
    inside, number = chains.rows, chains.of
    total, largest, longest = np.zeros((3, chains.count))
    np.add.at(total, number[inside], subject.duration[inside])
    np.maximum.at(longest, number[inside], subject.duration[inside])
    np.maximum.at(largest, number[inside], np.where(np.isnan(memory[inside]), np.inf, memory[inside]))
    new = np.minimum(np.maximum(largest, MINIMAL_KERNEL_NS), longest)
    shorter = new < total
    order = np.lexsort((-subject.duration, np.where(inside, number, chains.count)))
    order = order[: int(inside.sum())]
    first = np.ones(len(order), np.bool_)
    first[1:] = number[order][1:] != number[order][:-1]
    stays = np.zeros(len(inside), np.bool_)
    stays[order[first]] = True
    fits = inside & np.append(shorter, False)[number]
    stays_ns = np.append(new, np.nan)[number]
    return fits & ~stays, fits & stays, np.asarray(stays_ns)
