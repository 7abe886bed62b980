"""What is counted in each step: what its label says, else its shapes, else its launch grids, else nothing.

What could be wrong with it: see `grids` for what a grid may mislead about, and `follow` for contexts counted up.
"""

from __future__ import annotations

from math import isnan, nan

import numpy as np
import numpy.typing as npt

from traceanalyzer.analysis.steps.follow import Followed
from traceanalyzer.analysis.steps.measured import Measured
from traceanalyzer.analysis.steps.model import FACTS
from traceanalyzer.analysis.steps.phase import Verdict
from traceanalyzer.trace.tables import MISSING


def counts(known: Measured, judged: list[Verdict], followed: Followed) -> dict[str, npt.NDArray[np.float64]]:
    """The columns of `FACTS` by group, NaN where unknown."""
    out = {name: np.full(known.plan.groups, nan) for name in FACTS}
    for i, verdict in enumerate(judged):
        counted = _counted(known, i, verdict.phase)
        _add_followed(counted, followed, i, verdict.phase)
        label = known.plan.labels[i]
        for name in FACTS:
            stated = getattr(label, name) if label is not None else nan
            out[name][i] = counted.get(name, nan) if isnan(stated) else stated
        ran, useful = float(known.facts["tokens"][i]), out["tokens"][i]
        if isnan(out["padded_tokens"][i]) and label is not None and useful <= ran <= max(2 * useful, 8):
            out["padded_tokens"][i] = ran - useful
    return out


def _counted(known: Measured, group: int, phase: str) -> dict[str, float]:
    """Counts of one step from its shapes: what no label says. Absent keys are unknown."""
    ran, written, q, logits = (int(known.facts[name][group]) for name in ("tokens", "written", "q", "logits"))
    ids, ids_batch = int(known.ids["tokens"][group]), int(known.ids["batch"][group])
    context = int(known.order.context[group])
    launched, sequences_launched = int(known.grids.tokens[group]), int(known.grids.sequences[group])
    total = next((n for n in (ids, ran, launched, written) if n > 0), MISSING)
    out: dict[str, float] = {}
    if total > 0:
        out["tokens"] = float(total)
    batch = max(ids_batch, int(known.facts["batch"][group]))
    sequences = batch if batch > 0 and (ids_batch > 0 or batch * q == total) else MISSING
    if sequences == MISSING and phase == "prefill" and 0 < logits < total:
        sequences = logits
    if total == launched > 0 and known.grids.padding[group] >= 0 and ran == MISSING:
        out["padded_tokens"] = float(known.grids.padding[group])
    if sequences == MISSING and total == launched > 0:
        rows = int(known.grids.logits[group])
        sequences = rows if sequences_launched == MISSING and 0 < rows < total else sequences_launched
    if sequences == MISSING and (total == 1 or (phase == "decode" and q in (1, MISSING))):
        sequences = total
    if sequences > 0:
        out["sequences"] = float(sequences)
        if context > 0 and sequences * q == total:
            out["context_sum"] = float(sequences * context)
            out["query_context_sum"] = float(total) * context
    if phase in ("prefill", "decode"):
        other = "decode" if phase == "prefill" else "prefill"
        for kind in ("tokens", "sequences"):
            if kind in out:
                out[f"{phase}_{kind}"] = out[kind]
                out[f"{other}_{kind}"] = 0.0
    return out


def _add_followed(counted: dict[str, float], followed: Followed, group: int, phase: str) -> None:
    """Add what following the sequences told of a step, where its own kernels did not."""
    context, decoding = float(followed.context[group]), int(followed.decoding[group])
    if not isnan(context):
        counted.setdefault("context_sum", context)
        if phase == "decode" or counted.get("sequences") == 1:
            each = counted.get("tokens", nan) / counted.get("sequences", nan)
            counted.setdefault("query_context_sum", context * each)
    if phase == "mixed" and decoding > 0:
        for kind in ("tokens", "sequences"):
            if kind in counted:
                counted[f"decode_{kind}"] = float(decoding)
                counted[f"prefill_{kind}"] = counted[kind] - decoding
