"""The recorded script of the matrix: a tiny random Llama generates; in which way is chosen by its first argument.

Torch is imported late, by whatever process runs the model. Each way prints one line per generation on standard output,
so that a test sees that the script ran as it does alone.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

PROMPT, BATCH, NEW = 7, 2, 9


def tiny() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, eos_token_id=None, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def generate(model: Any, new: int = NEW, **how: Any) -> None:
    import torch

    prompt = torch.arange(BATCH * PROMPT).reshape(BATCH, PROMPT) % 100 + 1
    mask = torch.ones_like(prompt)
    with torch.inference_mode():
        found = model.generate(prompt, attention_mask=mask, max_new_tokens=new, do_sample=False, **how)
    sys.stdout.write(f"generated {int(found.shape[1]) - PROMPT}\n")  # one call: threads may do so at once
    sys.stdout.flush()


def once() -> None:
    generate(tiny())


def in_child(how: str) -> None:
    child = multiprocessing.get_context(how).Process(target=once)
    child.start()
    child.join()
    sys.exit(child.exitcode)


def forked_with_model() -> None:
    """The parent holds torch and has a window open when the child comes."""
    model = tiny()
    generate(model)
    child = multiprocessing.get_context("fork").Process(target=generate, args=(model,))
    child.start()
    child.join()
    sys.exit(child.exitcode)


def ranks() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    once()
    dist.barrier()
    dist.destroy_process_group()


def late() -> None:
    """Torch comes in another thread, long after the start."""
    time.sleep(0.3)
    thread = threading.Thread(target=once)
    thread.start()
    thread.join()


def own_profiler() -> None:
    """The script profiles its second generation itself and writes the trace where its next argument says."""
    import torch

    model = tiny()
    generate(model)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        generate(model)
    profiler.export_chrome_trace(sys.argv[2])
    generate(model)


def server() -> None:
    """Requests that overlap: an event loop hands them to threads."""
    model = tiny()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(3) as pool:
            await asyncio.gather(*(loop.run_in_executor(pool, generate, model) for _ in range(6)))

    asyncio.run(serve())


def compiled() -> None:
    import torch

    model = tiny()
    model.forward = torch.compile(model.forward, backend="eager", dynamic=True)
    generate(model)


def busy() -> None:
    """Runs until it is ended from outside."""
    model = tiny()
    generate(model)
    until = time.monotonic() + 240
    while time.monotonic() < until:
        generate(model, 32)


def idle() -> None:
    once()
    time.sleep(60)


def fails() -> None:
    once()
    raise ValueError("the script's own error")


def leaves() -> None:
    once()
    sys.exit(5)


def leaves_at_once() -> None:
    once()
    os._exit(3)


def main() -> None:
    way = sys.argv[1] if len(sys.argv) > 1 else "once"
    if way in ("spawn", "fork", "forkserver"):
        in_child(way)
    else:
        globals()[way]()


if __name__ == "__main__":
    main()
