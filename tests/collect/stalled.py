"""The recorded script with stalls: a tiny Llama generates, and a processor of its logits reads a value and sleeps."""

from __future__ import annotations

import time
from typing import Any

from generation import generate, tiny

SLEEP_S = 0.004


class Stalling:
    """Called once per token, after the model and before the sampling."""

    def __call__(self, ids: Any, scores: Any) -> Any:
        if scores[0].max().item() < 1e9:
            time.sleep(SLEEP_S)
        return scores


if __name__ == "__main__":
    model = tiny()
    generate(model)
    generate(model, new=24, logits_processor=[Stalling()])
