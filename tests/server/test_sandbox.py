"""What an analysis child may do and what not: real processes that try."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from traceanalyzer.server import confine, sandbox
from traceanalyzer.server.sandbox import Outcome
from traceanalyzer.server.settings import AnalysisLimits

Run = Callable[..., Outcome]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "work" / "7"
    place.mkdir(parents=True)
    return place


@pytest.fixture
def run(folder: Path) -> Run:
    def do(code: str, *arguments: str, stop: threading.Event | None = None, **limits: float) -> Outcome:
        (folder / "try.py").write_text(textwrap.dedent(code))
        allowed = {"memory_bytes": 512 << 20, "cpu_s": 20, "wall_s": 60, "file_bytes": 8 << 20, **limits}
        return sandbox.run_child(("try.py", *arguments), AnalysisLimits(**allowed), folder, stop)  # type: ignore[arg-type]

    return do


def test_child_sees_a_clean_environment_and_no_open_file(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEANALYZER_TOKEN", "ta_planted")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
    secret = os.open(tmp_path / "secret", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(secret, True)
    try:
        outcome = run(
            """
            import os, resource, sys
            print(sorted(os.environ))
            print(os.environ["HOME"] == os.environ["TMPDIR"] == os.getcwd())
            print([n for n in range(3, 256) if os.path.exists(f"/proc/self/fd/{n}")])
            print(os.nice(0), os.getsid(0) == os.getpid(), resource.getrlimit(resource.RLIMIT_CORE), sys.argv[1:])
            """,
            "one",
            "two",
        )
    finally:
        os.close(secret)
    names, home, files, rest = outcome.output.splitlines()
    assert (outcome.reason, outcome.code) == ("done", 0)
    assert "planted" not in outcome.output
    assert not {n for n in eval(names) if "TOKEN" in n or "AWS" in n or n in ("USER", "SSH_AUTH_SOCK", "LD_PRELOAD")}
    assert home == "True"
    assert files == "[]"
    assert rest == f"{min(19, os.nice(0) + 10)} True (0, 0) ['one', 'two']"


@pytest.mark.parametrize(
    "code",
    [
        "held = [bytearray(16 << 20) for _ in range(100)]",
        "import numpy; held = numpy.ones(1 << 28)",
        # Shared memory is no data segment: the parent sees it.
        "import mmap, time\nheld = mmap.mmap(-1, 900 << 20)\n"
        "for at in range(0, 900 << 20, 4096): held[at] = 1\ntime.sleep(30)",
    ],
    ids=["python", "numpy", "shared"],
)
def test_memory_is_limited(run: Run, code: str) -> None:
    outcome = run(code)
    assert outcome.reason == "memory"
    assert outcome.peak_bytes < 800 << 20


def test_cpu_time_is_limited(run: Run) -> None:
    outcome = run("while True: pass", cpu_s=1)
    assert outcome.reason == "cpu"


def test_cpu_time_is_limited_for_a_child_that_catches_the_signal(run: Run) -> None:
    outcome = run("import signal\nsignal.signal(signal.SIGXCPU, lambda *_: None)\nwhile True: pass", cpu_s=1)
    assert outcome.code == -signal.SIGKILL
    assert outcome.reason == "cpu"


def test_time_is_limited_whatever_the_child_does_with_its_output(run: Run) -> None:
    outcome = run("import os, time\nos.close(1); os.close(2)\ntime.sleep(60)", wall_s=1)
    assert outcome.reason == "time"
    assert outcome.seconds < 30


def test_output_is_bounded_and_cannot_drive_a_terminal(run: Run) -> None:
    outcome = run(
        r"""
        import sys
        for _ in range(300): sys.stdout.write("x" * (1 << 18))
        sys.stdout.flush()
        sys.stdout.buffer.write(b"\n\x1b[31mred\x00\xff\xe2\x80\xaelast line\n")
        """
    )
    assert outcome.reason == "done"
    assert len(outcome.output.encode()) <= 4096
    assert outcome.output.endswith("last line")
    assert all(character == "\n" or character.isprintable() for character in outcome.output)


@pytest.mark.parametrize(
    "code",
    [
        "open('large', 'wb').write(bytes(3 << 20))",
        "import os\nf = os.open('large', os.O_WRONLY | os.O_CREAT)\nos.truncate(f, 1 << 40)",
        "import time\nfor n in range(30): open(f'{n}', 'wb').write(bytes(1 << 20))\ntime.sleep(60)",
    ],
    ids=["one", "sparse", "many"],
)
def test_what_is_written_is_limited(run: Run, code: str) -> None:
    assert run(code, file_bytes=1 << 20).reason == "size"


def test_nothing_reaches_a_network(run: Run) -> None:
    outcome = run(
        """
        import ctypes, errno, socket
        for family in ("AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK", "AF_PACKET", "AF_VSOCK"):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
                try:
                    socket.socket(getattr(socket, family), kind)
                    print("open", family)
                except OSError as error:
                    print(errno.errorcode[error.errno])
        libc = ctypes.CDLL(None, use_errno=True)
        print(libc.syscall(425, 8, ctypes.create_string_buffer(256)), errno.errorcode[ctypes.get_errno()])
        """
    )
    assert outcome.output.splitlines() == ["EACCES"] * 18 + ["-1 ENOSYS"]


def test_no_process_no_program_no_signal_to_others(run: Run) -> None:
    outcome = run(
        f"""
        import ctypes, errno, os, signal, subprocess
        libc = ctypes.CDLL(None, use_errno=True)
        def tried(name, action):
            try:
                answer = action()
                print(name, "done" if answer != -1 else errno.errorcode[ctypes.get_errno()])
            except OSError as error:
                print(name, errno.errorcode[error.errno])
        tried("fork", os.fork)
        tried("spawn", lambda: os.posix_spawn("/bin/true", ["true"], {{}}))
        tried("subprocess", lambda: subprocess.run(["/bin/true"]))
        tried("exec", lambda: os.execv("/bin/true", ["true"]))
        tried("kill", lambda: os.kill({os.getpid()}, signal.SIGKILL))
        tried("killpg", lambda: os.killpg(os.getpgid({os.getpid()}), 0))
        tried("pidfd", lambda: os.pidfd_open({os.getpid()}))
        tried("ptrace", lambda: libc.ptrace(16, {os.getpid()}, 0, 0))
        tried("memory", lambda: libc.process_vm_readv({os.getpid()}, None, 0, None, 0, 0))
        tried("memfd", lambda: os.memfd_create("x"))
        tried("unshare", lambda: libc.unshare(0x10000000))
        """
    )
    answers = dict(line.split() for line in outcome.output.splitlines())
    assert set(answers.values()) == {"EPERM"}
    assert len(answers) == 11


def test_threads_are_allowed_and_counted(run: Run) -> None:
    few = (
        "import threading\nts = [threading.Thread(target=print, args=(1,)) for _ in range(8)]\n[t.start() for t in ts]"
    )
    assert run(few).output.count("1") == 8
    many = """
    import threading, time
    threading.stack_size(1 << 16)
    for _ in range(600):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    time.sleep(60)
    """
    assert run(many).reason == "memory"


def test_other_files_can_neither_be_read_nor_written(run: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("planted")
    (folder.parent / "8").mkdir()
    outcome = run(
        f"""
        import os
        def tried(action):
            try:
                action()
                print("done")
            except OSError:
                print("refused")
        tried(lambda: open({str(tmp_path / "secret")!r}).read())
        tried(lambda: open({str(tmp_path / "new")!r}, "w"))
        tried(lambda: open({str(folder.parent / "8" / "new")!r}, "w"))
        tried(lambda: os.listdir("/root"))
        tried(lambda: open("/etc/passwd").read())
        tried(lambda: open("/proc/{os.getpid()}/environ").read())
        tried(lambda: open("/proc/{os.getpid()}/cmdline").read())
        tried(lambda: os.link({str(tmp_path / "secret")!r}, "link"))
        tried(lambda: os.rename("try.py", {str(tmp_path / "out.py")!r}))
        tried(lambda: open("/dev/shm/x", "w"))
        tried(lambda: open("own", "w"))
        """
    )
    assert outcome.output.split() == ["refused"] * 10 + ["done"]


def test_what_an_analysis_needs_works(run: Run) -> None:
    outcome = run(
        """
        import pandas, pyarrow, vl_convert
        table = pandas.DataFrame({"a": pandas.array(["x"] * 1000, dtype="string[pyarrow]"), "b": range(1000)})
        print(table.groupby("a").b.sum().iloc[0], pyarrow.array([1, 2]).sum())
        drawing = {"data": {"values": [{"a": 1}]}, "mark": "bar", "encoding": {"x": {"field": "a"}}}
        print(vl_convert.vegalite_to_svg(drawing)[:4])
        """,
        memory_bytes=1 << 30,
    )
    assert outcome.output.splitlines() == ["499500 3", "<svg"]


def test_what_stops_is_told_apart(run: Run) -> None:
    assert (run("import os; os.abort()").reason, run("raise SystemExit(2)").reason) == ("killed", "refused")
    failed = run("raise ValueError('wrong')")
    assert (failed.reason, failed.code, failed.output.splitlines()[-1]) == ("failed", 1, "ValueError: wrong")


def test_stopping_kills_the_child(run: Run) -> None:
    stop = threading.Event()
    threading.Timer(0.7, stop.set).start()
    outcome = run("import time; time.sleep(60)", stop=stop)
    assert outcome.reason == "stopped"
    assert outcome.seconds < 30


def test_child_does_not_outlive_a_killed_server(folder: Path) -> None:
    (folder / "try.py").write_text("import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(300)")
    server = subprocess.Popen(
        [sys.executable, "-c", "import pathlib, sys\nfrom traceanalyzer.server import sandbox, settings\n"
         "sandbox.run_child(('try.py',), settings.AnalysisLimits(), pathlib.Path(sys.argv[1]))", str(folder)]
    )  # fmt: skip
    try:
        end = time.monotonic() + 30
        while not ((folder / "pid").exists() and (folder / "pid").read_text()):
            assert time.monotonic() < end
            time.sleep(0.02)
        child = psutil.Process(int((folder / "pid").read_text()))
    finally:
        server.kill()
        server.wait(30)
    assert child.wait(30) is None or not child.is_running()


def test_an_orphan_ends_before_it_reads_anything(folder: Path) -> None:
    (folder / "try.py").write_text("open('ran', 'w')")
    done = subprocess.run(
        [sys.executable, "-P", "-m", confine.__name__, "1073741824,10,1048576", "1", "try.py"],
        cwd=folder,
        timeout=60,
    )
    assert done.returncode == confine.ORPHAN
    assert not (folder / "ran").exists()


def test_trial_at_start_tells_what_is_blocked(folder: Path) -> None:
    assert sandbox.check(folder) == {"network": "blocked", "files": "blocked", "processes": "blocked"}


REFUSED = {
    # From the kernel's tables (asm/unistd_64.h, asm-generic/unistd.h): socket, execve, kill, ptrace, process_vm_readv.
    "x86_64": ((41, errno.EACCES), (59, errno.EPERM), (62, errno.EPERM), (101, errno.EPERM), (310, errno.EPERM)),
    "aarch64": ((198, errno.EACCES), (221, errno.EPERM), (129, errno.EPERM), (117, errno.EPERM), (270, errno.EPERM)),
}
OWN = {"x86_64": (0xC000003E, 56, 234, (0, 1, 9, 53)), "aarch64": (0xC00000B7, 220, 131, (63, 64, 222, 199))}


@pytest.mark.parametrize("machine", sorted(OWN))
def test_filter_of_each_machine(machine: str) -> None:
    program = list(confine.call_filter(machine, 4711))

    def answer(number: int, first: int = 0, audit: int = OWN[machine][0]) -> int:
        data = {0: number, 4: audit, 16: first}
        value, at = 0, 0
        while True:
            code, yes, no, k = program[at]
            at += 1
            if code == 0x20:  # BPF_LD | BPF_W | BPF_ABS
                value = data[k]
            elif code == 0x06:  # BPF_RET | BPF_K
                return k
            else:
                holds = {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[code]  # JEQ, JGE, JSET
                at += yes if holds else no

    allowed, refused, killed = 0x7FFF0000, 0x00050000, 0x80000000
    _, clone, tgkill, harmless = OWN[machine]
    assert all(len(step) == 4 and max(step[1:3]) < len(program) for step in program)
    assert {answer(number) for number in harmless} == {allowed}
    assert all(answer(number) == refused | code for number, code in REFUSED[machine])
    assert answer(425) == answer(435) == refused | errno.ENOSYS
    assert answer(clone, 0x00010000 | 0x00000100) == allowed
    assert answer(clone, 17) == refused | errno.EPERM
    assert answer(tgkill, 4711) == allowed
    assert answer(tgkill, 4712) == refused | errno.EPERM
    assert answer(0, audit=0x40000003) == killed  # the 32-bit calls of the same machine
    assert answer(0x40000000 + 41) == killed


def test_a_pipe_that_is_called_ready_and_is_not_is_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "print('said')"], stdout=subprocess.PIPE) as process:
        tail = sandbox._Tail(process)
        process.wait(30)
        pipe = tail._pipe
        with monkeypatch.context() as patch:
            patch.setattr(tail, "_pipe", SimpleNamespace(read=lambda _size: None))
            tail.read(5)
        assert tail._pipe is pipe
        tail.read(5)
        tail.read(0)
        assert tail.text() == "said"
