"""A tiny model in a loop, with a module of its own so that `--step looped:Model.forward` finds it.

    looped.py SECONDS [threads N] [fork] [profile PAUSE]

Prints, as JSON, how many steps and sessions of its own profiler there were, and the longest gap between two steps.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import torch


class Model:
    """Some matrix products."""

    def __init__(self) -> None:
        self.weight = torch.eye(64)
        self.state = torch.ones(1, 64)

    def forward(self, products: int = 30) -> torch.Tensor:
        x = self.state
        for _ in range(products):
            x = x @ self.weight
        return x


def loop(until: float, pause: float) -> list[float]:
    """Steps until then; returns when each began."""
    model, began = Model(), []
    while time.monotonic() < until:
        began.append(time.monotonic())
        model.forward()
        time.sleep(pause)
    return began


async def served(until: float, pause: float, pool: ThreadPoolExecutor) -> list[float]:
    """The same from an event loop, each step in one of its threads."""
    model, began = Model(), []
    running = asyncio.get_running_loop()
    while time.monotonic() < until:
        began.append(time.monotonic())
        await running.run_in_executor(pool, model.forward)
        await asyncio.sleep(pause)
    return began


async def serve(until: float, pause: float, threads: int) -> list[float]:
    """Several requests at once."""
    with ThreadPoolExecutor(threads) as pool:
        found = await asyncio.gather(*(served(until, pause, pool) for _ in range(threads)))
    return found[0]


def profiled(until: float, pause: float, done: list[float]) -> None:
    """The script's own profiler, again and again."""
    while time.monotonic() < until:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
            torch.ones(8, 8) @ torch.ones(8, 8)
            time.sleep(0.05)
        assert any(event.name == "aten::mm" for event in prof.events())
        done.append(time.monotonic())
        time.sleep(pause)


def main(seconds: float, words: list[str]) -> None:
    """Run and report."""
    torch.set_num_threads(1)
    until = time.monotonic() + seconds
    if "fork" in words and os.fork() == 0:
        loop(until, 0.01)
        os._exit(0)
    others: list[threading.Thread] = []
    done: list[float] = []
    if "profile" in words:
        others.append(threading.Thread(target=profiled, args=(until, float(words[words.index("profile") + 1]), done)))
    for other in others:
        other.start()
    if "threads" in words:
        began = asyncio.run(serve(until, 0.005, int(words[words.index("threads") + 1])))
    else:
        began = loop(until, 0.01)
    for other in others:
        other.join()
    gaps = [later - sooner for sooner, later in pairwise(began)]
    counts = {"sessions": len(done), "steps": len(began)}
    json.dump({**counts, "worst_ms": max(gaps) * 1e3, "median_ms": sorted(gaps)[len(gaps) // 2] * 1e3},
              sys.stdout)  # fmt: skip


if __name__ == "__main__":
    import looped  # itself, under the name that --step gives

    looped.main(float(sys.argv[1]), sys.argv[2:])
