"""The steps of the last ten minutes, from the rings: how long steps take, profiled or not, and what they were.

Definitions: a step's *period* is the time from its start to the start of the next step in the same thread. The *decode
period* is that of a decode step whose next step is one, too; drafts in between belong to it. A gap before a step of new
sequences only is *idle*, and belongs to no step, unless the next step that goes on decodes more sequences than began
since: then some were in flight. So is any gap of over a minute. A step's share of time is its period, or its duration
where no period is known. Percentiles are nearest-rank.

What could be wrong: where the steps of one batch move from thread to thread there are no periods, and shares are those
of the calls' durations, which on a GPU leave out what runs on after the call. A server that fetches one new sequence at
a time looks idle while it waits for its own scheduler. Where all that was in flight ended in the step before new
sequences came, the time between is idle even if the engine was at work in it.
"""

from __future__ import annotations

import gzip
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from pathlib import Path
from typing import Any, Iterable, NamedTuple, Sequence, Tuple

from .inside import layout
from .ring import Step

KEPT_NS = 600_000_000_000
MOST_ROWS = layout.RING_CAPACITY
_LONGEST_GAP_NS = 60_000_000_000
_AROUND_NS = 1_000_000_000
"""Steps so near a window are not counted as unprofiled: Kineto prepares before it and writes after it."""
_MOST_THREADS = 256
_MOST_GAPS = 1024
_NEVER_NS = 2**63
_Span = Tuple[int, int]
"""Two times in epoch nanoseconds, both included."""
_SETTLED_STEPS, _SETTLED_NS, _SETTLED_LEAST = 16, 1_000_000_000, 3
_FEW = 3
_OTHER, _PREFILL, _DECODE, _MIXED, _DRAFT = map(layout.PHASES.index, ("other", "prefill", "decode", "mixed", "draft"))


_STORED = (
    ("start_ns", "Q"), ("duration_ns", "Q"), ("context_sum", "Q"), ("query_context_sum", "Q"), ("tokens", "I"),
    ("sequences", "I"), ("prefill_tokens", "I"), ("new_sequences", "I"), ("phase", "B"), ("flags", "B"),
    ("window", "H"), ("thread", "I"),
)  # fmt: skip
_NUMBER = Step._fields.index("number")
"""The one field of a record that is not stored; the others stand in their order in `_STORED`."""
_DERIVED = (("period_ns", "Q"), ("decode_period_ns", "Q"), ("idle_ns", "Q"), ("near_window", "B"))
COLUMNS = tuple(name for name, _ in _STORED + _DERIVED)
"""Of the log and its file. Periods and idle times of 0 are unknown or none."""


class _Gap(NamedTuple):
    """The time between two steps, the second one of new sequences only: idle until a later step says otherwise.

    before, after: their rows, counted from the first one ever. begun: how many sequences the thread had begun by then.
    """

    before: int
    after: int
    begun: int


class _Thread:
    """What is remembered of a thread. last, last_main: its last row, and the last one that is no draft."""

    __slots__ = ("begun", "gaps", "last", "last_main")

    def __init__(self) -> None:
        self.last = self.last_main = -1
        self.begun = 0
        self.gaps: deque[_Gap] = deque(maxlen=_MOST_GAPS)


class StepLog:
    """The steps of one process over the last ten minutes, at most `MOST_ROWS`, as columns. Safe for two threads.

    dropped: rows that left the log early because there were too many.
    """

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self.dropped = 0
        self._columns: dict[str, array[int]] = {name: array(code) for name, code in _STORED + _DERIVED}
        self._append_stored = [self._columns[name].append for name, _ in _STORED]
        self._append_derived = [self._columns[name].append for name, _ in _DERIVED]
        self._first = 0
        self._threads: dict[int, _Thread] = {}
        self._spans: list[_Span] = []
        self._cost: tuple[_Span, int, dict[str, Any]] | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Steps in the log."""
        return len(self._columns["start_ns"])

    def add(self, records: Iterable[Step]) -> list[int]:
        """Append records in their ring's order. Returns the decode periods (ns) that they completed outside windows."""
        completed: list[int] = []
        with self._lock:
            for step in records:
                period = self._append(step)
                if period:
                    completed.append(period)
            self._trim()
        return completed

    def mark(self, from_ns: int, until_ns: int) -> None:
        """Say that a profiler may be at work in this span: its steps are not unprofiled."""
        with self._lock:
            starts = self._columns["start_ns"]
            oldest = starts[0] if starts else from_ns - KEPT_NS
            kept = [span for span in self._spans if span[1] >= oldest]
            self._spans = _merged([*kept, _around(from_ns, until_ns)])

    def _append(self, step: Step) -> int:
        """Add a row; returns the decode period that it completes outside a window, or 0."""
        columns, row = self._columns, len(self)
        for append, value in zip(self._append_stored, step[:_NUMBER] + step[_NUMBER + 1 :]):
            append(value)
        for append in self._append_derived:
            append(0)
        thread = self._thread(step.thread)
        if thread.gaps:
            self._decide(thread, step)
        if thread.last >= self._first:
            self._link(thread, row, step)
        thread.last = self._first + row
        thread.begun += step.new_sequences
        if step.phase == _DRAFT:
            return 0
        before = thread.last_main - self._first
        thread.last_main = self._first + row
        if before < 0 or step.phase != _DECODE or columns["phase"][before] != _DECODE or self._is_idle(before, step):
            return 0
        if self._turns_over(before, step):
            return 0
        period = columns["decode_period_ns"][before] = max(0, step.start_ns - columns["start_ns"][before])
        return 0 if step.window or columns["window"][before] else period

    def _link(self, thread: _Thread, row: int, step: Step) -> None:
        """What becomes known of a row when the next step of its thread starts."""
        columns, before = self._columns, thread.last - self._first
        if self._gap(before, step) > _LONGEST_GAP_NS:
            columns["idle_ns"][before] = self._gap(before, step)
        elif self._is_idle(before, step):
            thread.gaps.append(_Gap(thread.last, self._first + row, thread.begun))
        elif not self._turns_over(before, step):
            columns["period_ns"][before] = max(0, step.start_ns - columns["start_ns"][before])
        if step.window:
            columns["near_window"][before] = 1
        if columns["window"][before]:
            columns["near_window"][row] = 1

    def _decide(self, thread: _Thread, step: Step) -> None:
        """What a step says of the gaps before it: with more sequences than began since, some were in flight.

        Only a step that goes on with sequences can say so. Until one comes, gaps count as idle: where nothing but
        prompts is run there is none.
        """
        columns, going_on = self._columns, step.sequences - step.new_sequences
        final = step.phase in (_DECODE, _MIXED) and going_on > 0
        for gap in list(thread.gaps) if final else [thread.gaps[-1]]:
            before, after = gap.before - self._first, gap.after - self._first
            if before < 0:
                continue
            start, next_start = columns["start_ns"][before], columns["start_ns"][after]
            in_flight = final and going_on > thread.begun - gap.begun
            columns["idle_ns"][before] = 0 if in_flight else max(0, next_start - start - columns["duration_ns"][before])
            if in_flight and columns["window"][before] == columns["window"][after]:
                columns["period_ns"][before] = max(0, next_start - start)
        if final:
            thread.gaps.clear()

    def _gap(self, before: int, step: Step) -> int:
        return step.start_ns - self._columns["start_ns"][before] - self._columns["duration_ns"][before]

    def _is_idle(self, before: int, step: Step) -> bool:
        return 0 < step.sequences <= step.new_sequences or self._gap(before, step) > _LONGEST_GAP_NS

    def _turns_over(self, before: int, step: Step) -> bool:
        """Whether a window opened or closed between two steps: the recorder's own time, told as open_ms and stop_ms."""
        return bool(self._columns["window"][before] != step.window)

    def _thread(self, number: int) -> _Thread:
        found = self._threads.get(number)
        if found is None:
            if len(self._threads) == _MOST_THREADS:
                newest = sorted(self._threads, key=lambda one: self._threads[one].last)[-_MOST_THREADS // 2 :]
                self._threads = {one: self._threads[one] for one in newest}
            found = self._threads[number] = _Thread()
        return found

    def _trim(self) -> None:
        """Drop what is too old or too much, in large pieces: taking from an array's front moves all of it."""
        starts = self._columns["start_ns"]
        if len(starts) <= MOST_ROWS and (not starts or starts[0] > starts[-1] - KEPT_NS - KEPT_NS // 16):
            return
        old = bisect_left(starts, starts[-1] - KEPT_NS)
        many = len(starts) - MOST_ROWS
        drop = max(old, many + MOST_ROWS // 16 if many > 0 else 0)
        self.dropped += drop - old
        for column in self._columns.values():
            del column[:drop]
        self._first += drop

    def _copy(self, names: Sequence[str], since_ns: int) -> list[array[int]]:
        """Columns from about the first step that started after `since_ns`: threads take turns, not strictly."""
        with self._lock:
            first = bisect_left(self._columns["start_ns"], since_ns)
            return [self._columns[name][first:] for name in names]

    def settled(self, now_ns: int) -> bool | None:
        """Whether the last 16 steps, or those of the last second, all decode the same number of sequences.

        Steps of no known phase (`--step`) count as alike. None where no step ran lately.
        """
        names = ("start_ns", "phase", "sequences", "period_ns")
        starts, phases, sequences, periods = self._tail(names, _SETTLED_STEPS * 4)
        main = [i for i, phase in enumerate(phases) if phase != _DRAFT][-_SETTLED_STEPS:]
        usual = max((periods[i] for i in main), default=0)
        if not main or now_ns - starts[main[-1]] > 2_000_000_000 + 3 * usual:
            return None
        late = [i for i in main if starts[i] >= starts[main[-1]] - _SETTLED_NS]
        seen = late if len(late) >= _SETTLED_LEAST else main
        enough = len(main) == _SETTLED_STEPS or starts[main[-1]] - starts[main[0]] >= _SETTLED_NS
        return (
            enough and len(seen) >= _SETTLED_LEAST and len({(phases[i], sequences[i]) for i in seen}) == 1
            and phases[seen[0]] in (_DECODE, _OTHER)
        )  # fmt: skip

    def ran(self, from_ns: int, until_ns: int) -> bool:
        """Whether a step ran at any time between these two."""
        starts, durations = self._copy(("start_ns", "duration_ns"), from_ns - _LONGEST_GAP_NS)
        return any(start < until_ns and start + duration > from_ns for start, duration in zip(starts, durations))

    def usual_period_ns(self) -> int | None:
        """Median period of the last decode steps outside windows, or else of all steps; None where there are none."""
        decoding, periods, near, windows = self._tail(("decode_period_ns", "period_ns", "near_window", "window"), 256)
        for column in (decoding, periods):
            found = sorted(p for p, n, w in zip(column, near, windows) if p and not n and not w)[-128:]
            if found:
                return found[len(found) // 2]
        return None

    def _tail(self, names: Sequence[str], rows: int) -> list[array[int]]:
        with self._lock:
            return [self._columns[name][-rows:] for name in names]

    def summary(self, now_ns: int) -> dict[str, Any]:
        """The last ten minutes: section `steplog` of a trace's block. Times in us, shares of the steps' own time.

        seconds: from the first step's start to the last one's end. idle_s: of that, without a sequence in flight.
        tokens_in: of prompts. tokens_out: that went through decoding, drafts that were refused included, the token that
        a prompt's end yields not. sequences_mean, context_mean: per decode step, and per sequence of one.
        """
        names = ("start_ns", "duration_ns", "context_sum", "tokens", "sequences", "prefill_tokens", "phase",
                 "period_ns", "decode_period_ns", "idle_ns")  # fmt: skip
        starts, durations, contexts, tokens, sequences, prompts, phases, periods, decoding, idle = self._copy(
            names, now_ns - KEPT_NS
        )
        if not starts:
            return {"seconds": 0.0, "steps": 0}
        spent = [period or duration for period, duration in zip(periods, durations)]
        by_phase = [0] * len(layout.PHASES)
        for phase, time in zip(phases, spent):
            by_phase[phase if phase < len(by_phase) else 0] += time
        whole = sum(by_phase)
        counts = Counter(phases)
        decodes = [i for i, phase in enumerate(phases) if phase == _DECODE]
        known = {name: by_phase[layout.PHASES.index(name)] for name in ("prefill", "decode", "mixed")}
        shares = {f"{name}_share": _ratio(time, whole) for name, time in known.items()}
        shares["other_share"] = _ratio(whole - sum(known.values()), whole)
        batch = sum(sequences[i] for i in decodes)
        end = max(start + duration for start, duration in zip(starts, durations))
        found: dict[str, Any] = {
            "seconds": round((end - starts[0]) / 1e9, 3), "steps": len(starts), "prefill_steps": counts[_PREFILL],
            "decode_steps": counts[_DECODE], "mixed_steps": counts[_MIXED], **shares,
            "idle_s": round(sum(idle) / 1e9, 3), "tokens_in": sum(prompts),
            "tokens_out": _decoded(tokens, prompts, phases), "sequences_mean": _ratio(batch, len(decodes), 2),
            "context_mean": _ratio(sum(contexts[i] for i in decodes), batch, 1),
        }  # fmt: skip
        prefills = sorted(time for time, phase in zip(spent, phases) if phase == _PREFILL)
        for name, values in (("decode_period", sorted(p for p in decoding if p)), ("prefill", prefills)):
            for share in (50, 99):
                found[f"{name}_p{share}_us"] = _microseconds(percentile(values, share))
        return found

    def overhead(self, opened_ns: int, closed_ns: int) -> dict[str, Any]:
        """What profiling costs: median decode period within a window, and of steps far from any.

        Of steps with the window's most frequent number of sequences where there are enough (`same_batch`), else of all.
        Where no step decodes, of the steps of no known phase. Who asks for the same window again is given the same
        answer, until the log has grown by a sixteenth.
        """
        window, rows = (opened_ns, closed_ns), self._first + len(self)
        if self._cost is not None and self._cost[0] == window and rows - self._cost[1] <= len(self) // 16:
            return dict(self._cost[2])
        found = self._overhead(window, "decode_period_ns", _DECODE)
        found = found or self._overhead(window, "period_ns", _OTHER)
        self._cost = window, rows, found
        return dict(found)

    def _overhead(self, window: _Span, column: str, wanted: int) -> dict[str, Any]:
        opened, closed = window
        columns = self._copy(("phase", "start_ns", column, "sequences"), opened - _LONGEST_GAP_NS)
        inside = [
            (sequences, period)
            for phase, start, period, sequences in zip(*columns)
            if phase == wanted and period and start >= opened and start + period <= closed
        ]
        if not inside:
            return {}
        outside = self._unprofiled(window, column, wanted)
        batch = Counter(sequences for sequences, _ in inside).most_common(1)[0][0]
        alike = [[period for sequences, period in found if sequences == batch] for found in (inside, outside)]
        same = len(alike[1]) >= _FEW
        profiled, plain = alike if same else [[period for _, period in found] for found in (inside, outside)]
        return {
            "phase": layout.PHASES[wanted], "step_us": _microseconds(percentile(sorted(profiled), 50)),
            "unprofiled_step_us": _microseconds(percentile(sorted(plain), 50)), "profiled_steps": len(profiled),
            "unprofiled_steps": len(plain), "same_batch": same,
        }  # fmt: skip

    def _unprofiled(self, window: _Span, column: str, wanted: int) -> list[tuple[int, int]]:
        """Sequences and period of each step of a phase that lies far from all windows."""
        with self._lock:
            spans = _merged([*self._spans, _around(*window)])
        begins, ends = [begin for begin, _ in spans], [end for _, end in spans]
        names = ("phase", "start_ns", column, "sequences", "window", "near_window")
        found: list[tuple[int, int]] = []
        free_from, free_until = 0, -1  # between two spans: rows lie about in order of time, so it is seldom looked up
        for phase, start, period, sequences, number, near in zip(*self._copy(names, 0)):
            if phase != wanted or not period or number or near:
                continue
            if not free_from <= start < free_until:
                place = bisect_right(begins, start)
                free_from = ends[place - 1] + 1 if place else 0
                free_until = begins[place] if place < len(begins) else _NEVER_NS
            if free_from <= start and start + period < free_until:
                found.append((sequences, period))
        return found

    def write_csv(self, path: Path) -> int:
        """Write the log, gzip-compressed and atomically. Returns the number of steps. Raises `OSError`."""
        names = [name for name in COLUMNS if name != "near_window"]
        columns = self._copy(names, 0)
        phase_at = names.index("phase")
        partial = path.with_name(path.name + ".tmp")
        try:
            with gzip.open(partial, "wt", compresslevel=1, encoding="ascii", newline="\n") as stream:
                stream.write(",".join(names) + "\n")
                for row in zip(*columns):
                    cells = [str(value) for value in row]
                    cells[phase_at] = layout.PHASES[row[phase_at]] if row[phase_at] < len(layout.PHASES) else "other"
                    stream.write(",".join(cells) + "\n")
            partial.replace(path)
        except OSError:
            if partial.exists():
                partial.unlink()
            raise
        return len(columns[0])


def percentile(ordered: Sequence[int], share: int) -> int | None:
    """Nearest rank: the smallest of the ordered values that at least `share` percent do not exceed; None of none."""
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)] if ordered else None


def _around(from_ns: int, until_ns: int) -> _Span:
    return from_ns - _AROUND_NS, until_ns + _AROUND_NS


def _merged(spans: Iterable[_Span]) -> list[_Span]:
    """In order of time, each apart from the next."""
    found: list[_Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _decoded(tokens: Iterable[int], prompts: Iterable[int], phases: Iterable[int]) -> int:
    return sum(n - p for n, p, phase in zip(tokens, prompts, phases) if phase in (_DECODE, _MIXED) and n >= p)


def _ratio(part: float, whole: float, digits: int = 4) -> float | None:
    return round(part / whole, digits) if whole else None


def _microseconds(nanoseconds: int | None) -> float | None:
    return round(nanoseconds / 1000, 1) if nanoseconds is not None else None
