"""What a simulated run does, before anything has a time: passes made of ops, made of ops and launches.

`passes` of a scenario are produced one at a time, so that a run of any length takes bounded memory. Everything is a
closed form of the model's shapes; kernels carry their own truth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from traceanalyzer.simulate.scenario import Plant


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor argument as a profiler records it; `dtype` is PyTorch's word ("c10::BFloat16", "long int", ...)."""

    dims: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None  # None: contiguous


@dataclass(frozen=True, slots=True)
class Scalar:
    """A scalar argument; `value` is what "Concrete Inputs" holds."""

    value: str
    kind: str = "Scalar"


Argument = Tensor | Scalar | tuple[Tensor, ...]  # a tuple is a TensorList


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel and its truth. FLOPs and bytes are algorithmic; None where a run cannot know (data-dependent)."""

    name: str
    role: str  # gemm, attention, norm, rope, activation, copy, kv_write, embedding, softmax, sort, moe, comm, ...
    duration_ns: int
    flops: float | None
    bytes: float | None  # of the card's own memory; None for communication
    dtype: str | None  # compute dtype: bf16, fp16, fp32, fp8, int8, fp4, ...
    tensor_core: bool
    weight_bytes: float = 0.0
    kv_bytes: float = 0.0
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    registers: int = 32
    shared_memory: int = 0
    stream: int = 7
    communication: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """A memcpy by the copy engine: "HtoD", "DtoH" or "DtoD"; `blocking` makes the host wait until it is done."""

    direction: str
    size: int
    duration_ns: int
    stream: int = 7
    blocking: bool = False
    late_ns: int = 0  # the blocked host goes on so much later


@dataclass(frozen=True, slots=True)
class HostCall:
    """A runtime call that launches nothing; with `drains` it first waits until the card has run everything."""

    name: str
    duration_ns: int
    drains: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch call of the host."""

    work: Kernel | Copy


@dataclass(frozen=True, slots=True)
class Replay:
    """One call that replays a graph of these kernels: part number `piece` of a pass."""

    kernels: tuple[Kernel, ...]
    piece: int


@dataclass(frozen=True, slots=True)
class Op:
    """One cpu_op: its arguments, the host's own time before its first child, and what it calls, in order."""

    name: str
    arguments: tuple[Argument, ...]
    body: tuple[Op | Launch | HostCall, ...] = ()
    host_ns: int = 0
    module: str | None = None  # the Python module that calls it, for stacks ("LlamaAttention_3")


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass with its sampling, in the order the host issues it.

    In graph mode `graph` holds the kernels replayed by one launch call and `ops` only what stays outside the graph;
    where attention stays outside, the pieces between stand among `ops`.
    """

    phase: str  # prefill, decode, mixed; draft: the small model's that guesses tokens
    tokens: int
    prefill_tokens: int
    decode_tokens: int
    sequences: int
    prefill_sequences: int
    decode_sequences: int
    context_sum: int  # keys, summed over the sequences, the new tokens included
    query_context_sum: int  # query x key, summed over the sequences
    requests: tuple[int, ...]
    ops: tuple[Op | Launch | Replay, ...]
    graph: tuple[Kernel, ...] = ()
    after: tuple[Op | Launch, ...] = field(default=())  # sampling and what follows the graph
    sync_after: bool = False  # the host waits for the card before it goes on
    host_after_ns: int = 0
    padded_tokens: int = 0  # rows without a token that the card computes too
    useful: tuple[float | None, float | None] | None = None  # FLOPs and bytes without them; None: there are none
    scheduler_ns: int = 0  # host time before the next pass, on top of `host_after_ns`
    input_ns: int = 0  # then the host waits for a request
    late_ns: int = 0  # the kernel before the first collective takes so much longer
    captured: tuple[int, ...] = ()  # what tells graphs of one size apart
    planted: tuple[Plant, ...] = ()  # causes of idle time that were put in


def launched(ops: Sequence[Op | Launch | HostCall | Replay]) -> Iterator[Kernel | Copy]:
    """What ops launch, in order."""
    for one in ops:
        if isinstance(one, Op):
            yield from launched(one.body)
        elif isinstance(one, Replay):
            yield from one.kernels
        elif isinstance(one, Launch):
            yield one.work
