"""The command line of `collect`: what is asked for, checked once, as plain values in base units.

What could be wrong: everything after the first word that is no option is the command, so an option of ours that is
written behind it goes to the command. `split` must know which options take no value: `_FLAGS`.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from dataclasses import dataclass
from typing import Callable, NoReturn, Sequence
from urllib.parse import urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "::1")
DEFAULT_OUTPUT = "traceanalyzer-recordings"
JITTER = 0.1
"""Share of `--every` by which each interval is varied, so that windows do not keep step with something periodic."""
_FULL_STEPS, _SAMPLE_STEPS = 64, 32
_FULL_WINDOW_S, _SAMPLE_WINDOW_S = 30.0, 2.0
_MIN_GAP_S = 60.0
_MOST_STEPS = 100_000
_MOST_WINDOW_S = 600.0
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(B|[kKMGT]B|[KMGT]iB)")
_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES_BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_PERCENTILE = re.compile(r"p(50|90|95|99)x(\d+(?:\.\d+)?)")
_FLAGS = frozenset(
    ("--help", "--version", "--quiet", "--verbose", "--signal", "--shapes", "--no-shapes", "--with-stack", "--check")
)
_SHORT_FLAGS = re.compile(r"-[hqv]+")

_EPILOG = """\
examples:
  Record a script that ends, from its first step:
    traceanalyzer collect -- python generate.py

  Take a window of a running service every five minutes, and one more on SIGUSR2:
    traceanalyzer collect -o /var/traces --every 5m -- vllm serve MODEL

The command's exit code or signal is the collector's own. Durations: 200ms, 2s, 5m, 1h, 7d; sizes: 500MB, 2GB, 2GiB.
"""


class UsageError(Exception):
    """The command line cannot be used; the message is one line."""


@dataclass(frozen=True)
class OnLatency:
    """When a step is slow: longer than `limit_s` seconds, or than `factor` times a percentile of the last minutes."""

    limit_s: float | None = None
    percentile: int | None = None
    factor: float | None = None


@dataclass(frozen=True)
class Options:
    """What is asked for. Times in seconds, sizes in bytes; None is not asked for.

    mode: full (windows one after the other) or sample (one per trigger). recorder: python or ondemand, already decided.
    """

    output: str
    mode: str
    recorder: str
    steps: int
    window_s: float
    every_s: float | None
    jitter: float
    every_requests: int | None
    on_latency: OnLatency | None
    min_gap_s: float
    max_per_day: int
    start_after_s: float
    listen: str | None
    record_shapes: bool
    with_stack: bool
    step: tuple[str, ...]
    inject: str
    disk_bytes: int
    keep_s: float
    grace_s: float
    counters_s: float | None
    metrics_url: str | None
    attach: str | None
    traces: str | None
    check: bool
    quiet: bool
    verbose: bool
    command: tuple[str, ...]


def parse(arguments: Sequence[str], version: str) -> Options:
    """Read the words that follow `collect`.

    Raises `UsageError` where they cannot be used and `SystemExit` after `--help` and `--version`.
    """
    words, command = split(arguments)
    found = _parser(version).parse_args(words)
    mode = _mode(found)
    sample = mode == "sample"
    recorder = found.recorder if found.recorder != "auto" else "ondemand" if sample else "python"
    if recorder == "ondemand" and not sample:
        raise UsageError("--recorder ondemand takes one window per trigger: add one, for example --every 5m")
    if not (command or found.attach or found.check):
        raise UsageError("no command to record: traceanalyzer collect [options] -- COMMAND... (see collect --help)")
    if found.traces and not found.attach:
        raise UsageError("--traces says where a server writes that --attach names")
    if command and found.attach:
        raise UsageError("--attach records a server that runs already; leave the command away")
    return Options(
        output=found.output, mode=mode, recorder=recorder,
        steps=found.steps or (_SAMPLE_STEPS if sample else _FULL_STEPS),
        window_s=found.window or (_SAMPLE_WINDOW_S if sample else _FULL_WINDOW_S),
        every_s=found.every, jitter=JITTER, every_requests=found.every_requests, on_latency=found.on_latency,
        min_gap_s=_min_gap(found.min_gap, found.every), max_per_day=found.max_per_day,
        start_after_s=found.start_after, listen=found.listen, record_shapes=found.shapes, with_stack=found.with_stack,
        step=tuple(found.step), inject=found.inject, disk_bytes=found.disk, keep_s=found.keep, grace_s=found.grace,
        counters_s=found.counters or None, metrics_url=found.metrics, attach=found.attach,
        traces=found.traces, check=found.check, quiet=found.quiet, verbose=found.verbose, command=tuple(command),
    )  # fmt: skip


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our own words and the command: what follows the first `--` or the first word that is no option."""
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if word == "--":
            return list(arguments[:at]), list(arguments[at + 1 :])
        if not word.startswith("-"):
            break
        attached = "=" in word or (not word.startswith("--") and len(word) > 2)
        at += 1 if word in _FLAGS or _SHORT_FLAGS.fullmatch(word) or attached else 2
    return list(arguments[:at]), list(arguments[at:])


def _mode(found: argparse.Namespace) -> str:
    triggers = {
        "--every": found.every, "--every-requests": found.every_requests, "--on-latency": found.on_latency,
        "--signal": found.signal or None, "--listen": found.listen,
    }  # fmt: skip
    given = [name for name, value in triggers.items() if value is not None]
    if found.mode == "full" and given:
        raise UsageError(f"{given[0]} takes single windows, --mode full records everything: leave one of them away")
    return found.mode or ("sample" if given or found.attach else "full")


def _min_gap(asked: float | None, every: float | None) -> float:
    if asked is None:
        return _MIN_GAP_S if every is None else min(_MIN_GAP_S, every * (1 - JITTER))
    if every is not None and asked > every:
        raise UsageError("--min-gap is longer than --every: its windows would be refused")
    return asked


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see collect --help)")


def _parser(version: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="traceanalyzer collect", usage="%(prog)s [options] -- COMMAND...", add_help=False, allow_abbrev=False,
        description="Record a generation run as it is, without a change to it. Without a trigger the whole run is "
        "recorded, in windows of some steps each; with a trigger, one short window each time.",
        epilog=_EPILOG, formatter_class=_Formatter,
    )  # fmt: skip
    _add_what(parser)
    _add_triggers(parser)
    _add_storage(parser)
    _add_process(parser)
    group = parser.add_argument_group("talk")
    group.add_argument("-q", "--quiet", action="store_true", help="only errors")
    group.add_argument("-v", "--verbose", action="store_true", help="say what is done, and what in the command failed")
    group.add_argument("--version", action="version", version=f"traceanalyzer {version}", help="print it and end")
    group.add_argument("-h", "--help", action="help", help="print this and end")
    return parser


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Wraps the description and leaves the examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else textwrap.fill(text, width)


def _add_what(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is recorded")
    add = group.add_argument
    add(
        "-o",
        "--output",
        metavar="DIR",
        default=DEFAULT_OUTPUT,
        type=_name,
        help="where recordings go, a folder each (./%(default)s)",
    )
    add(
        "--mode",
        choices=("full", "sample"),
        help="full: the whole run; sample: one window per trigger, SIGUSR2 among them",
    )
    add(
        "--steps",
        metavar="N",
        type=_count(_MOST_STEPS),
        help=f"complete steps of a window ({_FULL_STEPS}; sample: {_SAMPLE_STEPS})",
    )
    add(
        "--window",
        metavar="TIME",
        type=_positive(_MOST_WINDOW_S),
        help="longest duration of a window (30s; sample: 2s)",
    )
    add("--shapes", action="store_true", default=True, help="record the shapes of operators' inputs (default)")
    add("--no-shapes", dest="shapes", action="store_false", help="leave them out: cheaper, and the report knows less")
    add("--with-stack", action="store_true", help="record Python call stacks: much more expensive")
    add("--step", metavar="MOD:CLASS.METHOD", action="append", default=[], type=_step,
        help="a call of this method is one step; for models that are not recognised; repeatable")  # fmt: skip
    add("--counters", metavar="TIME|off", type=_counters, default=0.1, help="period of the GPU's own counters (100ms)")
    add(
        "--metrics",
        metavar="URL",
        type=_loopback_url,
        help="the engine's /metrics, on loopback (found for vLLM and SGLang)",
    )


def _add_triggers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("triggers: any of them means --mode sample")
    add = group.add_argument
    add("--every", metavar="TIME", type=_positive(), help="one window each TIME, varied by 10 %%")
    add("--every-requests", metavar="N", type=_count(), help="one window each N requests")
    add(
        "--on-latency",
        metavar="LIMIT",
        type=_on_latency,
        help="when a step takes longer: 200ms, or p99x3: 3 times its p99",
    )
    add("--signal", action="store_true", help="only on SIGUSR2 to the collector")
    add("--listen", metavar="ADDRESS", type=_listen, help="POST /windows on 127.0.0.1:PORT or unix:PATH")
    add("--start-after", metavar="TIME", type=_duration, default=0.0, help="record nothing before (0s)")
    add("--min-gap", metavar="TIME", type=_duration, help="least time from one window to the next (60s)")
    add("--max-per-day", metavar="N", type=_count(), default=288, help="most windows in 24 hours (%(default)s)")


def _add_storage(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("storage")
    add = group.add_argument
    add("--disk", metavar="SIZE", type=_size, default=2 * 10**9, help="most that all recordings in DIR may take (2GB)")
    add(
        "--keep", metavar="TIME", type=_positive(), default=7 * 86400.0, help="older recordings in DIR are deleted (7d)"
    )


def _add_process(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how")
    add = group.add_argument
    add("--recorder", choices=("auto", "ondemand", "python"), default="auto",
        help="python: torch.profiler between two steps; ondemand: Kineto's own thread, which never stops the model "
        "(auto: python for full, ondemand for sample)")  # fmt: skip
    add("--inject", choices=("pythonpath", "runpy"), default="pythonpath",
        help="how to get into the command's processes; runpy for python -I, -E and -S (%(default)s)")  # fmt: skip
    add("--grace", metavar="TIME", type=_duration, default=5.0, help="longest wait for open windows at the end (5s)")
    add("--attach", metavar="URL", type=_url, help="use the profiling endpoints of a server that runs already")
    add(
        "--traces", metavar="DIR", type=_name, help="with --attach: where that server writes its traces, seen from here"
    )
    add("--check", action="store_true", help="say what would work here, and end")


def _name(text: str) -> str:
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError("a folder's name is needed")
    return text


def _duration(text: str) -> float:
    found = _DURATION.fullmatch(text)
    if text != "0" and not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration, write for example 200ms, 2s, 5m, 1h or 7d")
    return float(found.group(1)) * _SECONDS[found.group(2)] if found else 0.0


def _positive(most: float = 10 * 365 * 86400.0) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = _duration(text)
        if not 0 < value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not more than 0 and at most {most:g}s")
        return value

    return read


def _count(most: int = 10**9) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,10}", text) or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {most}")
        return int(text)

    return read


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no size, write for example 500MB, 2GB or 2GiB")
    unit = found.group(2)
    size = int(float(found.group(1)) * (_BYTES_BINARY.get(unit) or _BYTES[unit.upper()]))
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} leaves no room for a recording")
    return size


def _counters(text: str) -> float:
    if text == "off":
        return 0.0
    period = _duration(text)
    if not 0.01 <= period <= 60:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 10ms to 60s, nor off")
    return period


def _on_latency(text: str) -> OnLatency:
    found = _PERCENTILE.fullmatch(text)
    if found:
        factor = float(found.group(2))
        if factor <= 1:
            raise argparse.ArgumentTypeError(f"{text!r}: the factor must be more than 1")
        return OnLatency(percentile=int(found.group(1)), factor=factor)
    if not _DURATION.fullmatch(text) or _duration(text) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no limit, write for example 200ms or p99x3")
    return OnLatency(limit_s=_duration(text))


def _listen(text: str) -> str:
    if text.startswith("unix:"):
        if not 0 < len(text[5:].encode()) <= 107:
            raise argparse.ArgumentTypeError("the name of a unix socket has 1 to 107 bytes")
        return text
    host, _, port = text.rpartition(":")
    if host.strip("[]") not in LOOPBACK or not re.fullmatch(r"\d{1,5}", port) or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is neither 127.0.0.1:PORT nor unix:PATH; only loopback is served")
    return text


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise argparse.ArgumentTypeError(f"{text!r} is no URL, write for example http://127.0.0.1:8000")
    return text


def _loopback_url(text: str) -> str:
    parts = urlsplit(_url(text))
    if parts.scheme != "http" or parts.hostname not in LOOPBACK:
        raise argparse.ArgumentTypeError(f"{text!r} is not http on loopback")
    return text


def _step(text: str) -> str:
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not MODULE:CLASS.METHOD")
    return text
