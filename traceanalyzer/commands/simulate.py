"""`traceanalyzer simulate`: writes the trace of a run that never ran, and beside it the truth about it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traceanalyzer.commands import values
from traceanalyzer.commands.output import target
from traceanalyzer.commands.progress import Progress, say
from traceanalyzer.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceanalyzer.simulate.scenario import Plant, Scenario
    from traceanalyzer.simulate.variants import Variant

_PARTS = ("shapes", "labels", "ops")
_BETWEEN_SHOWS_S = 0.2
_MOST_DIGITS = 20
_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))

_Output = Annotated[
    str, typer.Option("--output-file", "-o", metavar="FILE", help="Where the trace goes: .json, .json.gz or .json.zst.")
]
_Preset = Annotated[
    str | None, typer.Option(metavar="NAME", help="Begin with a named scenario; other options change it.")
]
_Model = Annotated[str | None, typer.Option(metavar="NAME", help="A public model, as llama-3.1-8b.")]
_Gpu = Annotated[str | None, typer.Option(metavar="ID", help="The GPU; `traceanalyzer gpus` lists them.")]
_Batch = Annotated[int | None, typer.Option(metavar="N", help="Requests.")]
_Prompt = Annotated[int | None, typer.Option(metavar="N", help="Tokens in, per request.")]
_Tokens = Annotated[int | None, typer.Option("--output", metavar="N", help="Tokens out, per request.")]
_Mode = Annotated[str | None, typer.Option(metavar="MODE", help="eager, graph, piecewise or full-and-piecewise.")]
_CaptureSizes = Annotated[
    str | None, typer.Option(metavar="N,N,...", help="Tokens that graphs are captured for; passes are padded to them.")
]
_Padded = Annotated[bool, typer.Option("--padded", help="Graphs are captured for 1, 2, 4, 8, 16, 24, ... tokens.")]
_Plant = Annotated[
    list[str] | None,
    typer.Option(metavar="CAUSE=US[@N]", help="Put in a cause of idle time at every Nth place; repeatable."),
]
_Speculate = Annotated[int | None, typer.Option(metavar="K", help="A draft model guesses K tokens a step.")]
_Draft = Annotated[str | None, typer.Option(metavar="NAME|N", help="The draft model, or N of the target's layers [1].")]
_Accepted = Annotated[int | None, typer.Option(metavar="N", help="Guesses of each K that are right [half].")]
_Dtype = Annotated[str | None, typer.Option(metavar="TYPE", help="Activations: bf16, fp16, fp32.")]
_Weights = Annotated[str | None, typer.Option(metavar="TYPE", help="Weights: same, fp8, int8, int4, fp4.")]
_Kv = Annotated[str | None, typer.Option(metavar="TYPE", help="KV cache: same, fp8.")]
_Ranks = Annotated[int | None, typer.Option(metavar="N", help="Tensor parallel; one trace each, NAME-rank0 and so on.")]
_InTurns = Annotated[bool, typer.Option("--in-turns", help="The requests take turns.")]
_Group = Annotated[int | None, typer.Option(metavar="N", help="Requests that share a pass when they take turns [1].")]
_Chunk = Annotated[
    int | None, typer.Option(metavar="N", help="Read prompts in chunks of N tokens, decoding meanwhile.")
]
_Prefix = Annotated[int | None, typer.Option("--prefix-hit", metavar="N", help="Prompt tokens that are in the cache.")]
_Arrivals = Annotated[int | None, typer.Option(metavar="N", help="Passes between two requests' arrivals.")]
_Unfused = Annotated[bool, typer.Option("--unfused", help="Norms, rotary embedding, activation as chains of kernels.")]
_Cache = Annotated[str | None, typer.Option(metavar="KIND", help="static, or cat: copied whole for every token.")]
_Attention = Annotated[str | None, typer.Option(metavar="KIND", help="flash, or math: with the whole score matrix.")]
_Sampler = Annotated[str | None, typer.Option(metavar="KIND", help="greedy, or full: softmax, sort and draw.")]
_NoSplit = Annotated[bool, typer.Option("--no-split-kv", help="Decode attention has one block per KV head.")]
_Size = Annotated[str | None, typer.Option(metavar="SIZE", help="Go on until the text has this size, as 1GB.")]
_Stacks = Annotated[bool, typer.Option("--stacks", help="Record Python frames.")]
_Flows = Annotated[bool, typer.Option("--flows/--no-flows", help="Arrows from launch calls to kernels.")]
_Memory = Annotated[bool, typer.Option("--memory-events", help="Record the allocator's events.")]
_Cut = Annotated[bool, typer.Option("--cut-window", help="The window opens and closes in the middle of a pass.")]
_Strip = Annotated[list[str] | None, typer.Option(metavar="PART", help="Leave out shapes, labels or ops; repeatable.")]
_Seed = Annotated[int | None, typer.Option(metavar="N", help="For what is drawn: which experts a token goes to.")]
_Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No messages, only errors.")]


def simulate(
    output_file: _Output,
    preset: _Preset = None,
    model: _Model = None,
    gpu: _Gpu = None,
    batch: _Batch = None,
    prompt: _Prompt = None,
    output: _Tokens = None,
    mode: _Mode = None,
    capture_sizes: _CaptureSizes = None,
    padded: _Padded = False,
    plant: _Plant = None,
    speculate: _Speculate = None,
    draft: _Draft = None,
    accepted: _Accepted = None,
    dtype: _Dtype = None,
    weights: _Weights = None,
    kv: _Kv = None,
    ranks: _Ranks = None,
    in_turns: _InTurns = False,
    group_size: _Group = None,
    chunk: _Chunk = None,
    prefix_hit: _Prefix = None,
    arrivals_every: _Arrivals = None,
    unfused: _Unfused = False,
    kv_cache: _Cache = None,
    attention: _Attention = None,
    sampler: _Sampler = None,
    no_split_kv: _NoSplit = False,
    size: _Size = None,
    stacks: _Stacks = False,
    flows: _Flows = True,
    memory_events: _Memory = False,
    cut_window: _Cut = False,
    strip: _Strip = None,
    seed: _Seed = None,
    force: _Force = False,
    quiet: _Quiet = False,
) -> None:
    """Write the trace of a simulated run, and its truth beside it.

    The truth is NAME.truth.json. Durations come from a cost model, not from a card: it is for testing what reads
    traces, not for predicting speed.
    """
    words: dict[str, object] = {"model": model, "gpu": gpu, "mode": mode, "dtype": dtype, "weights": weights, "kv": kv}
    words |= {"kv_cache": kv_cache, "attention": attention, "sampler": sampler}
    numbers = {"batch": batch, "prompt": prompt, "output": output, "ranks": ranks, "chunk": chunk, "seed": seed}
    flags = {"together": in_turns, "fused": unfused, "split_kv": no_split_kv}
    numbers |= {"arrivals_every": arrivals_every, "group_size": group_size}
    numbers |= {"speculate": speculate, "accepted": accepted, "prefix": prefix_hit}
    words["draft"] = int(draft) if draft and re.fullmatch(r"[0-9]{1,9}", draft) else draft
    given = words | numbers | {name: False for name, off in flags.items() if off}
    given |= {"capture_sizes": _sizes(capture_sizes, padded), "plants": _plants(plant or ()) or None}
    scenario = _scenario(preset, {name: value for name, value in given.items() if value is not None})
    if group_size is not None and scenario.together:
        raise InputError("--group-size says how many requests share a turn", "give --in-turns too")
    variant = _variant(strip or (), stacks, flows, memory_events, cut_window)
    wanted = None if size is None else values.size("--size", size)
    _write(scenario, variant, wanted, output_file, force, quiet)


def _scenario(preset: str | None, given: Mapping[str, Any]) -> Scenario:
    from traceanalyzer.simulate import presets
    from traceanalyzer.simulate.scenario import Scenario

    return replace(Scenario() if preset is None else presets.preset(preset), **given)


def _sizes(text: str | None, padded: bool) -> tuple[int, ...] | None:
    """The sizes that graphs are captured for; None: nothing was said of them."""
    from traceanalyzer.simulate import captured

    if text is None:
        return captured.USUAL if padded else None
    if padded:
        raise InputError("--padded and --capture-sizes both say what is captured", "give one of them")
    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdigit() and len(part) <= _MOST_DIGITS for part in parts):
        raise InputError(f"--capture-sizes: {text[:40]!r} is no list of numbers", "as 1,2,4,8")
    return tuple(int(part) for part in parts)


def _plants(texts: Sequence[str]) -> tuple[Plant, ...]:
    """What is planted; costs are given in microseconds."""
    from traceanalyzer.simulate.scenario import Plant

    found = []
    for text in texts:
        match = re.fullmatch(r"([a-z_-]+)=(\d{1,9}(?:\.\d{1,3})?)(?:@(\d{1,9}))?", text, re.ASCII)
        if match is None:
            raise InputError(f"--plant: {text[:40]!r} is no CAUSE=US or CAUSE=US@N", "as sync=100@4")
        kind, cost, every = match.groups()
        found.append(Plant(kind.replace("-", "_"), round(float(cost) * 1000), int(every or 1)))
    return tuple(found)


def _variant(strip: Sequence[str], stacks: bool, flows: bool, memory: bool, cut: bool) -> Variant:
    from traceanalyzer.simulate.variants import Variant

    unknown = [part for part in strip if part not in _PARTS]
    if unknown:
        raise InputError(f"--strip: unknown part {unknown[0][:40]!r}", f"choose from {', '.join(_PARTS)}")
    kept = {part: part not in strip for part in _PARTS}
    return Variant(**kept, stacks=stacks, flows=flows, memory=memory, cut=cut)


def _write(scenario: Scenario, variant: Variant, size: int | None, place: str, force: bool, quiet: bool) -> None:
    from traceanalyzer.simulate.limits import check
    from traceanalyzer.simulate.output import trace_paths, truth_path
    from traceanalyzer.simulate.passes import passes
    from traceanalyzer.simulate.write import simulate as write

    check(scenario)
    if "\0" in place:
        raise InputError("-o: a file name holds no NUL character")
    traces = trace_paths(Path(place), scenario.ranks)
    for path in (*traces, *(truth_path(trace) for trace in traces)):
        _check(path, force)
    with Progress(quiet) as progress, _ended_by_signals():
        written = write(scenario, Path(place), passes, variant=variant, size=size, watch=_shown(progress))
    if not quiet:
        for one in written:
            say(f"wrote {one.trace} and {one.truth}: {one.passes} passes, {one.size / 1e6:.1f} MB of text")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End by an exception where the system asks to, so that half a file is cleared away; exit codes as shells give."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check(path: Path, force: bool) -> None:
    if path.exists() and not path.is_dir():
        if not path.is_file():
            raise InputError(f"-o: {path} is no regular file")
        if not force:
            raise InputError(f"-o: {path} exists", "--force replaces it")
    target("-o", str(path), (), lambda text: True, force=True)


def _shown(progress: Progress) -> Callable[[int, int], None]:
    """Show how far it is, a few times a second."""
    last = 0.0

    def show(passes: int, size: int) -> None:
        nonlocal last
        if monotonic() - last >= _BETWEEN_SHOWS_S:
            last = monotonic()
            progress.show(f"simulating: {passes} passes, {size / 1e6:.0f} MB")

    return show
