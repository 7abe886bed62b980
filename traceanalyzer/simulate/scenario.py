"""What is simulated: one generation run, described completely. The same scenario always gives the same bytes.

What could be wrong: durations come from a cost model (a share of the roofline plus a fixed time per kernel), not from a
card; what a simulated run proves is that the analysis finds the truth that was put in, never how fast a GPU is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Costs:
    """How fast the simulated card and host are. Shares are of the sheet's peaks; times are nanoseconds."""

    matrix_compute: float = 0.70
    matrix_bandwidth: float = 0.80
    attention_compute: float = 0.55
    attention_bandwidth: float = 0.70
    vector_bandwidth: float = 0.80
    kernel_fixed_ns: int = 1_500  # what even an empty kernel takes
    queue_latency_ns: int = 1_200  # from one kernel's end to the next one's start when it was queued
    launch_call_ns: int = 4_000  # the host's cudaLaunchKernel
    launch_latency_ns: int = 3_000  # from the call's return to the kernel's start on an idle card
    graph_launch_ns: int = 12_000  # the host's cudaGraphLaunch
    op_host_ns: int = 2_500  # the host's own time per op
    between_steps_ns: int = 150_000  # scheduler, detokenising: host time between passes
    link_gbs: float = 300.0  # per direction, all-reduce
    all_reduce_fixed_ns: int = 12_000


#: What can be planted; `plants` says what each is.
KINDS = ("launch", "graph_launch", "sync", "allocator", "scheduler", "input", "rank")


@dataclass(frozen=True)
class Plant:
    """A cause of idle time that is put in: so many ns, at every so manieth place."""

    kind: str
    ns: int
    every: int = 1


@dataclass(frozen=True)
class Scenario:
    """One run: `batch` requests of `prompt` tokens in and `output` tokens out each."""

    model: str = "llama-3.1-8b"
    gpu: str = "a100-sxm4-80gb"
    batch: int = 1
    prompt: int = 512
    output: int = 200
    # "graph": decode passes replay one graph; "piecewise": every pass replays one before, between and after attention.
    mode: Literal["eager", "graph", "piecewise", "full-and-piecewise"] = "eager"
    dtype: Literal["bf16", "fp16", "fp32"] = "bf16"  # activations
    weights: Literal["same", "fp8", "int8", "int4", "fp4"] = "same"  # "same": as the activations
    kv: Literal["same", "fp8"] = "same"
    ranks: int = 1  # tensor parallel
    together: bool = True  # False: groups of requests take turns, each pass serves one of them
    group_size: int = 1  # requests in such a group: 0 to n - 1, n to 2n - 1, ...
    chunk: int | None = None  # chunked prefill: at most this many prompt tokens a pass, decoding requests ride along
    arrivals_every: int = 0  # passes between the arrivals of two requests; 0: all at once
    fused: bool = True  # norm, rotary embedding, gated activation: one kernel each, or chains of them
    kv_cache: Literal["static", "cat"] = "static"  # "cat" copies the whole cache for every token
    attention: Literal["flash", "math"] = "flash"
    split_kv: bool = True  # False: decode attention has one block per sequence and KV head, and fills few SMs
    sampler: Literal["greedy", "full"] = "greedy"  # "full": fp32 softmax, sort, scan and draw over the vocabulary
    sync_every_step: bool = True  # the sampled token is read by the host before it goes on
    labels: bool = True  # ta.step[...] around every pass
    skip_prefill: bool = False  # the window opened after the prompts were read
    costs: Costs = field(default_factory=Costs)
    seed: int = 0
    # What stands below came later: it counts for a trace's identity only where it differs from its default.
    capture_sizes: tuple[int, ...] = ()  # graphs are captured for so many tokens; (): each replay at its own size
    plants: tuple[Plant, ...] = ()  # causes of idle time
    prefix: int = 0  # tokens of each prompt whose keys and values the cache holds already
    speculate: int = 0  # tokens that a draft model guesses before the target checks them
    draft: str | int = 1  # a model, or how many of the target's own layers
    accepted: int | None = None  # guesses that are right, of each `speculate`; None: half of them

    @property
    def paged(self) -> bool:
        """Whether every pass attends over a paged cache with the kernel for sequences of several lengths.

        A graph has the same kernels in each replay, whichever lengths its sequences have.
        """
        ragged = self.chunk is not None or self.arrivals_every > 0
        graphs = self.mode in ("piecewise", "full-and-piecewise") or (self.mode == "graph" and ragged)
        return graphs or bool(self.capture_sizes) or self.speculate > 0 or self.prefix > 0

    @property
    def right(self) -> int:
        """How many guesses are right."""
        return self.speculate // 2 if self.accepted is None else self.accepted
