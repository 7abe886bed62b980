"""The daemon that Kineto asks for work: its own thread in each process then starts, stops and writes a window.

With KINETO_USE_DAEMON=1 every process that imports torch sends datagrams to the socket `dynolog` of a folder: a header
(unsigned 64-bit size of what follows, 32 bytes of name) and for the name `req` four numbers (kinds of work it can take:
1 counters, 2 activities; how many process numbers follow; a 64-bit job) and the process numbers, its own first. The
answer has the same header and the text of a configuration, or none. What was found out by trying and by reading Kineto:

- Processes ask once a second at best. While one records or writes, the bit for activities is missing from `req`: it is
  busy, and what it is sent would be dropped.
- A start time is kept to the millisecond, by a thread of Kineto's that looks once a second: from when the process
  fetched its first window on, and after each window from that one's end on. It takes up what starts within the next
  second and silently drops what has started. So a start just behind one of its turns is missed when that turn is late
  by as little, on a busy machine: `start_s` keeps away from them.
- Bounded by iterations (PROFILE_START_ITERATION=0, ACTIVITIES_ITERATIONS=N), exactly N+1 steps are recorded, from the
  next step after the request on: the start time is ignored, each rank begins at its own time, the model's own thread
  starts the recording, and ACTIVITIES_DURATION_MSECS does not end it. A server without requests stays recording until
  the next ones come. So "N steps or T seconds, whichever comes first" does not exist.
- Bounded by time, the window ends on time whatever the model does, and all ranks start together. This is what is used:
  `windows` turns a number of steps into a duration from the steps it has seen.
- A process waits 50 ms for an answer. A later one, from a busy machine, lies there until the process asks again, and is
  taken for the answer to that; and so on from then on, each a second late. So who has not read its last answer is not
  given another, which takes up the slack.
- The file is written as NAME_PID.json.tmp and renamed when complete, about a second after the window's end.

What could be wrong: the protocol is Kineto's own and has no version. What is not understood is counted, not answered.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import socket
import struct
import termios
import threading
import time
from pathlib import Path
from typing import Iterable, Mapping

SOCKET = "dynolog"
"""The socket's name, which Kineto expects in KINETO_IPC_SOCKET_DIR."""
POLL_S = 1.0
"""How often a process asks, with the configuration that `environment` gives it."""
ROOM_S = 1.5
"""From fetching a configuration to its start time, at least: a turn of Kineto's thread, and some room."""
LEAD_S = POLL_S + ROOM_S + 1.0
"""From sending a configuration to its start time, at most."""
_TURN_S = 1.0
"""How often Kineto's thread looks whether a window begins."""
_BEHIND = (0.75, 0.5, 0.25)
"""Where a window starts between two turns, as a share: so much may a turn be late, and the rest too early."""
STALE_S = 5.0
"""A process that has not asked for so long does not ask any more."""
MOST_CONFIG_BYTES = 16_384
"""One datagram holds the whole answer."""
_HEADER = struct.Struct("<Q32s")
_REQUEST = struct.Struct("<iiq")
_PID = struct.Struct("<i")
_ACTIVITIES = 2
_LARGEST = 65_536
_MOST_PIDS = 65_536
_BUFFER_MB = 256
_MOST_LINES = 256


class Daemon:
    """Answers Kineto's requests from one thread of its own.

    polls: process number, as the process itself sees it, -> monotonic seconds of its last request.
    unused: process number -> how many times in a row it has asked for work and could record.
    refused: datagrams that were not understood.
    """

    def __init__(self, folder: Path) -> None:
        """Bind the socket. The folder must be private (0700). Raises `OSError`, also for a path of over 107 bytes."""
        self.polls: dict[int, float] = {}
        self.unused: dict[int, int] = {}
        self.refused = 0
        self._idle: dict[int, bool] = {}
        self._waiting: dict[int, tuple[bytes, float]] = {}
        self._delivered: dict[int, float] = {}
        self._lines: dict[bytes | str, socket.socket] = {}
        """Sender -> a socket to answer it alone, which tells what of that is not read yet."""
        self._lock = threading.Lock()
        self._closing = False
        self._numbered = 0
        self._path = folder / SOCKET
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.bind(str(self._path))
            self._socket.setblocking(False)
        except OSError:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._serve, name="kineto daemon", daemon=True)

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def polling(self, pid: int) -> bool:
        """Whether a process asks for work: its torch has a Kineto thread that works."""
        return time.monotonic() - self.polls.get(pid, float("-inf")) < STALE_S

    def idle(self, pid: int) -> bool:
        """Whether a process said with its last request that it could record now."""
        return self.polling(pid) and self._idle.get(pid, False)

    def asks_in(self, pid: int) -> float:
        """Seconds until a process should ask again."""
        left = self.polls.get(pid, float("-inf")) + POLL_S - time.monotonic()
        return left if left > 0 else POLL_S  # it is late, or never asked

    def fetched_ago(self, pid: int) -> float | None:
        """How many seconds ago a process fetched what was sent to it last; None where it has not."""
        with self._lock:
            fetched = self._delivered.get(pid)
        return None if fetched is None else time.monotonic() - fetched

    def send(self, pid: int, config: str, wait_s: float) -> None:
        """Give a process a configuration with its next request, if that comes within `wait_s` seconds.

        Raises `ValueError` where it is too long for one datagram.
        """
        text = config.encode()
        if len(text) > MOST_CONFIG_BYTES:
            raise ValueError("the configuration is too long for a datagram")
        with self._lock:
            self._delivered.pop(pid, None)
            self._waiting[pid] = (text, time.monotonic() + wait_s)

    def close(self) -> None:
        """Stop answering and remove the socket."""
        self._closing = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()
        for sender in list(self._lines):
            self._hang_up(sender)
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            while not self._closing:
                if selector.select(0.2):
                    self._serve_one()

    def _serve_one(self) -> None:
        try:
            data, sender = self._socket.recvfrom(_LARGEST)
        except OSError:
            return
        line = self._line(sender) if sender else None
        behind = line is not None and _unread(line)
        answer = self._answer(data, behind)
        if answer is None:
            self.refused += 1
        elif line is not None and not behind:
            try:
                line.sendto(answer, sender)
            except OSError:  # it has ended, or does not read: nobody waits for it
                self._hang_up(sender)

    def _line(self, sender: bytes | str) -> socket.socket | None:
        """The socket for a sender; None where there can be none."""
        if sender not in self._lines:
            while len(self._lines) >= _MOST_LINES:
                self._hang_up(next(iter(self._lines)))
            line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._numbered += 1
            try:
                line.bind(f"{self._path}{self._numbered}")
            except OSError:
                line.close()
                return None
            line.setblocking(False)  # with a time limit, Python would wait in sendto, too
            self._lines[sender] = line
        return self._lines[sender]

    def _hang_up(self, sender: bytes | str) -> None:
        line = self._lines.pop(sender)
        path = Path(line.getsockname())
        line.close()
        with contextlib.suppress(OSError):
            path.unlink()

    def _answer(self, data: bytes, behind: bool = False) -> bytes | None:
        """The datagram to answer with, or None where the question is none of Kineto's.

        behind: who asks has not read its last answer, and will take that for this one.
        """
        if len(data) < _HEADER.size:
            return None
        size, name = _HEADER.unpack_from(data)
        kind = name.split(b"\0", 1)[0]
        body = data[_HEADER.size :]
        if size != len(body):
            return None
        if kind == b"ctxt":  # a process that says it is there; it wants to know how many use its GPU
            return _HEADER.pack(_PID.size, name) + _PID.pack(1)
        if kind != b"req" or size < _REQUEST.size:
            return None
        kinds, count, _job = _REQUEST.unpack_from(body)
        if not 0 < count <= _MOST_PIDS or size != _REQUEST.size + count * _PID.size:
            return None
        pid = int(_PID.unpack_from(body, _REQUEST.size)[0])
        if pid <= 0:
            return None
        text = self._asked(pid, bool(kinds & _ACTIVITIES), behind)
        return _HEADER.pack(len(text), name) + text

    def _asked(self, pid: int, idle: bool, behind: bool) -> bytes:
        now = time.monotonic()
        with self._lock:
            self.polls[pid] = now
            self._idle[pid] = idle and not behind
            self.unused[pid] = self.unused.get(pid, 0) + 1 if idle else 0
            text, until = self._waiting.get(pid, (b"", 0.0))
            if behind and pid in self._delivered:
                self._delivered[pid] = now
            if text and now > until:
                del self._waiting[pid]
            elif text and idle and not behind:
                del self._waiting[pid]
                self._delivered[pid] = now
                self._idle[pid] = False
                self.unused[pid] = 0
                return text
        return b""


def _unread(line: socket.socket) -> bool:
    """Whether something that was sent through a socket has not been read yet; where that is not told, no."""
    try:
        return any(fcntl.ioctl(line.fileno(), termios.TIOCOUTQ, bytes(4)))
    except OSError:
        return False


def start_s(fetches: Iterable[float], turns: Iterable[float], tries: int = 1) -> float:
    """When a window is to start so that no process misses it, epoch seconds.

    Args:
        fetches: when each process will fetch it.
        turns: any time at which the thread of each one's Kineto looks.
        tries: from 1; a further one starts at another place between the turns, lest these be wrong.
    """
    earliest = max(fetches) + ROOM_S
    places = sorted({turn % _TURN_S for turn in turns})
    gaps = [after - before for before, after in zip(places, [*places[1:], places[0] + _TURN_S])]
    widest = max(gaps)
    place = places[gaps.index(widest)] + _BEHIND[(tries - 1) % len(_BEHIND)] * widest
    return earliest + (place - earliest) % _TURN_S


def window_config(log_file: Path, start_ns: int, duration_ms: int, shapes: bool, stack: bool) -> str:
    """The configuration for one window.

    Args:
        log_file: NAME.json; each process writes NAME_PID.json beside it.
        start_ns: epoch nanoseconds, see `start_s`.
        duration_ms: of the window.
        shapes: record the shapes of operators' inputs.
        stack: record Python frames.

    Raises `ValueError` where the file's name cannot stand in a line.
    """
    if any(c in str(log_file) for c in "\r\n#"):
        raise ValueError("Kineto cannot write to a path with a line break or '#'")
    lines = {
        "ACTIVITIES_LOG_FILE": str(log_file),
        "PROFILE_START_TIME": str(start_ns // 1_000_000),
        "ACTIVITIES_DURATION_MSECS": str(duration_ms),
        "ACTIVITIES_WARMUP_PERIOD_SECS": "0",
        "ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB": str(_BUFFER_MB),
        "PROFILE_REPORT_INPUT_SHAPES": "true" if shapes else "false",
        "PROFILE_WITH_STACK": "true" if stack else "false",
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def environment(runtime: Path, raw: Path, given: Mapping[str, str]) -> dict[str, str]:
    """What the command's processes need in their environment to ask this daemon; writes RUNTIME/kineto.conf.

    Args:
        runtime: holds the socket.
        raw: the only folder that a Kineto which asks for one may write to; others write where they are told.
        given: the environment the command gets otherwise; a configuration named there is kept and added to.
    """
    kept = ""
    if given.get("KINETO_CONFIG"):
        try:
            kept = Path(given["KINETO_CONFIG"]).read_text(encoding="utf-8", errors="replace")
        except OSError:
            kept = ""
    lines = f"ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS={POLL_S:.0f}\nACTIVITIES_MAX_GPU_BUFFER_SIZE_MB={_BUFFER_MB}\n"
    path = runtime / "kineto.conf"
    path.write_text(f"{kept}\n{lines}" if kept else lines, encoding="utf-8")
    found = {
        "KINETO_USE_DAEMON": "1",
        "KINETO_IPC_SOCKET_DIR": str(runtime),
        "KINETO_CONFIG": str(path),
        "KINETO_ONDEMAND_TRACE_DIR": os.path.realpath(str(raw)),
    }
    if "KINETO_LOG_LEVEL" not in given:
        found["KINETO_LOG_LEVEL"] = "6"  # its lines on stderr are not the command's
    return found
