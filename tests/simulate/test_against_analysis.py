"""The analysis against the truth of simulated runs, which it does not know: every figure of every case.

Neither side imports the other. Where the analysis is known to differ, `KNOWN` says why, and such a difference must be
there: whoever mends it takes its entry out. The last tests change one constant of the analysis each and must see the
comparison fail, so that agreement is never empty.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.simulate.compare import ASPECTS, Case
from traceanalyzer import read_trace
from traceanalyzer.analysis import devices
from traceanalyzer.analysis.pipeline import analyze
from traceanalyzer.analysis.work import attention, gemm
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.scenario import Plant, Scenario
from traceanalyzer.simulate.variants import Variant
from traceanalyzer.simulate.write import simulate

pytestmark = pytest.mark.usefixtures("without_hta")

SMALL = Scenario(model="llama-3.2-1b", prompt=128, output=4)
H100 = "h100-sxm-80gb"
PLANTED = tuple(Plant(kind, 200_000, 2) for kind in ("allocator", "sync", "scheduler", "launch"))

CASES: dict[str, tuple[Scenario, Variant]] = {
    "one": (SMALL, Variant()),
    "fp16": (replace(SMALL, dtype="fp16", model="qwen2.5-0.5b", batch=2), Variant()),
    "batch-8": (replace(SMALL, batch=8, gpu=H100), Variant()),
    "batch-64": (replace(SMALL, batch=64), Variant()),
    "32k": (replace(SMALL, prompt=32_768, output=3), Variant()),
    "8k-batch-8": (replace(SMALL, prompt=8_192, output=3, batch=8), Variant()),
    "no-split": (replace(SMALL, prompt=4_096, output=3, split_kv=False), Variant()),
    "qk-norm": (replace(SMALL, model="qwen3-0.6b", batch=4, output=3), Variant()),
    "fp8": (replace(SMALL, weights="fp8", gpu=H100, batch=8), Variant()),
    "fp4": (replace(SMALL, weights="fp4", gpu="b200", batch=8), Variant()),
    "int8": (replace(SMALL, weights="int8"), Variant()),
    "int4": (replace(SMALL, weights="int4"), Variant()),
    "int4-batch-8": (replace(SMALL, weights="int4", batch=8), Variant()),
    "fp8-cache": (replace(SMALL, kv="fp8", gpu=H100, batch=8), Variant()),
    "experts": (replace(SMALL, model="qwen3-30b-a3b", output=3, batch=8), Variant()),
    "unfused": (replace(SMALL, fused=False, output=3), Variant()),
    "cat": (replace(SMALL, kv_cache="cat", output=3), Variant()),
    "math": (replace(SMALL, attention="math", output=3), Variant()),
    "full-sampler": (replace(SMALL, sampler="full", output=3), Variant()),
    "chunked": (replace(SMALL, batch=3, prompt=256, chunk=128, output=4, arrivals_every=1), Variant()),
    "in-turns": (replace(SMALL, batch=3, together=False), Variant()),
    "groups-in-turns": (replace(SMALL, batch=8, together=False, group_size=3), Variant()),
    "decode-only": (replace(SMALL, skip_prefill=True, batch=8), Variant()),
    "host-ahead": (replace(SMALL, sync_every_step=False, model="llama-3.1-8b", batch=8), Variant()),
    "latent-batch-8": (replace(SMALL, model="deepseek-v2-lite", output=3, gpu=H100, batch=8), Variant()),
    "latent": (replace(SMALL, model="deepseek-v2-lite", output=3, gpu=H100), Variant()),
    "graph": (replace(SMALL, mode="graph", batch=8), Variant()),
    "prefix": (replace(SMALL, batch=2, prefix=100, output=3), Variant()),
    "speculation": (replace(SMALL, batch=2, output=6, speculate=2), Variant()),
    "planted": (replace(SMALL, batch=2, output=3, plants=PLANTED), Variant()),
    "no-request": (replace(SMALL, output=2, batch=2, arrivals_every=3, plants=(Plant("input", 2_000_000),)), Variant()),
    "no-labels": (SMALL, Variant(labels=False)),
    "no-shapes": (SMALL, Variant(shapes=False)),
    "no-ops": (SMALL, Variant(ops=False)),
    "stacks": (replace(SMALL, output=2), Variant(stacks=True, memory=True)),
    "cut": (replace(SMALL, output=6), Variant(cut=True)),
}


@dataclass(frozen=True)
class Known:
    """A difference that is known: in which aspects of which cases, and why."""

    aspects: tuple[str, ...]
    cases: tuple[str, ...]
    why: str


KNOWN: tuple[Known, ...] = (
    Known(("steps",), ("speculation",), "a label does not say that a draft pass reads no prompt"),
    Known(("request",), ("speculation",), "how many guesses were right stands in no trace"),
    Known(("request",), ("prefix",), "what the cache held of a prompt is taken for no part of it"),
    Known(("idle",), ("no-request",), "a wait for a request looks like work of the host between two passes"),
)  # fmt: skip
GAPS = {(case, aspect): known.why for known in KNOWN for case in known.cases for aspect in known.aspects}


def made(folder: Path, name: str) -> Path:
    """The trace of a case, with its truth beside it."""
    scenario, variant = CASES[name]
    (written,) = simulate(scenario, folder / f"{name}.json", passes, variant=variant)
    return written.trace


def read(path: Path) -> Case:
    truth = json.loads(path.with_name(f"{path.stem}.truth.json").read_text())
    return Case(analyze([read_trace(path)]), truth)


@pytest.mark.parametrize("name", CASES)
def test_every_figure_agrees(name: str, tmp_path: Path) -> None:
    case = read(made(tmp_path, name))
    found = {aspect: judge(case)[:8] for aspect, judge in ASPECTS.items() if (name, aspect) not in GAPS}
    assert not {aspect: lines for aspect, lines in found.items() if lines}
    for aspect in ASPECTS:
        if (name, aspect) in GAPS:
            assert ASPECTS[aspect](case), f"{aspect} agrees now: take its entry out of KNOWN"


def test_every_rank_agrees(tmp_path: Path) -> None:
    written = simulate(replace(SMALL, ranks=2, batch=4), tmp_path / "run.json", passes)
    analysis = analyze([read_trace(one.trace) for one in written])
    truths = [json.loads(one.truth.read_text()) for one in written]
    assert [device.timeline.device.rank for device in analysis.devices] == [0, 1]
    for device, truth in zip(analysis.devices, truths, strict=True):
        case = Case(replace(analysis, main=device), truth)
        judged = {name: ASPECTS[name](case) for name in ("span", "steps", "kernels", "sums", "ledger")}
        assert not {name: lines for name, lines in judged.items() if lines}
        assert device.ledger.total_ns("communication") > 0
    # Rank 0 came first and waited: the same kernels, more communication, the same useful work.
    waits = [truth["span"]["communication_wait_ns"] for truth in truths]
    moved = [device.ledger.total_ns("communication") for device in analysis.devices]
    assert moved[0] - moved[1] == waits[0] - waits[1] > 0


def _scaled(function: Callable[..., float | None], factor: float) -> Callable[..., float | None]:
    """The function with its result times a factor."""

    def scaled(*arguments: object, **named: object) -> float | None:
        result = function(*arguments, **named)
        return None if result is None else result * factor

    return scaled


def _half_flops(monkeypatch: pytest.MonkeyPatch) -> None:
    """One FLOP for a multiply-add of a matrix product."""
    product = gemm._product
    monkeypatch.setattr(gemm, "_product", lambda *given: replace(work := product(*given), flops=work.flops / 2))


def _all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Causal attention without its mask."""
    monkeypatch.setattr(attention, "pairs_kept", lambda q, k, mask: q * k)


def _more_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two per cent more bandwidth than the sheet."""
    sheet = devices.DeviceInfo.bandwidth_gbs.fget
    monkeypatch.setattr(devices.DeviceInfo, "bandwidth_gbs", property(_scaled(sheet, 1.02)))


def _more_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two per cent more FLOP/s than the sheet."""
    monkeypatch.setattr(devices.DeviceInfo, "peak_tflops", _scaled(devices.DeviceInfo.peak_tflops, 1.02))


@pytest.mark.parametrize(("change", "name", "caught"), [
    (_half_flops, "batch-64", {"kernels", "sums", "ledger", "ideal"}),
    (_all_pairs, "batch-64", {"kernels", "sums", "ideal"}),
    (_more_bandwidth, "decode-only", {"ledger", "floor"}),
    (_more_peak, "batch-64", {"ledger", "ideal"}),
])  # fmt: skip
def test_one_changed_constant_is_seen(
    change: Callable[[pytest.MonkeyPatch], None],
    name: str,
    caught: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = made(tmp_path, name)
    judged = {aspect for aspect in ASPECTS if (name, aspect) not in GAPS}
    case = read(path)
    assert not {aspect for aspect in judged if ASPECTS[aspect](case)}
    change(monkeypatch)
    case = read(path)
    assert {aspect for aspect in judged if ASPECTS[aspect](case)} == caught
