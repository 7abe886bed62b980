"""What the simulated requests saw: time to the first token, and from each token to the next.

A request that is served by n passes and puts out m tokens gets its first token from pass n - m + 1; each later pass
gives one more. Times are the card's: from the start of a pass to the start of the next one of the same request, and for
the first token to the end of the pass that made it.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from statistics import median
from typing import Any


class Requests:
    """Collects, per request, the passes that served it. Times in ns."""

    def __init__(self, output: int, skip_prefill: bool, per_pass: int = 1) -> None:
        """`output` tokens per request; where the prefill was skipped, its passes are all decode.

        Decode passes give `per_pass` tokens each, the last one the rest.
        """
        self._output = output
        self._per_pass = per_pass
        self._giving = 1 + -(-(output - 1) // per_pass)  # passes that give tokens
        self._skip_prefill = skip_prefill
        self._served: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._first: list[int] = []
        self._between: list[float] = []
        self.finished = 0

    def serve(self, requests: tuple[int, ...], start: int, end: int) -> None:
        """One pass served these requests."""
        for request in requests:
            self._served[request].append((start, end))

    def finish(self) -> None:
        """All requests so far have put out their last token."""
        for passes in self._served.values():
            first = 0 if self._skip_prefill else len(passes) - self._giving
            if first < 0:
                continue
            self.finished += 1
            decoding = passes if self._skip_prefill else passes[first + 1 :]
            if not self._skip_prefill:
                self._first.append(passes[first][1] - passes[0][0])
            periods = (after[0] - before[0] for before, after in pairwise(decoding))
            self._between += periods if self._per_pass == 1 else (period / self._per_pass for period in periods)
        self._served.clear()

    def document(self, prompt: int) -> dict[str, Any]:
        """The truth's `request` block: medians in ns, null where no request finished."""
        return {
            "requests": self.finished,
            "input_tokens": prompt,
            "output_tokens": self._output,
            "ttft_ns_p50": median(self._first) if self._first else None,
            "tpot_ns_p50": median(self._between) if self._between else None,
        }
