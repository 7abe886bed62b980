"""What a step costs while nothing is recorded: the wrapper around a Hugging Face forward pass, armed and idle.

The wrapper, with its description of a decode step, is put around a call that does nothing, and timed against that call
alone; blocks of both alternate and the least of each counts, since whatever else the machine does only adds. Beside it
stands a real decode step of a small random model: the ratio is the share of such a step, far more than of a real one.

    python benchmarks/armed.py [--blocks 200]

What could be wrong: a call that does nothing leaves the caches to the wrapper; in a real run it finds them cold. The
prototype took 3.4 us where this was first measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from tests.collect.runtime import Runtime
from traceanalyzer.collect.inside import huggingface, recorder, steps
from traceanalyzer.collect.inside.runtime import process

CALLS = 500


def least_ns(calls: list[Callable[[], object]], blocks: int) -> list[float]:
    """Nanoseconds of each call: the least mean of a block, blocks of all calls in turn."""
    found = [float("inf")] * len(calls)
    for _ in range(blocks):
        for index, call in enumerate(calls):
            start = time.perf_counter_ns()
            for _ in range(CALLS):
                call()
            found[index] = min(found[index], (time.perf_counter_ns() - start) / CALLS)
    return found


def measure(blocks: int) -> dict[str, float]:
    """Microseconds of the wrapper, of its parts and of a small model's decode step; the share of that step."""
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=16, num_attention_heads=4)
    ).eval()
    ids, cache = torch.ones(1, 1, dtype=torch.long), DynamicCache(config=model.config)

    def nothing(self: object, *args: object, **kwargs: object) -> None:
        """Stands for a forward pass."""

    passes = {"input_ids": ids, "attention_mask": ids, "position_ids": ids, "cache": cache, "use_cache": True}
    with torch.inference_mode():
        model(**{**passes, "return_dict": True})
        wrapped = steps.annotate(nothing, huggingface.describe)
        bare, armed, describing = least_ns(
            [
                lambda: nothing(model, **passes, return_dict=True),
                lambda: wrapped(model, **passes, return_dict=True),
                lambda: huggingface.describe((model,), passes),
            ],
            blocks,
        )
        start = time.perf_counter_ns()
        for _ in range(50):
            model(**passes)
        step = (time.perf_counter_ns() - start) / 50
    added = armed - bare
    return {
        "armed_us": added / 1e3, "describe_us": (describing - bare) / 1e3, "step_us": step / 1e3, "share": added / step,
    }  # fmt: skip


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=200)
    with tempfile.TemporaryDirectory() as folder:
        runtime = Runtime(Path(folder) / "run")
        process.attach(str(runtime.folder))
        recorder.install()
        steps.meet_recorder(recorder.boundary)
        sys.stdout.write(json.dumps(measure(parser.parse_args().blocks), indent=1) + "\n")


if __name__ == "__main__":
    main()
