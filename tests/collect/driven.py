"""Imported by the scripts of the recorder's tests: attaches the process by hand, and gives it steps to run.

Nothing of the boot or of the engines' hooks is involved: what these scripts show is the recorder's alone.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import sys
import threading
import time
from pathlib import Path

import torch

HOME = Path(os.environ["DRIVEN"]) / "boot" / "_traceanalyzer_inside"
_spec = importlib.util.spec_from_file_location(
    "_traceanalyzer_inside", HOME / "__init__.py", submodule_search_locations=[str(HOME)]
)
sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules[_spec.name])
recorder = importlib.import_module("_traceanalyzer_inside.recorder")
arbiters = importlib.import_module("_traceanalyzer_inside.arbiter")
arbiter = arbiters.arbiter
guard = importlib.import_module("_traceanalyzer_inside.guard")
layout = importlib.import_module("_traceanalyzer_inside.layout")
process = importlib.import_module("_traceanalyzer_inside.runtime").process

torch.set_num_threads(1)
assert process.attach(os.environ["DRIVEN"])
recorder.install()
_matrix = torch.ones(8, 8)
_lock = threading.Lock()
_taken = 0


def step(work=None):
    """One annotated step; returns the window it was recorded in."""
    global _taken
    with _lock:
        _taken += 1
        number = _taken
    window = recorder.boundary()
    label = f"ta.step[decode n={number}]"
    with torch.autograd.profiler.record_function(label) if window else contextlib.nullcontext():
        _matrix @ _matrix
        if work is not None:
            work()
    return window


def steps(count):
    """Several of them."""
    return [step() for _ in range(count)]


def control(offset, value):
    """Write a word of the control block, as the supervisor would."""
    layout.write_word(process.control, offset, value)


def until(condition, seconds=120):
    """Wait for something."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def tell(**facts):
    """One line of JSON for the test to read."""
    print(json.dumps(facts), flush=True)
