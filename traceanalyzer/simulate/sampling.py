"""From the last hidden states to the next tokens on the host: lm_head, sampler, copy.

Sorting compares, so its FLOPs are unknown; its bytes are what each pass of a radix sort reads and writes.
"""

from __future__ import annotations

import math

from traceanalyzer.simulate import matmul, names, vector, views
from traceanalyzer.simulate.cost import Grid, Launching
from traceanalyzer.simulate.program import Launch, Op, Scalar, Tensor
from traceanalyzer.simulate.shard import NONE, Shard

_RADIX_PASSES = 4
_ITEMS_PER_BLOCK = 6_144


def head(shard: Shard, tokens: int, sequences: int) -> tuple[Op, ...]:
    """The lm_head over so many of the tokens, each sequence's last or all that are checked; never quantised."""
    hidden = shard.model.hidden
    ops: list[Op] = []
    if sequences < tokens:
        ops.append(_last_rows(shard, tokens, sequences))
    rows = (sequences,) if shard.scenario.fused else (sequences, 1)
    ops.append(matmul.linear(shard, rows, hidden, shard.vocab, quantised=False))
    return (*ops, *matmul.all_gather(shard, sequences, shard.vocab))


def sample(shard: Shard, sequences: int) -> tuple[Op, ...]:
    """The sampler, in fp32, and the copy of the drawn ids to the host."""
    return (*choose(shard, sequences), fetch(shard, sequences))


def verify(shard: Shard, sequences: int) -> tuple[Op | Launch, ...]:
    """The sampler over all checked tokens, the kernel that keeps the right guesses, and the copy of what it kept.

    Triton's kernels are launched outside of every op; one block a sequence (`vllm/v1/sample/rejection_sampler.py`).
    """
    guesses = shard.scenario.speculate
    checked = sequences * (guesses + 1)
    named = "rejection_greedy_sample_kernel", Launching((sequences, 1, 1), (32, 1, 1), 24)
    moved = 8 * sequences * guesses + 8 * checked + 4 * checked
    kept = vector.kernel(shard, named, "sampling", sequences * guesses, moved, "fp32")
    return (*choose(shard, checked), Launch(kept), fetch(shard, checked))


def choose(shard: Shard, sequences: int) -> tuple[Op, ...]:
    """The sampler, in fp32."""
    vocab = shard.vocab * shard.scenario.ranks
    logits = shard.tensor(sequences, vocab)
    ops: list[Op] = []
    if shard.dtype != "fp32":
        ops.append(vector.cast(shard, logits, "fp32")[0])
    wide = Tensor((sequences, vocab), "float")
    if shard.scenario.sampler == "full":
        ops += [vector.softmax(shard, wide), _sort(shard, wide), _cumsum(shard, wide), _multinomial(shard, wide)]
    else:
        ops.append(_argmax(shard, wide))
    return tuple(ops)


def fetch(shard: Shard, sequences: int) -> Op:
    """The copy of ids to the host."""
    ids, host = Tensor((sequences,), "long int"), Scalar("False")
    copied = shard.card.copy("DtoH", 8 * sequences, blocking=shard.scenario.sync_every_step)
    copying = Op("aten::copy_", (ids, ids, host), (Launch(copied),), shard.host_ns)
    made = Op("aten::_to_copy", (ids, NONE, NONE, NONE, NONE, host, NONE), (copying,), shard.view_ns)
    return Op("aten::to", (ids, NONE, host, host, NONE), (made,), shard.view_ns)


def _last_rows(shard: Shard, tokens: int, sequences: int) -> Op:
    hidden = shard.model.hidden
    name = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)"
    launching = Launching((sequences, 1, 1), (256, 1, 1), 32)
    moved = 2 * sequences * hidden * shard.size + 8 * sequences
    done = vector.kernel(shard, (name, launching), "gather", 0, moved, shard.dtype)
    arguments = (shard.tensor(tokens, hidden), Scalar("0"), Tensor((sequences,), "long int"))
    return vector.op(shard, "aten::index_select", arguments, done)


def _argmax(shard: Shard, wide: Tensor) -> Op:
    rows, count = wide.dims[0], views.numel(wide)
    named = names.reduction("ArgMax", "fp32", rows)
    done = vector.kernel(shard, named, "argmax", count, 4 * count + 8 * rows, "fp32")
    return vector.op(shard, "aten::argmax", (wide, Scalar("-1"), Scalar("False")), done)


def _sort(shard: Shard, wide: Tensor) -> Op:
    """A radix sort of values with their indices: a histogram, and four passes over both."""
    count = views.numel(wide)
    policy = "cub::DeviceRadixSortPolicy<float, long, int>::Policy800"
    grid: Grid = (math.ceil(count / _ITEMS_PER_BLOCK), 1, 1)
    launching = Launching(grid, (256, 1, 1), 63, 39_936)
    first = f"void cub::DeviceRadixSortHistogramKernel<{policy}, true, float, int>(int*, float const*, int, int, int)"
    second = f"void cub::DeviceRadixSortOnesweepKernel<{policy}, true, float, long, int, int>"
    second += "(int*, int*, int*, int const*, float*, float const*, long*, long const*, int, int, int)"
    histogram = vector.kernel(shard, (first, launching), "sort", None, 4 * count, "fp32")
    sweep = vector.kernel(shard, (second, launching), "sort", None, 2 * (4 + 8) * count, "fp32")
    arguments = (wide, Scalar("-1"), Scalar("True"))
    return vector.op(shard, "aten::sort", arguments, histogram, *(sweep,) * _RADIX_PASSES)


def _cumsum(shard: Shard, wide: Tensor) -> Op:
    count = views.numel(wide)
    name = "void at::native::tensor_kernel_scan_innermost_dim<float, std::plus<float> >(float*, float const*, "
    named = name + "unsigned int, unsigned int, float, std::plus<float>)", Launching((wide.dims[0], 1, 1), (32, 16, 1))
    done = vector.kernel(shard, named, "scan", count, 8 * count, "fp32")
    return vector.op(shard, "aten::cumsum", (wide, Scalar("-1"), NONE), done)


def _multinomial(shard: Shard, wide: Tensor) -> Op:
    """One draw per row: exponential noise, a quotient and the largest."""
    count = views.numel(wide)
    name = "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4, "
    name += "at::native::templates::cuda::exponential_kernel<at::CUDAGeneratorImpl*> >(...)"
    launching = Launching((8 * shard.card.gpu.num_sms, 1, 1), (256, 1, 1), 40)
    drawn = vector.kernel(shard, (name, launching), "random", None, 4 * count, "fp32")
    noise = vector.op(shard, "aten::exponential_", (wide, Scalar("1."), NONE), drawn)
    quotient = vector.simple(shard, "aten::div", names.binary("Div", "fp32"), (wide, wide), "softmax", ())
    body = (noise, quotient, _argmax(shard, wide))
    return Op("aten::multinomial", (wide, Scalar("1"), Scalar("False"), NONE), body, shard.view_ns)
