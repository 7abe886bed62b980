"""What there is to send: files, the traces of a folder, the windows of a recording, and a spool of recordings.

A manifest is somebody else's text: it may only name plain files of its own folder, and links are not followed below
the paths that were given. A `recording.json` that is a link, or that no collector wrote, makes no recording: the traces
beside it are sent as in any other folder. The collector's files appear whole; of any other file in a folder that is
watched it is waited until it has not changed for `SETTLED_S`. What could be wrong: a writer that pauses for longer than
that leaves a part, which is refused as a damaged trace or sent as one, and the whole again when it has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traceanalyzer.errors import InputError

MANIFEST = "recording.json"
SETTLED_S = 10.0
_KIND = "traceanalyzer-recording"
_LARGEST_MANIFEST = 64 << 20
_SUFFIXES = (".json", ".json.gz", ".json.zst", ".json.zstd")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}\.json(?:\.gz|\.zst)?")
_COLLECTED = re.compile(r"traceanalyzer-([0-9a-f]{12})-[\w.-]{1,150}\.pt\.trace\.json\.gz")
_FOLDER = re.compile(r"\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{12}-\d+(?:-\d+)?")
_HOST = re.compile(r"[0-9a-f]{12}")

Signature = tuple[int, int, int]
"""Size in bytes, time of the last change in ns, inode: another file has another."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One file that could be sent, with the labels that its recording gives it."""

    path: Path
    signature: Signature
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.signature[0]


@dataclass(frozen=True, slots=True)
class _Manifest:
    labels: Mapping[str, str]
    weights: Mapping[str, float | None]
    """Of each file that is named."""


_Manifests = dict[Path, tuple[Signature, _Manifest | None]]
"""What was read of each `recording.json`, and as which file."""


def signature(path: Path) -> Signature:
    """The signature of a file as it is now. Raises `OSError`."""
    return _signature(path.stat())


def _signature(facts: os.stat_result) -> Signature:
    return facts.st_size, facts.st_mtime_ns, facts.st_ino


def offered(paths: Sequence[Path]) -> list[Offer]:
    """Everything in some files and folders, in their order; what is in a folder, oldest first.

    Raises:
        InputError: a path does not exist or is neither file nor folder, or a folder holds nothing to send.
    """
    found: dict[Path, Offer] = {}
    manifests: _Manifests = {}
    for path in paths:
        try:
            if path.is_dir():
                unreadable: list[str] = []
                offers = _collected(path, manifests, unreadable)
                offers += [] if _manifest(path, manifests) else _traces(path)
                if unreadable:
                    raise InputError(unreadable[0], "check its permissions")
            else:
                offers = [_named(path)]
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}", "check the path") from error
        if not offers:
            raise InputError(f"the folder {path.resolve().name} holds no traces", "give traces, recordings or a spool")
        found |= {Path(os.path.realpath(offer.path)): offer for offer in offers}
    return list(found.values())


def _named(path: Path) -> Offer:
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):  # reading a pipe would wait for ever, or empty it
        raise InputError(f"{path} is no regular file", "write the trace to a file, and give that")
    return Offer(path, _signature(facts), _labels_of(path.name))


def _traces(folder: Path) -> list[Offer]:
    from traceanalyzer.trace.folder import traces_in

    files = [path for path in traces_in(folder) if not path.is_symlink()]
    return sorted((Offer(path, signature(path), _labels_of(path.name)) for path in files), key=_age)


class Watched:
    """Folders that are looked through again and again."""

    def __init__(self, folders: Sequence[Path], settled_s: float = SETTLED_S) -> None:
        """Nothing is read yet; a folder need not exist yet."""
        self.folders = folders
        self.unreadable: list[str] = []
        self._settled_s = settled_s
        self._manifests: _Manifests = {}
        self._since: dict[Path, tuple[Signature, float]] = {}

    def scan(self) -> list[Offer]:
        """What is there now and whole, oldest first; `unreadable` tells of the folders that cannot be read."""
        found: list[Offer] = []
        others: list[Offer] = []
        self.unreadable = []
        for folder in self.folders:
            try:
                found += _collected(folder, self._manifests, self.unreadable)
                others += [] if _manifest(folder, self._manifests) else _plain(folder)
            except FileNotFoundError:  # not there yet, or not now
                continue
            except OSError as error:
                self.unreadable.append(_unreadable(folder, error))
        self._manifests = {path: known for path, known in self._manifests.items() if path.exists()}
        return sorted([*found, *self._settled(others)], key=_age)

    def _settled(self, offers: Sequence[Offer]) -> list[Offer]:
        now = time.monotonic()
        before, self._since = self._since, {}
        settled = []
        for offer in offers:
            known, since = before.get(offer.path, (offer.signature, now))
            self._since[offer.path] = (offer.signature, since if known == offer.signature else now)
            if offer.bytes and now - self._since[offer.path][1] >= self._settled_s:
                settled.append(offer)
        return settled


def _age(offer: Offer) -> tuple[int, str]:
    return offer.signature[1], str(offer.path)


def _plain(folder: Path) -> list[Offer]:
    return [
        Offer(Path(entry.path), _signature_of(entry), _labels_of(entry.name))
        for entry in _files(folder)
        if entry.name.endswith(_SUFFIXES) and not entry.name.startswith(".")
    ]


def _collected(folder: Path, manifests: _Manifests, unreadable: list[str]) -> list[Offer]:
    """The windows of a recording, or of every recording directly in a folder; one that cannot be read is told."""
    if (manifest := _manifest(folder, manifests)) is not None:
        return sorted(_windows(folder, manifest), key=_age)
    offers: list[Offer] = []
    with os.scandir(folder) as entries:
        inside = sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    for path in map(Path, inside):
        try:
            if (manifest := _manifest(path, manifests)) is not None:
                offers += _windows(path, manifest)
        except FileNotFoundError:  # the collector has deleted it meanwhile
            continue
        except OSError as error:
            unreadable.append(_unreadable(path, error))
    return sorted(offers, key=_age)


def _unreadable(folder: Path, error: OSError) -> str:
    return f"the folder {folder.name} cannot be read: {error.strerror or error}"


def _manifest(folder: Path, manifests: _Manifests) -> _Manifest | None:
    """What makes a folder a recording, read again when it has changed; None: it is none."""
    place = folder / MANIFEST
    try:
        facts = place.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(facts.st_mode):
        return None
    now = _signature(facts)
    if manifests.get(place, (None,))[0] != now:
        manifests[place] = (now, _read(place))
    return manifests[place][1]


def _windows(folder: Path, manifest: _Manifest) -> Iterator[Offer]:
    """What the manifest names, and what the recorder has finished since it was written."""
    for entry in _files(folder):
        if entry.name in manifest.weights or _COLLECTED.fullmatch(entry.name):
            weight = manifest.weights.get(entry.name)
            labels = {**manifest.labels, **_labels_of(entry.name)}
            yield Offer(
                Path(entry.path),
                _signature_of(entry),
                labels if weight is None else {**labels, "weight_s": f"{weight:.9g}"},
            )


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Plain files, no links; what disappears meanwhile is left out."""
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_size >= 0:
                    yield entry
            except OSError:
                continue


def _signature_of(entry: os.DirEntry[str]) -> Signature:
    return _signature(entry.stat(follow_symlinks=False))  # kept from the first look


def _labels_of(name: str) -> dict[str, str]:
    found = _COLLECTED.fullmatch(name)
    return {"host": found[1]} if found else {}


def _read(path: Path) -> _Manifest | None:
    """What a manifest says of files and their weights; None where it is none of ours. Raises `OSError`."""
    try:
        with open(path, "rb", opener=_without_waiting) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return None
            text = stream.read(_LARGEST_MANIFEST + 1)
        facts = json.loads(text) if len(text) <= _LARGEST_MANIFEST else None
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    if not isinstance(facts, dict) or facts.get("kind") != _KIND:
        return None
    weights: dict[str, float | None] = {}
    for window in _dicts(facts.get("windows")):
        for file in _dicts(window.get("files")):
            name = file.get("name")
            if isinstance(name, str) and _NAME.fullmatch(name) and name != MANIFEST:
                weights[name] = _weight(window.get("weight_s"))
    labels = {"recording": _recording(path.parent, facts)}
    host = facts.get("host_hash")
    if isinstance(host, str) and _HOST.fullmatch(host):
        labels["host"] = host
    return _Manifest(labels, weights)


def _without_waiting(path: str, flags: int) -> int:
    """A link or a pipe that has taken the place of the file since it was looked at is not waited for."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _recording(folder: Path, facts: Mapping[str, Any]) -> str:
    """What names the recording: its folder as the collector calls it, or a hash where somebody gave it another name."""
    name = folder.resolve().name
    if _FOLDER.fullmatch(name):
        return name
    marks = json.dumps([facts.get("created_at"), facts.get("host_hash")]).encode("utf-8")
    return hashlib.sha256(marks).hexdigest()[:16]


def _weight(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e12 else None  # type: ignore[operator,arg-type]


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
