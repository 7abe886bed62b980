"""`collect --check`: says what would work here and what would not, a line each, and whether recording would.

It starts the command's Python once, to ask it, and never the command. What could be wrong: it sees this moment and this
shell; a service manager or another user may see something else. A Python that only starts deep inside a launcher is not
found, and then what hangs on it is unknown.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Iterator, NamedTuple

from . import interpreter as interpreters
from . import nvml as gpus
from . import service
from .interpreter import Interpreter
from .options import Options
from .probe import Probed, probe
from .remote import NO_PROFILER, RemoteError, Server
from .runtime_folder import Runtime

_PARAMETERS = Path("/proc/driver/nvidia/params")
_STATUS = Path("/proc/self/status")
_CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))
_CAP_SYS_ADMIN = 21
_ON_DEMAND_CUDA = (2, 7)
"""First torch whose Kineto asks for work in a process that uses CUDA from its start."""
_OLDEST = (1, 13)


class Line(NamedTuple):
    """One answer. `ok`: None is unknown. `needed`: without it, nothing is recorded."""

    ok: bool | None
    subject: str
    text: str
    needed: bool = False


def run(options: Options) -> int:
    """Print the answers on standard output. Returns 0 if recording would work, 1 if not."""
    works = True
    for line in lines(options):
        state = "unknown" if line.ok is None else "ok" if line.ok else "no"
        sys.stdout.write(f"{state:8}{line.subject:20}{line.text}\n")
        works = works and not (line.needed and line.ok is False)
    sys.stdout.write("recording would work here\n" if works else "recording would not work here\n")
    return 0 if works else 1


def lines(options: Options) -> Iterator[Line]:
    """All answers, as they are found."""
    if options.attach:
        yield _attached(options.attach)
        yield from _storage(options)
        return
    command = options.command or ("python3",)
    found = interpreters.find(command)
    yield _command(options)
    yield from _python(options, found)
    yield from _storage(options)
    yield _runtime(options)
    yield from _gpu()
    yield from _engine(options)
    yield _container()


def _attached(url: str) -> Line:
    try:
        server = Server(url)
        there = server.has_profiler()
    except RemoteError as error:
        return Line(False, "server", str(error), needed=True)
    return Line(there, "server", f"{server.name} at {server.url}" if there else NO_PROFILER, needed=True)


def _command(options: Options) -> Line:
    if not options.command:
        return Line(None, "command", "none given: python3 of this shell is looked at")
    word = options.command[0]
    path = shutil.which(word)
    return Line(path is not None, "command", path or f"{word}: not found, or not executable", needed=True)


def _python(options: Options, found: Interpreter | None) -> Iterator[Line]:
    if found is None:
        yield Line(None, "python", "none seen in the command; name it: --check -- python3")
        return
    probed = probe(found)
    if probed.problem:
        yield Line(False, "python", f"{found.path}: {probed.problem}", needed=True)
        return
    old = probed.python < (3, 8)
    version = ".".join(map(str, probed.python))
    yield Line(not old, "python", f"{version}, {found.path}" + (", needs 3.8" if old else ""), needed=True)
    yield _environment(options, found, probed)
    if found.isolated == "S" and probed.torch is None:
        yield Line(None, "torch", "not found with -S, which hides installed packages")
        return
    yield from _torch(options, probed)
    yield from _hooks(probed)


def _environment(options: Options, found: Interpreter, probed: Probed) -> Line:
    subject = "PYTHONPATH"
    if found.scrubbed_by:
        return Line(False, subject, f"{found.scrubbed_by} drops it: put the collector behind it", needed=True)
    if probed.loads_ours:
        return Line(True, subject, "read")
    flag = f" with -{found.isolated}" if found.isolated else ""
    if options.inject == "runpy":
        return Line(True, subject, f"not read{flag}, and not needed: --inject runpy")
    return Line(False, subject, f"not read{flag}: use --inject runpy", needed=True)


def _torch(options: Options, probed: Probed) -> Iterator[Line]:
    if probed.torch is None:
        yield Line(False, "torch", probed.torch_problem or "not installed in this Python", needed=True)
        return
    build = f"CUDA {probed.cuda}" if probed.cuda else f"ROCm {probed.hip}" if probed.hip else "CPU only"
    version = tuple(int(part) for part in re.findall(r"\d+", probed.torch)[:2])
    usable = version >= _OLDEST and probed.kineto
    why = "" if usable else ", too old to be recorded" if probed.kineto else ", built without Kineto"
    yield Line(usable, "torch", f"{probed.torch}, {build}{why}", needed=True)
    able = version >= _ON_DEMAND_CUDA
    limit = f"torch {'.'.join(map(str, _ON_DEMAND_CUDA))} or newer" + (" where CUDA is used" if probed.cuda else "")
    text = "supported" if able else f"needs {limit}; --recorder python records, and stops the model while it writes"
    yield Line(able, "recorder ondemand", text, needed=options.recorder == "ondemand")


def _hooks(probed: Probed) -> Iterator[Line]:
    for name, version, target, there in probed.engines:
        text = version if there else f"{version}, without {target}: its steps are not labelled"
        yield Line(there, name, text)
    if probed.torch is not None and not probed.engines:
        yield Line(None, "engines", "neither transformers nor vLLM nor SGLang: name what runs a step with --step")


def _storage(options: Options) -> Iterator[Line]:
    there = Path(options.output).absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=str(there)):
            pass
        free = shutil.disk_usage(str(there)).free
    except OSError as error:
        yield Line(False, "output", f"{options.output}: {error.strerror}; name another folder with -o", needed=True)
        return
    yield Line(True, "output", f"{options.output}: can be written")
    enough = free >= options.disk_bytes
    text = f"{_gigabytes(free)} free, --disk is {_gigabytes(options.disk_bytes)}"
    yield Line(enough, "space", text if enough else f"{text}: recording ends when the disk is full")


def _gigabytes(number: int) -> str:
    return f"{number / 1e9:.1f} GB"


def _runtime(options: Options) -> Line:
    subject = "temporary folder"
    try:
        Runtime({}, Path(options.output), 1, 1).remove()
    except OSError as error:
        why = error.strerror or str(error)
        return Line(False, subject, f"{why}; set TMPDIR to a short one that can be written", needed=True)
    return Line(True, subject, "can be written, and its path is short enough for a socket")


def _gpu() -> Iterator[Line]:
    try:
        nvml = gpus.load()
    except gpus.Unavailable as error:
        yield Line(None, "GPU counters", f"{error}; the report has none")
    else:
        devices = gpus.devices(nvml)
        for device in devices:
            facts = device.facts
            gpm = "tensor and memory activity too" if facts["gpm"] else "no tensor and memory activity (GPM: Hopper on)"
            mig = ", MIG mode" if facts["mig"] else ""
            yield Line(True, f"GPU {facts['index']}", f"{facts['name']}{mig}, driver {gpus.driver(nvml)}; {gpm}")
            device.close()
        if not devices:
            yield Line(False, "GPU counters", "the driver lists no GPU")
    yield _permission()


def _permission() -> Line:
    subject = "GPU profiling"
    try:
        found = re.search(r"^RmProfilingAdminOnly: *(\d)", _PARAMETERS.read_text("ascii", "replace"), re.MULTILINE)
    except OSError:
        return Line(None, subject, "no NVIDIA driver is seen")
    if found is None:
        return Line(None, subject, "the driver does not say who may profile")
    if found.group(1) == "0":
        return Line(True, subject, "allowed to everybody")
    if _is_admin():
        return Line(True, subject, "allowed to administrators, as this process is one")
    return Line(
        False, subject, "only for administrators (NVreg_RestrictProfilingToAdminUsers=1): kernels may be missing"
    )


def _is_admin() -> bool:
    """Whether this process has CAP_SYS_ADMIN, which is what the driver asks for."""
    try:
        found = re.search(r"^CapEff:\s*([0-9a-f]+)", _STATUS.read_text("ascii", "replace"), re.M)
    except OSError:
        return False
    return bool(found and int(found.group(1), 16) >> _CAP_SYS_ADMIN & 1)


def _engine(options: Options) -> Iterator[Line]:
    engine = service.engine_of(options.command)
    url = options.metrics_url or service.metrics_url(options.command)
    if url:
        answer: dict[str, Any] | None = service.Service(url).snapshot()
        text = f"{url} answers: {answer['source']}" if answer else f"{url} does not answer now; asked at each window"
        yield Line(True if answer else None, "engine metrics", text)
    elif engine == "sglang":
        yield Line(False, "engine metrics", "SGLang shows them with --enable-metrics; else name them with --metrics")
    elif engine:
        yield Line(None, "engine metrics", "where they are shown is not certain; name them with --metrics")
    words = " ".join(options.command)
    if engine and re.search(r"\bray\b", words):
        yield Line(False, "Ray", "its workers do not get our environment; see docs/collect.md")
    if engine == "vllm" and options.recorder == "ondemand":
        method = os.environ.get("VLLM_WORKER_MULTIPROC_METHOD")
        forks = method not in (None, "", "spawn")
        text = f"{method}: a forked worker cannot be asked; unset VLLM_WORKER_MULTIPROC_METHOD" if forks else "spawn"
        yield Line(not forks, "vLLM workers", text, needed=True)


def _container() -> Line:
    inside = any(mark.exists() for mark in _CONTAINER_MARKS) or "KUBERNETES_SERVICE_HOST" in os.environ
    if not inside:
        return Line(None, "container", "no sign of one")
    return Line(True, "container", "yes: let -o name a volume; other processes on its GPUs may not be seen")
