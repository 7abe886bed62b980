"""The supervisor around commands without torch: what it starts, what it passes on, and how it ends."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.collect import running
from tests.collect.running import INSTALLED, ROOT

PYTHON = sys.executable


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -TERM $$"], -signal.SIGTERM),
        (["sh", "-c", "kill -KILL $$"], -signal.SIGKILL),
        (["no-such-command"], 127),
        (["/no/such/file"], 127),
        (["/etc"], 126),
        (["/etc/hostname"], 126),
    ],
)
def test_it_ends_as_the_command_does(command: list[str], code: int, tmp_path: Path) -> None:
    done = running.run(command, tmp_path / "out", "-q")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.count("\n") == (code in (126, 127))


def test_a_crash_leaves_no_core_file_of_ours(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    done = running.run(
        ["sh", "-c", "ulimit -c 0; kill -SEGV $$"], tmp_path / "out", cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (hard, hard)),
    )  # fmt: skip
    assert done.returncode == -signal.SIGSEGV
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert resource.getrlimit(resource.RLIMIT_CORE) == (soft, hard)


def test_streams_files_and_words_reach_the_command_untouched(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, b"from a pipe\n")
    os.close(write)
    try:
        done = running.run(
            ["sh", "-c", f"cat; cat /dev/fd/{read}; printf '%s|' \"$@\"; echo err >&2", "sh", "-h", "-o", "a b", ""],
            tmp_path / "out", "-q", stdin=None, input="from stdin\n", pass_fds=[read],
        )  # fmt: skip
    finally:
        os.close(read)
    assert done.stdout == "from stdin\nfrom a pipe\n-h|-o|a b||"
    assert done.stderr == "err\n"


def test_the_environment_is_the_command_s_own_but_for_ours(tmp_path: Path) -> None:
    code = "import os, json, sys; print(json.dumps([dict(os.environ), sys.path[:4]]))"
    before = {**running.environment(), "PYTHONPATH": f"/a{os.pathsep}{os.pathsep}/b", "TRACEANALYZER_TOKEN": "x" * 20}
    done = running.run([PYTHON, "-c", code], tmp_path / "out", env=before, cwd=tmp_path)
    after, path = json.loads(done.stdout)
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)} - {"LC_CTYPE"}
    assert changed == {"PYTHONPATH", "TRACEANALYZER_RUN", "KINETO_LOG_LEVEL", "TRACEANALYZER_TOKEN"}
    assert after["PYTHONPATH"].endswith(f"boot{os.pathsep}/a{os.pathsep}{os.pathsep}/b")
    # Our folder has gone from the path again; the empty entry is still the current folder.
    assert path == ["", "/a", str(tmp_path), "/b"]


def test_on_demand_the_environment_asks_kineto_to_ask(tmp_path: Path) -> None:
    done = running.run(["env"], tmp_path / "out", "--signal", env={**running.environment(), "KINETO_LOG_LEVEL": "2"})
    variables = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert variables["KINETO_USE_DAEMON"] == "1"
    assert variables["KINETO_LOG_LEVEL"] == "2"
    assert variables["KINETO_IPC_SOCKET_DIR"] == variables["TRACEANALYZER_RUN"]
    assert "VLLM_WORKER_MULTIPROC_METHOD" not in variables
    assert "TEARDOWN_CUPTI" not in variables


def test_vllm_s_workers_are_spawned_and_that_is_said(tmp_path: Path) -> None:
    server = tmp_path / "vllm"
    server.write_text("#!/bin/sh\necho $VLLM_WORKER_MULTIPROC_METHOD\n")
    server.chmod(0o755)
    done = running.run([str(server), "serve", "model"], tmp_path / "out", "--signal")
    assert done.stdout == "spawn\n"
    assert "VLLM_WORKER_MULTIPROC_METHOD=spawn" in done.stderr
    given = {**running.environment(), "VLLM_WORKER_MULTIPROC_METHOD": "fork"}
    done = running.run([str(server), "serve", "model"], tmp_path / "out", "--signal", env=given)
    assert done.stdout == "fork\n"
    assert "VLLM" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_is_passed_on_once(number: signal.Signals, tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "seen = []\n"
        f"signal.signal({int(number)}, lambda *_: seen.append(1))\n"
        "print('ready', flush=True)\n"
        "while not seen: time.sleep(0.01)\n"
        "time.sleep(0.3)\n"
        "sys.exit(40 + len(seen))"
    )
    with running.started([PYTHON, "-c", code], tmp_path / "out") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(running.TIMEOUT_S) == 41


def test_sigusr2_asks_for_a_window_in_mode_sample(tmp_path: Path) -> None:
    script = "echo ready; " + running.waits_for("go", "exit 0")
    with running.started(["sh", "-c", script], tmp_path / "out", "--signal", cwd=tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGUSR2)
        assert "no window: no process has run a model yet" in running.told(process, "no window")
        (tmp_path / "go").touch()
        assert process.wait(running.TIMEOUT_S) == 0
    assert running.read(tmp_path / "out").manifest["refused"] == {"no_model": 1}


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    with running.started(
        ["sh", "-c", "echo ready; " + running.waits_for("go", "exit 6")], tmp_path / "out", cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        time.sleep(0.3)  # nothing tells that nothing comes
        (tmp_path / "go").touch()
        assert process.wait(running.TIMEOUT_S) == 6


def test_the_command_survives_the_collector(short: Path, tmp_path: Path) -> None:
    script = "echo ready; " + running.waits_for("go", "touch done")
    given = {**running.environment(), "TMPDIR": str(short)}
    with running.started(["sh", "-c", script], tmp_path / "out", cwd=tmp_path, env=given) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
        process.wait(running.TIMEOUT_S)
        (tmp_path / "go").touch()
        running.until((tmp_path / "done").exists)


@pytest.mark.parametrize(("options", "code"), [([], 2), (["--signal"], 5)])
def test_where_nothing_can_be_written_a_service_runs_and_a_script_does_not(
    options: list[str], code: int, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    done = running.run(["sh", "-c", "echo ran; exit 5"], tmp_path / "file" / "out", *options)
    assert (done.returncode, done.stdout) == (code, "" if code == 2 else "ran\n")
    assert done.stderr.count("nothing can be recorded") == 1
    assert done.stderr.count("\n") == 1


def test_an_error_of_ours_ends_the_recording_and_not_the_command(tmp_path: Path) -> None:
    broken = (
        "import sys, traceanalyzer.collect.recording as r\n"
        "from traceanalyzer.collect.supervisor import main\n"
        "def fail(self): open('failed', 'w').close(); raise KeyError('a bug')\n"
        "r.Recording._tick = fail\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    script = running.waits_for("failed", "exit 5")
    done = running.run(["sh", "-c", script], tmp_path / "out", collect=[PYTHON, "-c", broken], cwd=tmp_path)
    assert done.returncode == 5
    assert "internal error: KeyError" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_runtime_folder_is_private_short_and_gone_afterwards(short: Path, tmp_path: Path) -> None:
    script = 'stat -c "%a %n" "$TRACEANALYZER_RUN"; ls "$TRACEANALYZER_RUN"'
    done = running.run(["sh", "-c", script], tmp_path / "out", env={**running.environment(), "TMPDIR": str(short)})
    mode, folder, *content = done.stdout.split()
    assert (mode, Path(folder).parent) == ("700", short)
    assert {"boot", "config.json", "control", "procs", "rings"} <= set(content)
    assert list(short.iterdir()) == []


def test_a_temporary_folder_that_does_not_do_is_passed_over(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    for folder in (long, tmp_path / "missing"):
        given = {**running.environment(), "TMPDIR": str(folder)}
        done = running.run(["sh", "-c", 'echo "$TRACEANALYZER_RUN"'], tmp_path / folder.name[:7], env=given)
        path = Path(done.stdout.strip())
        assert len(str(path)) <= 50
        assert path.parent != folder


def test_a_run_without_torch_says_so_and_the_recording_says_how_it_ended(tmp_path: Path) -> None:
    done = running.run([PYTHON, "-c", "raise SystemExit(9)"], tmp_path / "out")
    assert done.returncode == 9
    assert "no process with torch reported" in done.stderr
    assert all(line.startswith("traceanalyzer: ") for line in done.stderr.splitlines())
    manifest = running.read(tmp_path / "out").manifest
    assert (manifest["exit_code"], manifest["signal"], manifest["windows"]) == (9, None, [])
    assert manifest["finished_at"] is not None


def test_as_process_1_from_a_read_only_mount(tmp_path: Path) -> None:
    """As in a container: orphans are reaped, a signal becomes 128 and its number, nothing is written beside it."""
    tool = tmp_path / "tool"
    tool.mkdir()
    subprocess.run([PYTHON, ROOT / "scripts" / "collector.py", tool / "collector.pyz"], check=True, capture_output=True)
    # An orphan's parent is process 1 at once; the shell waits until it is gone, not a zombie, then dies of a signal.
    command = (
        "sh -c 'sh -c \"sleep 0.3\" & echo $! > orphan' ; echo $PPID; "
        "while [ -e /proc/$(cat orphan) ]; do sleep 0.05; done; kill -TERM $$"
    )
    inside = (
        f"mount --bind {tool} {tool} && mount -o remount,ro,bind {tool} && ! touch {tool}/x 2>/dev/null && "
        f'exec {PYTHON} {tool}/collector.pyz -q --counters off -o out -- sh -c "$0"'
    )
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", inside, command],
        cwd=tmp_path, env=running.environment(), capture_output=True, text=True, timeout=running.TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGTERM, "1\n", "")


def _asked(words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    line = [*INSTALLED, *words]
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, timeout=running.TIMEOUT_S, check=False)


@pytest.mark.parametrize("words", [["--every", "5"], ["--no-such"], []])
def test_a_wrong_request_is_one_line_and_code_2(words: list[str], tmp_path: Path) -> None:
    done = _asked(words, tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert list(tmp_path.iterdir()) == []


def test_help_is_the_collector_s_own(tmp_path: Path) -> None:
    done = _asked(["-h"], tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: traceanalyzer collect [options] -- COMMAND...")
    for word in ("--every", "--on-latency", "--inject", "examples:"):
        assert word in done.stdout


def test_the_signal_for_a_window_never_reaches_the_command(tmp_path: Path) -> None:
    """It would die of it, also where nothing can be recorded."""
    (tmp_path / "file").write_text("in the way")
    script = "trap 'exit 9' USR2; echo ready; " + running.waits_for("go", "exit 6")
    with running.started(["bash", "-c", script], tmp_path / "file" / "out", "--signal", cwd=tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGUSR2)
        assert "nothing is recorded in this run" in running.told(process, "asked for a window")
        (tmp_path / "go").touch()
        assert process.wait(running.TIMEOUT_S) == 6


def test_a_recording_that_cannot_start_leaves_nothing(short: Path, tmp_path: Path) -> None:
    broken = (
        "import sys, traceanalyzer.collect.kineto as k\n"
        "from traceanalyzer.collect.supervisor import main\n"
        "def fail(*_): raise OSError(28, 'No space left on device')\n"
        "k.environment = fail\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    given = {**running.environment(), "TMPDIR": str(short)}
    done = running.run(["sh", "-c", "exit 5"], tmp_path / "out", "--signal", collect=[PYTHON, "-c", broken], env=given)
    assert done.returncode == 5 and done.stderr.count("\n") == 1 and "No space left" in done.stderr
    assert list(short.iterdir()) == []
    (folder,) = (entry for entry in (tmp_path / "out").iterdir() if entry.is_dir())
    assert json.loads((folder / "recording.json").read_text())["finished_at"]


@pytest.mark.parametrize(("trap", "code"), [("", 6), ("trap 'exit 9' USR2; ", 9)])
def test_in_mode_full_the_signal_is_the_commands_where_it_handles_it(trap: str, code: int, tmp_path: Path) -> None:
    script = trap + "echo ready; " + running.waits_for("go", "exit 6")
    with running.started(["bash", "-c", script], tmp_path / "out", cwd=tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGUSR2)
        # Where the command handles it, it ends of it and says all by itself.
        assert ("--mode full records everything" in running.told(process, "--mode full")) == (not trap)
        (tmp_path / "go").touch()
        assert process.wait(running.TIMEOUT_S) == code
