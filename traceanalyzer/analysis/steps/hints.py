"""What kernels say about the phase of a step when their shapes are not recorded: names and launch grids.

    families       attention kernels that serve one phase only, by their rule or their template arguments
    query tiles    flash-attention and memory-efficient attention launch one block row per 64 or 128 queries: more than
                   one row means more than 64 queries
    vector kernels most matrix products with a vector: one token per step
    contrast       pointwise kernels launch in proportion to the tokens: a pass with many times the blocks of the
                   equal passes beside it reads a prompt, and they decode

What could be wrong with it: engines reuse kernels across phases (flash_fwd_splitkv for prompts over paged caches,
FlashInfer's prefill kernel for decode), so a family counts only where its rule says so, or its template does.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from traceanalyzer.analysis.kernels import classify
from traceanalyzer.analysis.steps.model import Bools, Floats, Ints
from traceanalyzer.analysis.steps.tokens import GEMM
from traceanalyzer.trace.tables import Trace

_BOTH = 0.25
"""Share of the rarer family among the commoner one from which a step holds both phases."""

_MOST_CHARACTERS = 2000
"""How much of a kernel's name is read."""
_FA2 = re.compile(
    r"flash_fwd(_splitkv)?_kernel<.*?>\s*,\s*((?:true|false|\d+)(?:\s*,\s*(?:true|false|\d+))*)\s*>", re.ASCII
)
_FA3 = re.compile(r"CollectiveMainloopFwdSm\d+<.*?Sm\d+\s*,\s*((?:(?:true|false)\s*,\s*)+)", re.ASCII)
_FA3_SPLIT = 10
_FLASHINFER = re.compile(r"KernelTraits<\(flashinfer::MaskMode\)(\d)\s*,\s*(\d+)u")
_TILED = re.compile(r"flash_fwd(_splitkv)?_kernel|fmha_cutlassF")
_POINTWISE = ("elementwise", "norm", "activation", "copy", "rope", "fused_triton")
CONTRAST, ALIKE = 4.0, 1.25
"""How many times the usual blocks make a long pass, and within which factor of them passes are alike."""
_MIN_ALIKE = 3
_FLASHINFER_PHASES = {("0", "16"): "decode", ("1", "128"): "prefill"}


def template_hint(name: str) -> str:
    """What the template arguments of an attention kernel say: prefill, decode or "".

    In a causal model flash-attention clears Is_causal only where the longest query is one token, and splits the keys
    (Split) only for short queries. FlashInfer picks a query tile of 16 for one token, 128 for a prompt. The argument
    orders are those of the kernels' own templates.
    """
    name = name[:_MOST_CHARACTERS]
    flags = _FA2.search(name)
    if flags:
        values = [value.strip() for value in flags.group(2).split(",")]
        if flags.group(1):
            return "prefill" if values[0] == "true" else "decode"
        return "prefill" if len(values) > 1 and values[1] == "true" else ""  # after Is_dropout; also non-causal models
    flags = _FA3.search(name)
    if flags:
        values = [value.strip() for value in flags.group(1).split(",") if value.strip()]
        if values[0] == "true":
            return "prefill"
        return "decode" if len(values) > _FA3_SPLIT and values[_FA3_SPLIT] == "true" else ""
    tiles = _FLASHINFER.search(name)
    return _FLASHINFER_PHASES.get((tiles.group(1), tiles.group(2)), "") if tiles else ""


def name_hint(name: str) -> tuple[str, str]:
    """(prefill, decode or "", strong or medium) of one attention kernel name."""
    from_template = template_hint(name)
    if from_template:
        return from_template, "strong"
    phase, _, strength = (classify(name).phase_hint or "").partition(":")
    return (phase, strength or "medium") if phase in ("prefill", "decode") else ("", "")


def step_hints(trace: Trace, rows: pd.DataFrame, group: Ints, groups: int) -> list[tuple[str, str]]:
    """For each step what its kernels' names say: prefill, decode, mixed or "", and how strongly.

    Kernels that merge split keys vote for decode only where no attention kernel says otherwise.
    """
    chosen = rows["category"].isin(("attention", "ssm")).to_numpy() & (group >= 0)
    names = np.unique(rows["name"].to_numpy()[chosen]).tolist()
    hints = {code: name_hint(trace.text(code)) for code in names}
    votes = rows.loc[chosen, ["name", "role", "grid_x"]].assign(group=group[chosen])
    votes["phase"] = votes["name"].map({code: hint[0] for code, hint in hints.items()})
    votes["strength"] = votes["name"].map({code: hint[1] for code, hint in hints.items()})
    combine = votes["role"].str.contains("combine")
    tiled = votes["name"].isin([code for code in names if _TILED.search(trace.text(code))]) & (votes["grid_x"] > 1)
    votes.loc[tiled, ["phase", "strength"]] = ["prefill", "strong"]
    out = _tally(votes[~combine & (votes["phase"] != "")], groups)
    merged = _tally(votes[combine & (votes["phase"] != "")], groups)
    gemv = _only_gemv(rows, group, groups)
    for i, hint in enumerate(out):
        if not hint[0]:
            out[i] = merged[i] if merged[i][0] else (("decode", "vector") if gemv[i] else ("", ""))
    return out


def _tally(votes: pd.DataFrame, groups: int) -> list[tuple[str, str]]:
    strong = set(votes.loc[votes["strength"] == "strong", ["group", "phase"]].itertuples(index=False, name=None))
    counts = {
        phase: np.bincount(votes.loc[votes["phase"] == phase, "group"].to_numpy(np.int64), minlength=groups).tolist()
        for phase in ("prefill", "decode")
    }
    out: list[tuple[str, str]] = []
    for i, (prefill, decode) in enumerate(zip(counts["prefill"], counts["decode"], strict=True)):
        if not prefill and not decode:
            out.append(("", ""))
        elif min(prefill, decode) >= _BOTH * max(prefill, decode):
            out.append(("mixed", "strong"))
        else:
            phase = "prefill" if prefill > decode else "decode"
            out.append((phase, "strong" if (i, phase) in strong else "medium"))
    return out


def _only_gemv(rows: pd.DataFrame, group: Ints, groups: int) -> Bools:
    """Steps whose matrix products are mostly vector kernels: one token per step."""
    vector = (rows["category"] == "gemv").to_numpy() & (group >= 0)
    product = rows["category"].isin(GEMM).to_numpy() & (group >= 0)
    mostly: Bools = 2 * np.bincount(group[vector], minlength=groups) > np.bincount(group[product], minlength=groups)
    return mostly


def contrasts(rows: pd.DataFrame, group: Ints, layers: Ints) -> Floats:
    """For each step its pointwise blocks as a multiple of the usual, NaN where there is no contrast to read.

    There is one where at least three passes of as many layers are alike and another has several times their blocks.

    Args:
        rows: from `tokens.step_rows`.
        group: step of each row.
        layers: of each step.
    """
    chosen = rows["category"].isin(_POINTWISE).to_numpy() & (rows["grid_x"].to_numpy() > 0) & (group >= 0)
    blocks = np.bincount(group[chosen], rows["grid_x"].to_numpy(np.float64)[chosen], minlength=len(layers))
    out = np.full(len(layers), np.nan)
    comparable = (blocks > 0) & (layers > 0)
    if not comparable.any():
        return out
    comparable &= layers == np.bincount(layers[comparable]).argmax()
    usual = float(np.median(blocks[comparable]))
    ratio = blocks / usual
    alike = comparable & (ratio <= ALIKE) & (ratio >= 1 / ALIKE)
    if alike.sum() >= _MIN_ALIKE and (ratio[comparable] >= CONTRAST).any():
        out[comparable] = ratio[comparable]
    return out
