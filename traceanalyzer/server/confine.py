"""Confines the process that reads hostile input: the analysis child calls `enter` before it reads anything.

    limits      data segment, CPU time, file size, open files, no core file (POSIX)
    privileges  no_new_privs, no capabilities but those that read files, dies with the server (Linux)
    files       Landlock: reads what Python needs, writes only in its own folder (Linux 5.13)
    calls       seccomp: no socket, no process, no program, no signal to others (Linux, x86_64 and aarch64)

`python -m traceanalyzer.server.confine LIMITS PARENT TARGET ARGUMENT...` enters and then runs TARGET, a module's name
or a script's path, in the same process; it is how `sandbox.run_child` starts everything. What could be wrong: the data
segment does not count shared memory (the parent watches the resident size too); a chart engine reserves half a
gigabyte of it that it never uses; on other systems only the limits hold. The address space cannot be limited at all:
V8 reserves 64 GB of it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import runpy
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

OUT_OF_MEMORY = 71
FILE_TOO_LARGE = 72
ORPHAN = 73
"""Exit codes of a confined process, beside 2 for a `TraceAnalyzerError` and 1 for a traceback."""

_OPEN_FILES = 256
_NICENESS = 10
_PACKAGE = Path(__file__).resolve().parent.parent
_LIBRARIES = ("/usr", "/lib", "/lib32", "/lib64", "/nix", "/gnu", "/sys/devices/system/cpu")
_OWN_PROCESS = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm")
_SETTINGS = ("/etc/ld.so.cache", "/etc/localtime", "/etc/fonts", "/etc/os-release")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_FILTER_MODE = 2
_READS_FILES = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: a server run as root may be installed in another user's folder."""
_CAPABILITY_VERSION = 0x20080522

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_WORK = _WRITE_FILE | _READ_FILE | _READ_DIR | 1 << 5 | 1 << 8 | 1 << 14
"""In its own folder: remove, make and cut regular files too; no folder, link, pipe or device."""
_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
"""Access to files that Landlock's version N can refuse (linux/landlock.h); later versions add none of these."""
_SCOPES = 3  # abstract sockets and signals, from version 6 on

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_KILL, _REFUSE, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_THREAD = 0x00010000  # CLONE_THREAD
_X32 = 0x40000000


@dataclass(frozen=True, slots=True)
class Limits:
    """What a child may use: bytes, CPU seconds, bytes of one file."""

    memory_bytes: int
    cpu_s: int
    file_bytes: int


_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# Every call that the filter looks at -> its number on these two machines; 0: it does not have it.
_CALLS = {
    "socket": (41, 198), "clone": (56, 220), "clone3": (435, 435), "fork": (57, 0), "vfork": (58, 0),
    "execve": (59, 221), "execveat": (322, 281), "unshare": (272, 97), "setns": (308, 268),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "kcmp": (312, 272), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "memfd_create": (319, 279), "shmget": (29, 194),
    "mq_open": (240, 180), "mount": (165, 40), "chroot": (161, 51), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219),
}  # fmt: skip
_UNKNOWN = ("io_uring_setup", "clone3")
"""These "do not exist": a library then takes the older call, whose arguments can be seen."""


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_Instruction)))


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


def enter(limits: Limits, parent: int, folder: Path) -> None:
    """Confine this process for good; it must have one thread and have read nothing yet.

    Args:
        limits: what it may use.
        parent: the process it must not outlive.
        folder: the one place it may write to.

    Raises:
        SystemExit: the parent is gone.
    """
    os.nice(_NICENESS)
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "linux":
        _call(libc.prctl, _PR_SET_PDEATHSIG, signal.SIGKILL)
        with suppress(OSError):  # the first to go when the machine's memory is short, before the server
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    if os.getppid() != parent:
        raise SystemExit(ORPHAN)
    for kind, soft, hard in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_DATA, limits.memory_bytes, limits.memory_bytes),
        (resource.RLIMIT_CPU, limits.cpu_s, limits.cpu_s + 5),  # SIGXCPU says why; SIGKILL, if that is caught
        (resource.RLIMIT_FSIZE, limits.file_bytes, limits.file_bytes),
        (resource.RLIMIT_NOFILE, _OPEN_FILES, _OPEN_FILES),
    ):
        ceiling = resource.getrlimit(kind)[1]
        lower = [v if ceiling == resource.RLIM_INFINITY else min(v, ceiling) for v in (soft, hard)]
        resource.setrlimit(kind, (lower[0], lower[1]))
    if sys.platform == "linux":
        _call(libc.prctl, _PR_SET_NO_NEW_PRIVS, 1)
        _drop_capabilities(libc)
        _restrict_files(libc, folder)
        _restrict_calls(libc)


def _call(function: Callable[..., int], number: int, *arguments: int) -> int:
    """Call `prctl` or `syscall` with whole registers: they do not say how many arguments they take."""
    given = [*arguments, 0, 0, 0, 0][:4]
    return function(ctypes.c_long(number), *(ctypes.c_long(argument) for argument in given))


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Leave root the rights to read files and no other; nobody else has any."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()
    if libc.capget(header, sets) == 0:
        # Effective, permitted, inheritable: first their low words, then their high ones.
        sets[:] = [sets[0] & _READS_FILES, sets[1] & _READS_FILES, 0, 0, 0, 0]
        libc.capset(header, sets)


def _restrict_files(libc: ctypes.CDLL, folder: Path) -> None:
    """Read Python and its libraries, read and write `folder`, and touch nothing else."""
    version = _call(libc.syscall, _LANDLOCK_CREATE, 0, 0, 1)
    if version < 1:
        return
    handled = _RIGHTS[min(version, max(_RIGHTS))]
    rules = _Ruleset(handled, 0, _SCOPES if version >= 6 else 0)
    size = 24 if version >= 6 else 8
    ruleset = _call(libc.syscall, _LANDLOCK_CREATE, ctypes.addressof(rules), size)
    if ruleset < 0:
        return
    for path, wanted in _allowed(folder):
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # not on this machine
        rights = wanted & handled & (-1 if path.is_dir() else _EXECUTE | _WRITE_FILE | _READ_FILE)
        rule = _Beneath(rights, place)
        _call(libc.syscall, _LANDLOCK_ADD, ruleset, 1, ctypes.addressof(rule))
        os.close(place)
    _call(libc.syscall, _LANDLOCK_RESTRICT, ruleset)
    os.close(ruleset)


def _allowed(folder: Path) -> Iterator[tuple[Path, int]]:
    read = _EXECUTE | _READ_FILE | _READ_DIR
    for name in (*_LIBRARIES, *_OWN_PROCESS, *_SETTINGS, sys.prefix, sys.base_prefix, sys.exec_prefix):
        yield Path(name), read
    # An installation from a checkout: its code and templates, and the mere names of what lies beside them.
    for path in (_PACKAGE, _PACKAGE.parent / "templates"):
        yield path, read
    for name in sys.path:
        yield Path(name), read if "-packages" in name else _READ_DIR
    for name in _DEVICES:
        yield Path(name), _READ_FILE | _WRITE_FILE
    yield folder, _WORK


def _restrict_calls(libc: ctypes.CDLL) -> None:
    """Install the filter; where it cannot be, `child --check` tells so."""
    machine = platform.machine()
    if machine not in _AUDIT:
        return
    steps = [_Instruction(*step) for step in call_filter(machine, os.getpid())]
    array = (_Instruction * len(steps))(*steps)
    program = _Program(len(steps), ctypes.cast(array, ctypes.POINTER(_Instruction)))
    _call(libc.prctl, _PR_SET_SECCOMP, _FILTER_MODE, ctypes.addressof(program))


def call_filter(machine: str, pid: int) -> Iterator[tuple[int, int, int, int]]:
    """The BPF program: every test that holds is followed by its answer, every other falls through."""
    yield _LOAD, 0, 0, _ARCHITECTURE
    yield _EQUAL, 1, 0, _AUDIT[machine]
    yield _RETURN, 0, 0, _KILL
    yield _LOAD, 0, 0, _NUMBER
    yield _AT_LEAST, 0, 1, _X32
    yield _RETURN, 0, 0, _KILL
    own = {"clone": (_ANY_BIT, _THREAD), "tgkill": (_EQUAL, pid)}  # a thread of its own, a signal to itself
    for name, numbers in _CALLS.items():
        number = numbers[list(_AUDIT).index(machine)]
        if name in own:
            test, value = own[name]
            yield _EQUAL, 0, 4, number
            yield _LOAD, 0, 0, _FIRST_ARGUMENT
            yield test, 0, 1, value
            yield _RETURN, 0, 0, _ALLOW
            yield _RETURN, 0, 0, _REFUSE | errno.EPERM
        elif number:
            code = errno.ENOSYS if name in _UNKNOWN else errno.EACCES if name == "socket" else errno.EPERM
            yield _EQUAL, 0, 1, number
            yield _RETURN, 0, 0, _REFUSE | code
    yield _RETURN, 0, 0, _ALLOW


def main(arguments: Sequence[str]) -> None:
    """Enter, and become the target."""
    memory, cpu, size = (int(part) for part in arguments[0].split(","))
    parent, target, rest = int(arguments[1]), arguments[2], arguments[3:]
    enter(Limits(memory, cpu, size), parent, Path.cwd())
    sys.argv = [target, *rest]
    try:
        if target.endswith(".py"):
            runpy.run_path(target, run_name="__main__")
        else:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
    except MemoryError:
        raise SystemExit(OUT_OF_MEMORY) from None
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise SystemExit(FILE_TOO_LARGE) from None
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
