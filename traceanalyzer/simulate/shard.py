"""What one rank of a simulated run holds: its share of the model, on its card.

Column-parallel: query, key and value heads, the MLP's first matrices, the lm_head. Row-parallel: the output projection
and the MLP's last matrix, each followed by an all-reduce. Norms, the embedding table and the router are whole on every
rank; so are key heads where there are fewer than ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from traceanalyzer.catalog.models import ModelConfig
from traceanalyzer.simulate.cost import SIZES, WORDS, Card
from traceanalyzer.simulate.program import Scalar, Tensor
from traceanalyzer.simulate.scenario import Scenario

#: An argument that was not given.
NONE = Scalar("", "")
#: Keys and values per page of a static cache.
PAGE = 16

_ACTIVATIONS = {"Gemma": "gelu", "GPT2": "gelu", "Falcon": "gelu", "OPT": "relu"}
#: Models whose Hugging Face code multiplies queries, keys and values (and gate and up) in one matrix.
_MERGED = ("GPT2", "Falcon", "Phi3")


@dataclass(frozen=True)
class Shard:
    """One rank's share; `model`, `scenario` and `card` are whole."""

    model: ModelConfig
    scenario: Scenario
    card: Card

    @property
    def heads(self) -> int:
        """Query heads of this rank."""
        return self.model.heads // self.scenario.ranks

    @property
    def kv_heads(self) -> int:
        """Key heads of this rank, at least one."""
        return max(1, self.model.kv_heads // self.scenario.ranks)

    @property
    def head_dim(self) -> int:
        """Size of one head."""
        return self.model.head_dim or 0

    @property
    def vocab(self) -> int:
        """Rows of the lm_head on this rank."""
        return math.ceil(self.model.vocab / self.scenario.ranks)

    @property
    def dtype(self) -> str:
        """Data type of the activations."""
        return self.scenario.dtype

    @property
    def word(self) -> str:
        """PyTorch's word for it."""
        return WORDS[self.scenario.dtype]

    @property
    def size(self) -> int:
        """Bytes of one activation."""
        return SIZES[self.scenario.dtype]

    @property
    def kv_size(self) -> int:
        """Bytes of one number in the cache."""
        return 1 if self.scenario.kv == "fp8" else self.size

    @property
    def kv_word(self) -> str:
        """PyTorch's word for the cache's data type; fp8 caches are recorded as bytes."""
        return "unsigned char" if self.scenario.kv == "fp8" else self.word

    @property
    def host_ns(self) -> int:
        """The host's time in an op that launches."""
        return self.scenario.costs.op_host_ns

    @property
    def view_ns(self) -> int:
        """The host's time in an op that only makes a view or calls another: about a fifth of a launching one's."""
        return self.scenario.costs.op_host_ns // 5

    @property
    def merged(self) -> bool:
        """Whether queries, keys and values come out of one matrix, and gate and up out of another."""
        return self.scenario.fused or self.model.architecture.startswith(_MERGED)

    @property
    def activation(self) -> str:
        """The MLP's activation: silu, gelu or relu."""
        known = (name for prefix, name in _ACTIVATIONS.items() if self.model.architecture.startswith(prefix))
        return next(known, "silu")

    @property
    def class_name(self) -> str:
        """What the model's Python classes begin with ("Llama")."""
        name = self.model.architecture.split()[-2] if " " in self.model.architecture else self.model.architecture
        for ending in ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel"):
            name = name.removesuffix(ending)
        return name

    def tensor(self, *dims: int, strides: tuple[int, ...] | None = None, word: str | None = None) -> Tensor:
        """A tensor of activations, or of another type."""
        return Tensor(dims, word or self.word, strides)


def contiguous(dims: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides = [1] * len(dims)
    for axis in range(len(dims) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * dims[axis + 1]
    return tuple(strides)


def strides_of(tensor: Tensor) -> tuple[int, ...]:
    """A tensor's strides, spelled out."""
    return contiguous(tensor.dims) if tensor.strides is None else tensor.strides


def words(values: tuple[int, ...]) -> str:
    """A list of numbers as concrete inputs hold it."""
    return "[" + ", ".join(map(str, values)) + "]"
