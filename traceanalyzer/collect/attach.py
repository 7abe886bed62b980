"""`collect --attach URL`: takes one window of a server that runs already, through its own profiling endpoints.

The server's own profiler is driven from Python, so ending the window holds up the whole server; that is said before it
starts. The window ends by itself after the steps asked for, and whatever happens here, the server is told to stop.
Where the server's files can be seen from here they become a recording.

What could be wrong: files are recognised by the name that we gave the window, or, where a server took none, by having
appeared in that folder since; another profiler that writes there at the same time is taken for it. Two servers of one
machine that share a folder are told apart by the name only.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import signal
import tempfile
import time
import zlib
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Iterator, Sequence
from urllib.parse import urlsplit

from . import service
from .block import About
from .facts import RawWindow, Window
from .options import LOOPBACK, Options
from .remote import NoAnswer, RemoteError, Server
from .say import complain, say
from .spool import Plan, Spool
from .version import tool_version

_POLL_S = 0.1
_TRACE = (".trace.json", ".trace.json.gz")
_FRONT_END = "async_llm"
"""vLLM's trace of its API process: no step and no kernel is in it."""
_RANK = re.compile(r"(?:\A|[^A-Za-z])rank[-_]?(\d+)")
_PID = re.compile(rb'"cat": *"(?:cpu_op|user_annotation|cuda_runtime)"[^{}]{0,2000}?"pid": *(\d{1,9})')
_SNIFFED = 4 << 20
_INFLATION = 20
"""A trace is written uncompressed for a moment; it may take this many times what --disk allows for good."""
_STALL = {False: (0.5, 1.0), True: (1.4, 3.0)}
"""With shapes: seconds that ending a window holds the server, per 100 000 recorded events (torch 2.13, one process)."""


def run(options: Options) -> int:
    """Take the window. Returns 0 when it was taken, 2 when not; after Ctrl-C or SIGTERM the server is told to stop."""
    url = options.attach or ""
    try:
        server = Server(url)
        _warn(server, options)
        with _sigterm_ends():
            window, name = _take(server, options)
        return _keep(server, options, window, name)
    except RemoteError as error:
        complain(str(error))
        return 2
    except KeyboardInterrupt:
        complain("interrupted; if its profiler ran, the server was told to stop it")
        return 130


def _warn(server: Server, options: Options) -> None:
    least, most = _STALL[options.record_shapes]
    say(
        f"{server.name} at {server.url}: one window of {options.steps} steps, at most {options.window_s:g} s. Its end "
        f"stops the server for {least:g} to {most:g} s per 100 000 recorded events, and a step without CUDA graphs has "
        "thousands; each step in it takes longer too"
    )
    if server.engine == "vllm":
        say("an older vLLM records call stacks unless torch_profiler_with_stack is false; these double the events")


def _take(server: Server, options: Options) -> tuple[Window, str]:
    """Open the window, wait for its end and see that it has ended."""
    asked = service.Service(server.url) if _is_here(server.url) and server.url.startswith("http:") else None
    began_ns = time.time_ns()
    name = f"traceanalyzer-{began_ns}"
    before = asked.snapshot() if asked else None
    try:
        server.start(name, options.steps, options.record_shapes, options.with_stack, options.traces)
    except (NoAnswer, KeyboardInterrupt):  # it may have started
        with contextlib.suppress(RemoteError):
            server.stop()
        raise
    try:
        end = time.monotonic() + options.window_s
        while time.monotonic() < end and not _found(server, options, name, began_ns):
            time.sleep(_POLL_S)
    finally:
        server.stop()
    after = asked.snapshot() if asked else None
    window = Window(1, "attach", began_ns, service=service.between(before, after))
    return window, name


@contextlib.contextmanager
def _sigterm_ends() -> Iterator[None]:
    """SIGTERM as Ctrl-C, so that the server is told to stop whatever ends us."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        previous = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread: whoever called us handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _is_here(url: str) -> bool:
    return urlsplit(url).hostname in LOOPBACK


def _folders(server: Server, options: Options) -> list[Path]:
    """Where the server's files may be seen from here."""
    if options.traces:
        return [Path(options.traces)]
    if server.engine == "sglang" and _is_here(server.url):
        return [Path(os.environ.get("SGLANG_TORCH_PROFILER_DIR") or tempfile.gettempdir())]
    return []


def _found(server: Server, options: Options, name: str, since_ns: int) -> list[Path]:
    """Trace files of this window: those with its name, else those that are new."""
    named, fresh = [], []
    for folder in _folders(server, options):
        with contextlib.suppress(OSError):
            for path in sorted(folder.iterdir()):
                if not path.name.endswith(_TRACE) or _FRONT_END in path.name:
                    continue
                if name in path.name:
                    named.append(path)
                elif options.traces and path.stat().st_mtime_ns >= since_ns:
                    fresh.append(path)
    return named or fresh


def _keep(server: Server, options: Options, window: Window, name: str) -> int:
    files = _found(server, options, name, window.requested_ns)
    if not files:
        _tell_where(server, options, name)
        return 0
    plan = Plan(
        mode="sample", recorder="python", quota_bytes=options.disk_bytes, keep_s=options.keep_s,
        tool_version=tool_version(), verbose=options.verbose,
    )  # fmt: skip
    try:
        spool = Spool(Path(options.output), plan)
    except OSError as error:
        complain(f"{options.output}: {error.strerror or error}; the server's traces are in {files[0].parent}")
        return 2
    abouts: dict[int, About] = {}
    for number, path in enumerate(files):
        target = spool.raw / f"{number}-1.json"
        try:
            _unpack(path, target, options.disk_bytes * _INFLATION)
        except (OSError, EOFError, zlib.error) as error:
            complain(f"{path}: {getattr(error, 'strerror', None) or error}")
            with contextlib.suppress(OSError):
                target.unlink()
            continue
        pid = _pid(target, number, abouts)
        window.raws.append(RawWindow(target, pid, "python"))
        abouts[pid] = About(process=_process(server, path))
    if window.raws:
        spool.add(window, abouts)
    spool.close(None, None)
    entry = spool.wait(window.number, 0.0) if window.raws else None
    if not entry or not entry["files"]:
        complain(f"no trace could be kept; the server's own are in {files[0].parent}")
        return 2
    return 0


def _tell_where(server: Server, options: Options, name: str) -> None:
    if options.traces:
        say(f"no trace of this window is in {options.traces}; did the server make a step? Its log says where it wrote")
    elif server.engine == "vllm":
        say("the server has written to its torch_profiler_dir: traceanalyzer report FILES, or --traces DIR next time")
    else:
        say(f"the server has written {name}-*.trace.json.gz to its SGLANG_TORCH_PROFILER_DIR, else to its /tmp")


def _unpack(path: Path, target: Path, most: int) -> None:
    """Write a trace uncompressed. Raises `OSError`, `EOFError`, `zlib.error`."""
    with path.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
        stream.seek(0)
        _copy(gzip.GzipFile(fileobj=stream) if packed else stream, target, most)


def _copy(stream: BinaryIO | gzip.GzipFile, target: Path, most: int) -> None:
    size = 0
    with target.open("xb") as out:
        while True:
            piece = stream.read(1 << 20)
            if not piece:
                return
            size += len(piece)
            if size > most:
                raise OSError(f"more than {_INFLATION} times --disk when uncompressed")
            out.write(piece)


def _pid(path: Path, number: int, taken: Sequence[int] | dict[int, About]) -> int:
    """The process that a trace is of, as its first host event says; else a number that stands for none."""
    with path.open("rb") as stream:
        found = _PID.search(stream.read(_SNIFFED))
    pid = int(found.group(1)) if found else number
    return pid if pid not in taken else number


def _process(server: Server, path: Path) -> dict[str, Any]:
    """What the file's name and the server say of a process, as its hello facts would."""
    facts: dict[str, Any] = {"engines": {server.engine: server.version}} if server.version else {}
    rank = _RANK.search(path.name)
    if rank:
        facts["rank"] = int(rank.group(1))
    return facts
