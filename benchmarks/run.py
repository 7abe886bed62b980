"""Measures how fast traces are read and reported, and in how much memory, against Holistic Trace Analysis (HTA).

One run alternates what it compares (A B C A B C ...), each in a fresh process, and reports ratios within a round,
their medians and ranges: absolute times move with whatever else the machine does, ratios far less. Wall time, CPU time
and peak memory are those of the whole process, start-up included. What could be wrong: a process counts a page of a
shared library as its own, and on a busy machine the rounds are too few to say more than the ranges do.

Needs `traceanalyzer` and its dependencies in the Python that runs this; HTA is installed into an environment of its own
below --work.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).resolve().parent
COMMAND = (sys.executable, "-m", "traceanalyzer")
HTA = "HolisticTraceAnalysis==0.5.0"
WARM_UP = 2_000_000
"""Bytes of the trace that every program reads once before anything is measured."""
START_UPS = 7
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_LIBRARIES = ("isal", "msgspec", "numpy", "pandas")


@dataclass(frozen=True)
class Use:
    """What one process used: seconds of wall and CPU time, bytes of peak memory, and seconds of the call in it."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    call_s: float | None = None


def size(text: str) -> int:
    """A number of bytes, as 500MB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 500MB")
    return int(float(match[1]) * _UNITS[(match[2] or "").upper()])


def use_of(command: Sequence[str | Path]) -> Use:
    """Run a command and return what it used.

    Raises:
        RuntimeError: it failed; the end of what it said is quoted.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(list(map(str, command)), stdout=out, stderr=errors, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            said = errors.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"{' '.join(map(str, command))} failed ({process.returncode}): {said}")
        out.seek(0)
        call = None
        with contextlib.suppress(ValueError):
            call = float(json.load(out)["call_s"])
    scale = 1 if sys.platform == "darwin" else 1024
    return Use(wall, used.ru_utime + used.ru_stime, used.ru_maxrss * scale, call)


def alternate(programs: Mapping[str, Sequence[str | Path]], rounds: int) -> dict[str, list[Use]]:
    """Every program once per round, in order."""
    uses: dict[str, list[Use]] = {name: [] for name in programs}
    for turn in range(rounds):
        say(f"round {turn + 1} of {rounds}: {', '.join(programs)}")
        for name, command in programs.items():
            uses[name].append(use_of(command))
    return uses


def ratios(above: Sequence[Use], below: Sequence[Use], value: Callable[[Use], float]) -> list[float]:
    """The ratio within each round."""
    return [value(a) / value(b) for a, b in zip(above, below, strict=True)]


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Median and range."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def used_table(uses: Mapping[str, Sequence[Use]], raw: int) -> str:
    """One line per program: median and range of what it used."""
    lines = [
        "| Program | Wall, s | CPU, s | Call alone, s | JSON read, MB/s | Peak memory, MB | Peak / JSON |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, runs in uses.items():
        calls = [run.call_s for run in runs if run.call_s is not None]
        cells = (
            name,
            spread([run.wall_s for run in runs]),
            spread([run.cpu_s for run in runs]),
            spread(calls) if calls else "",
            spread([raw / 1e6 / run.wall_s for run in runs], ".0f"),
            spread([run.peak_bytes / 1e6 for run in runs], ".0f"),
            spread([run.peak_bytes / raw for run in runs]),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ratio_table(uses: Mapping[str, Sequence[Use]], raw: int) -> str:
    """The figures that have a target."""
    read, report, other = (uses.get(name, ()) for name in ("read", "report", "HTA"))
    rows: list[tuple[str, list[float], str]] = []
    if other:
        rows += [
            ("HTA's parser / reading, wall time", ratios(other, read, lambda use: use.wall_s), "at least 4"),
            ("HTA's parser / reading, CPU time", ratios(other, read, lambda use: use.cpu_s), ""),
            ("HTA's parser / reading, the calls alone", ratios(other, read, lambda use: use.call_s or 0.0), ""),
            ("HTA's parser / reading, peak memory", ratios(other, read, lambda use: use.peak_bytes), ""),
        ]
    rows += [
        ("reading, peak memory / JSON", [use.peak_bytes / raw for use in read], "at most 0.8"),
        ("report / reading, wall time", ratios(report, read, lambda use: use.wall_s), "at most 2"),
        ("report / reading, CPU time", ratios(report, read, lambda use: use.cpu_s), ""),
        ("report, peak memory / JSON", [use.peak_bytes / raw for use in report], "at most 1"),
    ]
    lines = ["| Ratio | Median (range) | Target |", "| --- | ---: | ---: |"]
    return "\n".join(lines + [f"| {name} | {spread(values)} | {target} |" for name, values, target in rows])


def start_up(work: Path) -> str:
    """How long the command takes before any trace is large."""
    sample = min((ROOT / "samples").glob("*.json.gz"), key=lambda path: path.stat().st_size)
    programs: dict[str, list[str | Path]] = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "traceanalyzer --help": [*COMMAND, "--help"],
        f"traceanalyzer report --json of {sample.name}": [*COMMAND, "report", sample, "--json", work / "sample.json"],
        f"traceanalyzer report of {sample.name}": [*COMMAND, "report", sample, "-o", work / "sample.html", "-q"],
    }
    alternate(programs, 1)
    uses = alternate(programs, START_UPS)
    lines = ["| Start-up | Wall, s | CPU, s | Peak memory, MB |", "| --- | ---: | ---: | ---: |"]
    lines += [
        f"| `{name}` | {spread([use.wall_s for use in runs])} | {spread([use.cpu_s for use in runs])} "
        f"| {spread([use.peak_bytes / 1e6 for use in runs], '.0f')} |"
        for name, runs in uses.items()
    ]
    return "\n".join(lines)


def made(path: Path, wanted: int) -> Path:
    """The simulated trace, made where it is not there; in a process of its own, whose memory no child inherits."""
    if not path.exists():
        say(f"making {path.name}")
        part = path.with_name(f"part-{path.name}")
        use_of([*COMMAND, "simulate", "-o", part, "--size", f"{wanted // 10**3}KB", "--force", "--quiet"])
        part.rename(path)
    return path


def raw_size(path: Path) -> int:
    """Bytes of the JSON text. Reading it also brings the file into the page cache."""
    total = 0
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        while chunk := file.read(1 << 20):
            total += len(chunk)
    return total


def hta_python(work: Path) -> Path:
    """The Python of an environment that holds HTA, made where it is not there."""
    folder = work / "hta"
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        say(f"installing {HTA} into {folder}")
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", HTA], check=True)
        (folder / "installed").touch()
    return python


def machine() -> str:
    """Processor, cores, memory, system and Python."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GB, {platform.system()}, Python {platform.python_version()}"


def versions(python: str | Path, *names: str) -> str:
    """Names and versions of distributions installed for a Python."""
    command = [python, HERE / "measure.py", "versions", *names]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return ", ".join(f"{name} {number}" for name, number in found.items())


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


def programs_for(trace: Path, work: Path, hta: Path | None) -> dict[str, list[str | Path]]:
    """What is compared, by name."""
    measure = HERE / "measure.py"
    page = work / "page.html"
    found: dict[str, list[str | Path]] = {} if hta is None else {"HTA": [hta, measure, "hta", trace]}
    found["read"] = [sys.executable, measure, "read", trace]
    found["report"] = [*COMMAND, "report", trace, "-o", page, "--force", "--quiet"]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the input, measure, and write the tables to standard output and to --output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=size, default=size("500MB"), help="bytes of JSON of the trace [500MB]")
    parser.add_argument("--input", type=Path, help="measure this trace instead")
    parser.add_argument("--rounds", type=int, default=3, help="how often each program runs [3]")
    parser.add_argument("--without-hta", action="store_true", help="install and measure no HTA")
    parser.add_argument("--work", type=Path, default=ROOT / "out" / "benchmarks", help="folder for what is made")
    parser.add_argument("--output", type=Path, help="where the tables go too [WORK/results.md]")
    options = parser.parse_args(arguments)
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    hta = None if options.without_hta else hta_python(work)
    trace = options.input or made(work / f"trace-{options.size}.json.gz", options.size)
    small = made(work / f"trace-{WARM_UP}.json.gz", WARM_UP)
    raw = raw_size(trace)
    alternate(programs_for(small, work, hta), 1)
    uses = alternate(programs_for(trace, work, hta), options.rounds)
    libraries = versions(sys.executable, *_LIBRARIES)
    peer = "" if hta is None else f" HTA: {versions(hta, HTA.partition('==')[0], 'numpy', 'pandas')}, in its own."
    page = (work / "page.html").stat().st_size
    text = "\n\n".join((
        f"Machine: {machine()}.",
        f"traceanalyzer: {libraries}.{peer}",
        f"Input: {trace.name}, {raw / 1e6:.0f} MB of JSON in {trace.stat().st_size / 1e6:.0f} MB; "
        f"{options.rounds} rounds. The page has {page / 1e3:.0f} kB.",
        used_table(uses, raw), ratio_table(uses, raw), start_up(work),
    ))  # fmt: skip
    (options.output or work / "results.md").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
