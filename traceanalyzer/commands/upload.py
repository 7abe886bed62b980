"""`traceanalyzer upload`: sends redacted traces to a server, once, or as a sidecar that watches a spool.

Results are the addresses of the traces' pages, one a line on standard output; everything else goes to standard error.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from traceanalyzer.commands import values
from traceanalyzer.commands.output import write_stdout
from traceanalyzer.commands.progress import Progress, one_line, say
from traceanalyzer.errors import InputError

if TYPE_CHECKING:
    from traceanalyzer.share.offered import Offer
    from traceanalyzer.share.redact import Level
    from traceanalyzer.share.sent import State
    from traceanalyzer.share.transfer import Server
    from traceanalyzer.share.upload import Sent, Uploader

GRACE_S = 20.0
"""How long the sidecar goes on sending what is there when it is told to stop, seconds."""
_REDRAW_S = 0.1
_SHOWN = 5
_LONGEST_SHOWN = 100
_TERMINATED = 143

_Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH", help="Traces, folders of them, recordings, or a spool of recordings."),
]
_To = Annotated[str | None, typer.Option("--to", metavar="URL", help="The server, as https://host.")]
_Redact = Annotated[str, typer.Option("--redact", metavar="LEVEL", help="What is taken out: strict, default, none.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be changed and sent; send nothing.")]
_TokenFile = Annotated[
    str | None, typer.Option("--token-file", metavar="FILE", help="Holds the token [default: $TRACEANALYZER_TOKEN].")
]
_Limit = Annotated[str | None, typer.Option("--limit", metavar="RATE", help="Send no faster, as 5MB/s.")]
_Proxy = Annotated[
    str | None, typer.Option("--proxy", metavar="URL", help="Send through this proxy [default: the environment's].")
]
_CaFile = Annotated[
    str | None, typer.Option("--ca-file", metavar="FILE", help="Trust the authorities in this PEM file, and no other.")
]
_Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label", metavar="K=V", help="model, engine, host, revision or environment of the samples; repeatable."
    ),
]
_Watch = Annotated[bool, typer.Option("--watch", help="Go on, and send what appears in the folders: a sidecar.")]
_State = Annotated[
    str | None, typer.Option("--state", metavar="FILE", help="Remembers what was sent [default: your state folder].")
]
_Insecure = Annotated[
    bool, typer.Option("--insecure-http", help="Send the token over http:// to another machine all the same.")
]
_Argument = Annotated[str | None, typer.Option("--token", hidden=True)]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No messages, only errors and the traces' pages.")]


def upload(
    paths: _Paths,
    to: _To = None,
    redact: _Redact = "default",
    dry_run: _DryRun = False,
    token_file: _TokenFile = None,
    limit: _Limit = None,
    proxy: _Proxy = None,
    ca_file: _CaFile = None,
    label: _Labels = None,
    watch: _Watch = False,
    state: _State = None,
    insecure_http: _Insecure = False,
    token: _Argument = None,
    quiet: _Quiet = False,
) -> None:
    """Redact traces, send them to a server and print their pages.

    A page is printed by its address, one a line. What was sent is remembered, so that the same command sends only
    what is new. With --watch it does so again and again until it is told to stop.
    """
    from traceanalyzer.share.address import KEEP_IT_APART, refuse_tokens
    from traceanalyzer.share.upload import checked_labels

    if token is not None:
        raise InputError("--token would show the token to everybody on this machine", KEEP_IT_APART)
    refuse_tokens([*paths, *(label or ()), *(word for word in (token_file, proxy, ca_file, state) if word)])
    if any("\0" in path or not path for path in paths):
        raise InputError("a path cannot be empty or hold a NUL character")
    level = _level(redact)
    labels = checked_labels(label or ())
    if dry_run:
        _preview(paths, level, quiet)
        return
    if to is None:
        raise InputError(
            "--to is missing: where should the traces go?", "--to https://host, or --dry-run to see what would be"
        )
    with contextlib.ExitStack() as stack:
        _on_signals(stack)
        server, base = _server(to, token_file, limit, proxy, ca_file, insecure_http)
        stack.callback(server.close)
        kept = _opened(state, watch, quiet)
        stack.callback(kept.close)
        progress = stack.enter_context(Progress(quiet or watch))
        uploader = _uploader(server, base, kept, level, labels, progress)
        told = _Told(level, quiet, progress)
        _watch(paths, uploader, told) if watch else _send(paths, uploader, told)


def _level(text: str) -> Level:
    from traceanalyzer.share.redact import LEVELS

    for level in LEVELS:
        if text == level:
            return level
    raise InputError(f"--redact: {text!r} is no level", f"one of {', '.join(LEVELS)}")


def _server(
    to: str, token_file: str | None, limit: str | None, proxy: str | None, ca_file: str | None, insecure: bool
) -> tuple[Server, str]:
    from traceanalyzer.share import address
    from traceanalyzer.share.transfer import Line, Server

    place = address.address(to)
    token = address.Token(Path(token_file) if token_file else None, os.environ.get(address.TOKEN_VARIABLE))
    address.refuse_open_road(place, token.value() is not None, insecure)
    line = Line(
        bytes_per_s=None if limit is None else _rate(limit),
        proxy=None if proxy is None else address.proxy(proxy),
        ca_file=Path(ca_file) if ca_file else None,
    )
    return Server(place, token, line), place.base


def _rate(text: str) -> float:
    from traceanalyzer.share.transfer import SLOWEST

    rate = values.size("--limit", re.sub(r"\s*(?:/\s*s(?:ec)?|ps)\s*\Z", "", text))
    if rate < SLOWEST:
        raise InputError(f"--limit: servers close the line below {SLOWEST // 1000} kB/s", "give a higher rate")
    return float(rate)


def _opened(state: str | None, watch: bool, quiet: bool) -> State:
    """The state; whoever sends once from a machine without a home can do without one."""
    from traceanalyzer.share.sent import State, default_place

    if state is not None:
        return State(Path(state))
    try:
        return State(default_place())
    except (InputError, RuntimeError) as error:
        if watch:
            raise InputError(f"a sidecar needs to remember what it sent; {error}", "--state FILE") from error
        if not quiet:
            say(f"what is sent will not be remembered: {error}")
        return State(None)


def _uploader(
    server: Server, base: str, state: State, level: Level, labels: Mapping[str, str], progress: Progress
) -> Uploader:
    from traceanalyzer.share.upload import Uploader

    shown = 0.0

    def report(done: int, size: int) -> None:
        nonlocal shown
        if time.monotonic() - shown >= _REDRAW_S:
            shown = time.monotonic()
            progress.show(f"sending: {100 * done // max(1, size)} % of {_megabytes(size)}")

    return Uploader(server, base, state, level, labels, report)


class _Told:
    """Tells what was sent: its page on standard output, how on standard error."""

    def __init__(self, level: str, quiet: bool, progress: Progress) -> None:
        self._level, self._quiet, self._progress = level, quiet, progress

    def sent(self, sent: Sent) -> None:
        self._progress.show("")
        write_stdout(sent.page + "\n")
        if not self._quiet:
            how = f"sent {_megabytes(sent.bytes)}" if sent.bytes else "the server has it already"
            say(f"{sent.name}: {how}{self._redacted(sent.counts) if sent.bytes else ''}")

    def watching(self, paths: Sequence[str]) -> None:
        if not self._quiet:
            say(f"watching {', '.join(path if Path(path).is_dir() else f'{path} (not there yet)' for path in paths)}")

    def trouble(self, text: str) -> None:
        self._progress.show("")
        say(f"traceanalyzer: {text}")

    def _redacted(self, counts: Mapping[str, int]) -> str:
        if self._level == "none":
            return ", not redacted"
        listed = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in sorted(counts.items()) if count)
        return f", redacted ({self._level}): {listed or 'nothing found'}"


def _send(paths: Sequence[str], uploader: Uploader, told: _Told) -> None:
    from traceanalyzer.share.offered import offered
    from traceanalyzer.share.upload import send_all

    send_all(uploader, offered([Path(path) for path in paths]), told.sent, told.trouble)


def _watch(paths: Sequence[str], uploader: Uploader, told: _Told) -> None:
    from traceanalyzer.share.offered import Watched
    from traceanalyzer.share.watch import Sidecar

    for path in paths:
        if Path(path).exists() and not Path(path).is_dir():
            raise InputError(f"--watch: {path} is no folder", "give the collector's spool")
    sidecar = Sidecar(Watched([Path(path) for path in paths]), uploader, told.sent, told.trouble)
    signals = 0

    def finish(number: int, frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            raise SystemExit(0)
        # A pod that ends takes its spool with it; whoever presses Ctrl-C wants it to end.
        sidecar.stop(drain=number == signal.SIGTERM)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, GRACE_S)

    for number in (signal.SIGTERM, signal.SIGINT, *([signal.SIGALRM] if hasattr(signal, "SIGALRM") else [])):
        signal.signal(number, finish)
    told.watching(paths)
    sidecar.run()


def _on_signals(stack: contextlib.ExitStack) -> None:
    """Let SIGTERM tidy up as Ctrl-C does: the redacted copy does not stay."""
    if threading.current_thread() is not threading.main_thread():
        return

    def terminated(number: int, frame: FrameType | None) -> None:
        raise SystemExit(_TERMINATED)

    watched = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGALRM") if hasattr(signal, name)]
    for number in watched:
        stack.callback(signal.signal, number, signal.getsignal(number))
    if hasattr(signal, "setitimer"):
        stack.callback(signal.setitimer, signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGTERM, terminated)


def _preview(paths: Sequence[str], level: Level, quiet: bool) -> None:
    from traceanalyzer.share.offered import offered

    with Progress(quiet) as progress:
        for offer in offered([Path(path) for path in paths]):
            progress.show(f"reading {offer.path.name}")
            text = "".join(f"{line}\n" for line in _previewed(offer, level))
            progress.show("")
            write_stdout(text)


def _previewed(offer: Offer, level: Level) -> Iterator[str]:
    """What would be sent of one file, and examples of what would be changed in it."""
    from traceanalyzer.share import redact

    found = redact.preview(offer.path, level)
    name = offer.path.name if level == "none" else redact.redacted_name(offer.path.name)
    what = f"{found.total} changes" if level != "none" else "nothing changed"
    yield one_line(f"{offer.path.name} would be sent as {name}: {what} (--redact {level})")
    for kind, count in found.counts.items():
        yield one_line(f"  {kind}: {count}")
        for example in found.examples.get(kind, ())[:_SHOWN]:
            yield one_line(f"    {_short(example.before)} -> {_short(example.after) or 'left out'}")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
