"""Learns from a file, before it is rewritten, how its hosts and users are called, to find them anywhere in it.

Kineto writes the host's name into metadata at the end of the file, and PyTorch's handler names files
`<host>_<process>.<time>.pt.trace.json`. Users are whoever has a home folder in it. What could be wrong: a name that is
an ordinary word (a user called `user`) is looked for only where people and libraries write, not in the names of kernels
and ops; one that is a common word of this field or shorter than three letters is not looked for at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from traceanalyzer.share.redact.finder import Finder
from traceanalyzer.share.redact.terms import is_term
from traceanalyzer.trace.notes import NoteBook
from traceanalyzer.trace.source import SourceStream

_OVERLAP = 1024
_MOST_WEAK = 200
"""Of names that stand under keys which anybody may use."""
_MOST_HOMES = 20_000
"""What is taken into memory of a file that lists homes without end."""
_SLASH = rb"(?:\\?/|\\\\|\\u00(?:2f|2F|5c|5C))"
_PART = rb'((?:[^"\\/:,;()<>*?|]|\\u[0-9a-fA-F]{4}){1,64})'
_HOME = re.compile(rb"(?:home|Users|HOME)" + _SLASH + rb"+" + _PART + rb"(?=[\\/\":,;() ])")
_INDUCTOR = re.compile(rb"torchinductor_([A-Za-z0-9_.-]{1,64})")
_KEYED = re.compile(
    rb'"((?:host_?name|host|node_?name|node|pod_?name|fqdn|machine|computer_?name|slurmd?_node(?:name|list)'
    rb'|user(?:_?name)?|logname|\w{1,16}_user|trace_?name))"\s*:\s*"((?:[^"\\]|\\.){1,512})"',
    re.IGNORECASE | re.DOTALL,
)
_SIGNS = (
    b'"host', b'"node', b'"pod', b'"fqdn', b'"machine', b'"computer', b'"slurm', b'"user"', b'"user_name"',
    b'"username"', b'"logname"', b'_user"', b'"trace_name"', b'"tracename"',
)  # fmt: skip
"""What a key of `_KEYED` begins or ends with: looking for each of them is faster than for the pattern."""
_FILE = re.compile(r"(?:.*[\\/])?([\w.-]+?)_\d+(?:\.\d+)?\.pt\.trace\.json(?:\.gz)?", re.ASCII)
_HOST = re.compile(r"(?=[^.])[\w-]{1,63}(?:\.[\w-]{1,63}){0,8}", re.ASCII)
_USER = re.compile(r"[^\W_][\w .@+-]{1,62}\w")
_NUMBER = re.compile(r"[\d.]+")
_VAGUE = frozenset(("host", "node", "machine"))
"""Keys under which other things stand too: a name there is a host's by its form."""
_MACHINE = re.compile(r".*\..*|(?=.*\d).*-.*", re.DOTALL)
PACKAGES = frozenset((
    "torch", "vllm", "sglang", "sgl_kernel", "transformers", "triton", "flash_attn", "flashinfer", "accelerate",
    "aiter",
    "tensorrt_llm", "lmdeploy", "deepspeed", "apex", "xformers", "numpy", "huggingface_hub", "safetensors", "uvicorn",
    "fastapi", "asyncio", "concurrent", "multiprocessing", "unittest", "torchvision", "torchaudio", "peft", "atom",
))  # fmt: skip
"""Packages whose folders and functions a trace names: no secrets, and no users."""
_COMMON = PACKAGES | frozenset((
    "user", "users", "root", "admin", "administrator", "nobody", "ubuntu", "debian", "centos", "ec2-user",
    "home", "public", "shared", "default", "guest", "test", "python", "python2", "python3", "torch", "pytorch",
    "cuda", "triton", "vllm", "sglang", "aten", "nccl", "kernel", "main", "data", "model", "models", "work",
    "workspace", "localhost", "local", "host", "hostname", "node", "server", "worker", "rank", "none", "null",
    "true", "false", "trace", "traces", "profile", "profiler", "stream", "cpu", "gpu", "opt", "usr", "tmp",
    "var", "lib", "bin", "src", "app", "run", "runner", "jenkins", "decode", "prefill", "forward", "backward",
    "step", "string", "float", "half", "int", "long", "void", "const", "char", "bool", "at", "std", "nn", "and",
    "for", "the", "my", "text", "input", "name", "key", "process", "thread", "annotation", "path", "address", "email",
    "credential", "removed", "arguments", "op",
))  # fmt: skip
_LEAST_LETTERS = 3
_DISTINCTIVE = re.compile(r"(?=.*[\d.-]).{6,}|(?=.*\d)(?=.*[A-Za-z]).{4,}|\w{9,}")


@dataclass(frozen=True)
class Known:
    """The names of hosts and users that one file gives away."""

    hosts: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()

    @cached_property
    def all(self) -> Finder:
        """Finds any of them."""
        hosts, users = self._distinctive
        return Finder((hosts, users), (self.hosts - hosts, self.users - users))

    @cached_property
    def distinctive(self) -> Finder:
        """Finds those that can be nothing else."""
        return Finder(self._distinctive)

    @cached_property
    def _distinctive(self) -> tuple[frozenset[str], frozenset[str]]:
        return frozenset(filter(_is_distinctive, self.hosts)), frozenset(filter(_is_distinctive, self.users))


def learn(path: Path) -> Known:
    """Read a file once for the names in it.

    Raises:
        InputError, UnsupportedTraceError: it cannot be opened as a trace.
    """
    names = _Names()
    add_host(names.hosts, host_of_file(path.name))
    stream = SourceStream(path, NoteBook())
    try:
        tail = b""
        for chunk in stream:
            names.read(tail + chunk)
            tail = (tail + chunk)[-_OVERLAP:]
    finally:
        stream.close()
    return Known(frozenset(names.hosts | names.weak_hosts), frozenset(names.users | names.weak_users))


class _Names:
    """What was learnt up to here; the weak ones only until they are many."""

    def __init__(self) -> None:
        self.hosts: set[str] = set()
        self.users: set[str] = set()
        self.weak_hosts: set[str] = set()
        self.weak_users: set[str] = set()

    def read(self, text: bytes) -> None:
        """Learn from a piece of the file."""
        lower = text.lower()
        for pattern, signs in ((_HOME, (b"home", b"users")), (_INDUCTOR, (b"torchinductor_",))):
            if any(sign in lower for sign in signs) and len(self.users) < _MOST_HOMES:
                for found in set(pattern.findall(text)):
                    _add_user(self.users, _decoded(found))
        if any(sign in lower for sign in _SIGNS):
            for key, value in set(_KEYED.findall(text)):
                self._add(_decoded(key).lower(), _decoded(value))

    def _add(self, key: str, value: str) -> None:
        if key.replace("_", "") == "tracename":
            add_host(self.hosts, host_of_file(value))
        elif key.replace("_", "") == "hostname":
            add_host(self.hosts, value)
        elif len(self.weak_hosts) + len(self.weak_users) > _MOST_WEAK:
            return
        elif "user" in key or key == "logname":
            _add_user(self.weak_users, value)
        elif key not in _VAGUE or _MACHINE.fullmatch(value):
            add_host(self.weak_hosts, value)


def host_of_file(name: str) -> str:
    """The host that a file or a trace is named after, or the empty string."""
    found = _FILE.fullmatch(name)
    return found[1] if found and not found[1].isdigit() else ""


def add_host(hosts: set[str], name: str) -> None:
    """Add a host's full and short name, unless it is a word like any other."""
    if not _HOST.fullmatch(name):
        return
    for part in (name, name.partition(".")[0]):
        if len(part) >= _LEAST_LETTERS and part.lower() not in _COMMON and not _NUMBER.fullmatch(part):
            hosts.add(part)


def _add_user(users: set[str], name: str) -> None:
    name = name.strip()
    if len(name) >= _LEAST_LETTERS and _USER.fullmatch(name) and name.lower() not in _COMMON:
        users.add(name)


def _decoded(text: bytes) -> str:
    try:
        return msgspec.json.decode(b'"' + text + b'"', type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return text.decode("utf-8", "replace")


def _is_distinctive(name: str) -> bool:
    return bool(_DISTINCTIVE.fullmatch(name)) and not is_term(name)
