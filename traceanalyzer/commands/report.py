"""`traceanalyzer report`: from traces to the page, the document, Markdown and the terminal's summary.

A page made earlier can be given in place of traces: its embedded document is read back, and every output can be made
from it, but nothing that would change the analysis.
"""

from __future__ import annotations

import codecs
import io
import itertools
import os
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceanalyzer.commands import values
from traceanalyzer.commands.output import STDOUT, Target, target
from traceanalyzer.commands.progress import Progress, say
from traceanalyzer.errors import InputError

if TYPE_CHECKING:
    from traceanalyzer import Report
    from traceanalyzer.catalog.hf_config import GivenModel

PAGE_SUFFIX = ".traceanalyzer.html"
_COMPRESSED = (".gz", ".zst", ".zstd")
_PAGE_START = 4096
_LARGEST_PAGE = 64 << 20
_KINDS = (".json", ".trace", ".pt", ".html", ".htm", ".traceanalyzer")


_Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH",
        help="Trace files, folders of them, a recording, - for standard input, or one page made earlier. "
        "Several files are the ranks and windows of one run.",
    ),
]
_Page = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE.html", help=f"Where the page goes [default: NAME{PAGE_SUFFIX}]."),
]
_Document = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write the report's document as JSON; - is stdout.")
]
_Markdown = Annotated[
    str | None, typer.Option("--markdown", metavar="FILE", help="Write it as Markdown for a ticket; - is stdout.")
]
_GpuId = Annotated[
    str | None, typer.Option("--gpu", metavar="ID", help="The GPU it ran on; `traceanalyzer gpus` lists them.")
]
_Model = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME|config.json", help="The model that ran: a public one, or its config file."),
]
_Captures = Annotated[
    list[str] | None,
    typer.Option(
        "--capture", metavar="FILE", help="Graph capture or eager trace of this model, for shapes; repeatable."
    ),
]
_Peaks = Annotated[
    list[str] | None,
    typer.Option("--peak-tflops", metavar="DTYPE=N", help="Dense peak in TFLOP/s, as bf16=312; repeatable."),
]
_Bandwidth = Annotated[str | None, typer.Option("--bandwidth-gbs", metavar="N", help="Memory bandwidth in GB/s.")]
_Price = Annotated[
    str | None, typer.Option("--price", metavar="PRICE", help="Price of one GPU, as 2.5/h or '2.5 EUR/h'.")
]
_Force = Annotated[bool, typer.Option("--force", help="Replace files that this command did not write.")]
_Open = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No summary and no messages, only errors.")]


@dataclass(frozen=True, slots=True)
class _Settings:
    """What changes the analysis, checked."""

    gpu: str | None
    model: GivenModel | None
    peaks_tflops: dict[str, float]
    bandwidth_gbs: float | None
    price: tuple[float, str] | None
    captures: tuple[str, ...]

    @property
    def given(self) -> bool:
        return bool(self.gpu or self.model or self.peaks_tflops or self.bandwidth_gbs or self.price or self.captures)


@dataclass(frozen=True, slots=True)
class _Outputs:
    """Where the renderings go; None: not wanted."""

    page: Target | None
    document: Target | None
    markdown: Target | None
    summary: bool


def report(
    paths: _Paths,
    output: _Page = None,
    document: _Document = None,
    markdown: _Markdown = None,
    gpu: _GpuId = None,
    model: _Model = None,
    capture: _Captures = None,
    peak_tflops: _Peaks = None,
    bandwidth_gbs: _Bandwidth = None,
    price: _Price = None,
    force: _Force = False,
    open_page: _Open = False,
    quiet: _Quiet = False,
) -> None:
    """Write the report of one run: page, JSON, Markdown.

    Without -o, --json and --markdown the page is written to the current folder and a summary is printed; with any of
    them only what is asked for is made.
    """
    if any("\0" in path or not path for path in paths):
        raise InputError("a path cannot be empty or hold a NUL character")
    settings = _Settings(
        gpu=_known_gpu(gpu),
        model=_known_model(model),
        peaks_tflops=values.peaks(peak_tflops or ()),
        bandwidth_gbs=None if bandwidth_gbs is None else values.positive("--bandwidth-gbs", bandwidth_gbs),
        price=None if price is None else values.price(price),
        captures=_captures(paths, capture or ()),
    )
    outputs = _outputs(paths, output, document, markdown, force, open_page, quiet)
    with Progress(quiet) as progress:
        result = _load(paths, settings, progress)
        progress.show("writing the report")
        pages = _rendered(result, outputs)
    for place, text in pages:
        place.write(text)
    if outputs.page is not None and outputs.page.path is not None:
        if not quiet:
            say(f"wrote {outputs.page.path}")
        if open_page:
            webbrowser.open(outputs.page.path.resolve().as_uri())


def _known_gpu(gpu: str | None) -> str | None:
    """The id, checked before a long trace is read."""
    if gpu is None:
        return None
    from traceanalyzer.catalog.gpus import find

    return find(gpu).id


def _known_model(model: str | None) -> GivenModel | None:
    """The model, checked before a long trace is read."""
    if model is None:
        return None
    if "\0" in model or not model.strip():
        raise InputError("--model needs a name or a config file")
    from traceanalyzer.catalog.hf_config import given

    return given(model)


def _captures(paths: Sequence[str], captures: Sequence[str]) -> tuple[str, ...]:
    """The captures, checked before a long trace is read."""
    for capture in captures:
        if "\0" in capture or not capture or capture == STDOUT:
            raise InputError("--capture needs the name of a trace file")
        if Path(capture).is_dir():
            raise InputError("--capture needs a trace file, not a folder", "repeat the option for several files")
        if any(Path(path).is_file() and Path(capture).is_file() and Path(path).samefile(capture) for path in paths):
            raise InputError("a capture cannot be the trace it is to explain", "give the trace that was replayed")
    return tuple(captures)


def _outputs(
    paths: Sequence[str],
    output: str | None,
    document: str | None,
    markdown: str | None,
    force: bool,
    open_page: bool,
    quiet: bool,
) -> _Outputs:
    nothing_asked = output is None and document is None and markdown is None
    if [output, document, markdown].count(STDOUT) > 1:
        raise InputError("only one result can go to standard output")
    _check_apart([Path(value) for value in (output, document, markdown) if value not in (None, STDOUT)])
    if open_page and output == STDOUT:
        raise InputError("--open needs a page in a file", "leave out -o -")
    if output is None and (open_page or (nothing_asked and not _is_page(paths))):
        output = default_name(paths)

    def checked(option: str, value: str | None, marks: tuple[str, ...]) -> Target | None:
        if value is None:
            return None
        return target(option, value, paths, lambda text: all(mark in text for mark in marks), force)

    on_stdout = STDOUT in (output, document, markdown)
    return _Outputs(
        page=checked("-o", output, ('id="traceanalyzer-report"',)),
        document=checked("--json", document, ('"schema_version"', '"report_id"')),
        markdown=checked("--markdown", markdown, ("traceanalyzer",)),
        summary=not quiet and not on_stdout and (nothing_asked or _watched()),
    )


def _check_apart(places: Sequence[Path]) -> None:
    """Raise for two results in one file; a device may take both."""
    for first, second in itertools.combinations(places, 2):
        same = os.path.realpath(first) == os.path.realpath(second)
        if first.is_file() and second.is_file():
            same = first.samefile(second)
        elif first.exists():
            same = False
        if same:
            raise InputError("two results cannot go to the same file")


def _watched() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def default_name(paths: Sequence[str]) -> str:
    """The page's file name in the current folder, from the first path: no folder, no trace suffixes."""
    first = paths[0]
    name = "stdin" if first == STDOUT else Path(os.path.realpath(first)).name
    known = (*_COMPRESSED, *_KINDS)
    while Path(name).suffix.lower() in known and Path(name).stem:
        name = Path(name).stem
    return (name or "report") + PAGE_SUFFIX


def _is_page(paths: Sequence[str]) -> bool:
    """Whether a page stands among the paths: by its beginning, whatever it is called."""
    return any(_starts_as_page(path) for path in paths)


def _starts_as_page(path: str) -> bool:
    """Whether mark-up that says it is HTML comes first, be it after a byte order mark and comments."""
    start = b""
    try:
        if path == STDOUT:
            stdin = None if sys.stdin is None else sys.stdin.buffer
            if isinstance(stdin, io.BufferedReader):  # it can be looked at without taking anything from it
                start = stdin.peek(_PAGE_START)
        elif Path(path).is_file():
            with Path(path).open("rb") as stream:
                start = stream.read(_PAGE_START)
    except (OSError, ValueError):  # the reader says what is wrong with it
        return False
    text = _page_text(start[:_PAGE_START], "replace").lstrip("\ufeff \t\r\n").lower()
    return text.startswith("<") and ("<!doctype html" in text or "<html" in text)


def _page_text(data: bytes, errors: str = "strict") -> str:
    """The text of a page: UTF-8, or what its byte order mark says."""
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if wide else "utf-8-sig", errors)


def _load(paths: Sequence[str], settings: _Settings, progress: Progress) -> Report:
    if _is_page(paths):
        return _read_page(paths, settings)
    progress.show("loading")
    from traceanalyzer import AnalysisOptions, Price, analyze, captures_beside, read_trace, read_traces

    progress.show(f"reading {paths[0]}" if len(paths) == 1 else f"reading {len(paths)} paths")
    traces = read_traces(paths)
    captures = []
    for path in settings.captures:
        progress.show(f"reading {path}")
        captures.append(read_trace(path))
    progress.show("analysing")
    options = AnalysisOptions(
        gpu=settings.gpu,
        model=settings.model,
        peaks_tflops=settings.peaks_tflops,
        bandwidth_gbs=settings.bandwidth_gbs,
        price=None if settings.price is None else Price(*settings.price),
        captures=tuple(captures),
        captures_beside=() if captures else captures_beside(paths, traces),
    )
    return analyze(traces, options)


def _read_page(paths: Sequence[str], settings: _Settings) -> Report:
    if len(paths) > 1:
        raise InputError("a page made earlier cannot be combined with other paths", "give the page alone")
    name = "stdin" if paths[0] == STDOUT else Path(paths[0]).name
    if settings.given:
        raise InputError(
            f"{name} is a finished page: its GPU, model, peaks and price are fixed", "analyse the trace again"
        )
    from traceanalyzer.report.html import from_html

    try:
        with Path(paths[0]).open("rb") if paths[0] != STDOUT else sys.stdin.buffer as stream:
            data = stream.read(_LARGEST_PAGE + 1)
        if len(data) > _LARGEST_PAGE:
            raise InputError("larger than any page made here")
        return from_html(_page_text(data))
    except InputError as error:
        raise InputError(f"{name}: {error.message}", error.hint) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name} cannot be read as a page: {error}") from error


def _rendered(result: Report, outputs: _Outputs) -> list[tuple[Target, str]]:
    """Every text before the first is written: what cannot be rendered leaves no half of the answer behind."""
    from traceanalyzer import render

    texts: list[tuple[Target, str]] = []
    if outputs.page is not None:
        texts.append((outputs.page, render(result, "html")))
    if outputs.document is not None:
        texts.append((outputs.document, render(result, "json")))
    if outputs.markdown is not None:
        texts.append((outputs.markdown, render(result, "markdown")))
    if outputs.summary:
        texts.append((Target(None), render(result, "text")))
    return texts
