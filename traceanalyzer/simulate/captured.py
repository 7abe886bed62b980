"""Graphs captured for certain numbers of tokens: a smaller pass is padded to the next one, a larger one runs eagerly.

Padded rows go through every kernel that works token by token; they are written to no cache and attend to nothing
(vLLM gives them slot -1 and no queries).
What could be wrong: engines also bound what they capture by memory, and capture other sizes for other models.
"""

from __future__ import annotations

from traceanalyzer.errors import InputError
from traceanalyzer.simulate.scenario import Scenario

#: vLLM's own sizes: 1, 2, 4, then multiples of 8 up to 256 and of 16 up to 512 (`vllm/config/vllm.py`, 0.33).
USUAL = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
_MOST_SIZES = 1024
_MOST_TOKENS = 1 << 20


def size(scenario: Scenario, tokens: int, queries: int = 1) -> int | None:
    """How many tokens a replay for so many computes, in whole sequences of `queries`; None: no graph holds them."""
    if not scenario.capture_sizes:
        return tokens
    fitting = (-(-one // queries) * queries for one in scenario.capture_sizes)
    return min((one for one in fitting if one >= tokens), default=None)


def check(scenario: Scenario) -> None:
    """Refuse sizes that nothing can be captured for.

    Raises:
        InputError: they are no ascending whole numbers, or nothing is captured.
    """
    sizes = scenario.capture_sizes
    if not sizes:
        return
    whole = all(isinstance(one, int) and not isinstance(one, bool) for one in sizes)
    if (
        not whole
        or sorted(set(sizes)) != [*sizes]
        or not 1 <= sizes[0] <= sizes[-1] <= _MOST_TOKENS
        or len(sizes) > _MOST_SIZES
    ):
        raise InputError(
            "the captured sizes are no ascending whole numbers of tokens", f"from 1 to {_MOST_TOKENS}, as 1,2,4,8"
        )
    if scenario.mode == "eager":
        raise InputError("without graphs nothing is captured", "use --mode graph")
