"""Print docs/accuracy.md: `PYTHONPATH=. python docs/accuracy.py > docs/accuracy.md`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.analysis.accuracy import SCENARIOS, Measured, measure

_HEAD = """# How right the figures are where a trace says nothing

Simulated runs ([simulate.md](simulate.md)), written without shapes, operators and labels and without what a recorder
knows of the model: runtime calls and kernels are all that is left. Each is compared with its truth. The simulator
shares no code with the analysis; what both sides believe wrongly of the world no such table shows.

- *Phases*: the share of GPU time that stands in its true phase, with the model given (`--model`) and without it.
- *FLOPs, bytes*: the largest relative error of a phase's total with the model given; work that stays unknown counts as
  none. A draft model's work is not counted: only the model that it drafts for is given.
- *Known without the model*: the share of kernel time (communication left out) whose FLOPs and bytes are known when
  nobody says which model it is.

| run | phases | phases, no model | FLOPs | bytes | FLOPs known, no model | bytes known, no model |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""
_FOOT = """
Made by `docs/accuracy.py`; the tests hold every row to 99 % of the time and 5 % of the work.
"""


def page(rows: Iterable[Measured]) -> str:
    """The page with one line per run."""
    return _HEAD + "".join(f"{_line(row)}\n" for row in rows) + _FOOT


def _line(row: Measured) -> str:
    shares = (row.phases_right, row.phases_right_alone, row.flops_error, row.bytes_error, row.flops_known,
              row.bytes_known)  # fmt: skip
    return f"| {row.name} | " + " | ".join(f"{100 * share:.1f} %" for share in shares) + " |"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(page(measure(name, Path(folder)) for name in SCENARIOS))
