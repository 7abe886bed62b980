"""What torch and the launcher say of this process: versions, rank, device. Nothing is initialised by asking.

What could be wrong: a launcher that says the rank in variables of its own gives none; the device stays open until a
model runs, and is then that of the process, not of each tensor.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from .architecture import known

_RANKS = {"rank": "RANK", "local_rank": "LOCAL_RANK", "world_size": "WORLD_SIZE"}
"""Fact -> the variable that torchrun and accelerate set."""
ENGINES = ("transformers", "vllm", "sglang")


def at_import() -> dict[str, Any]:
    """What is known as soon as torch is there."""
    version = sys.modules["torch"].version
    built = bool(getattr(version, "cuda", None) or getattr(version, "hip", None))
    return {
        "torch": str(sys.modules["torch"].__version__),
        "cuda": getattr(version, "cuda", None),
        "device": None if built else "cpu",
        **{fact: _number(os.environ.get(name)) for fact, name in _RANKS.items()},
    }


def engines() -> dict[str, str]:
    """Versions of the engines that this process has imported."""
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in ENGINES}
    return {name: version for name, version in found.items() if isinstance(version, str)}


def running() -> dict[str, Any]:
    """What is known once a model runs: the device, and the GPU if CUDA is in use."""
    torch = sys.modules["torch"]
    if not torch.cuda.is_initialized():
        return {"device": "cpu"}
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    gpu = known(
        name=properties.name, memory_bytes=properties.total_memory, count=torch.cuda.device_count(), index=index,
        uuid=None if uuid is None else str(uuid),
    )  # fmt: skip
    return {"device": "rocm" if getattr(torch.version, "hip", None) else "cuda", "gpu": gpu}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
