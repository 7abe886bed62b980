"""What the page says of the ranks of a run beside each other."""

from __future__ import annotations

from collections.abc import Mapping

RANKS: Mapping[str, str] = {
    "nav.ranks": "Ranks",
    "ranks.title": "Ranks beside each other",
    "ranks.rank": "Rank",
    "ranks.name": "Rank {rank}",
    "ranks.device": "Device {device}",
    "ranks.straggler": "{name} keeps the others waiting: alone no slower than the next, it would save {delay} of a "
    "step ({share}); it is the slowest in {slowest} of {steps} steps.",
    "ranks.cause.compute": "Its kernels take longer than theirs.",
    "ranks.cause.idle": "It stands still longer than they do: its host is late.",
    "ranks.even": "No rank clearly keeps the others waiting: {steps} steps were matched.",
    "ranks.no_steps": "No step could be matched across the ranks, so who waits for whom is not known.",
    "ranks.balanced": "All ranks compute and are busy about equally long, waiting left out.",
    "ranks.imbalance": "The most loaded rank computes {compute} longer than the mean and is busy {busy} longer, "
    "waiting left out.",
    "ranks.clock.host": "All ranks ran on one host and have its clock.",
    "ranks.clock.collectives": "Clocks were aligned by the ends of matched collectives.",
    "ranks.clock.mixed": "Clocks were aligned by the host's clock and by the ends of matched collectives.",
    "ranks.clock.none": "Not all clocks could be aligned.",
    "ranks.spread": "Nine of ten collectives end within {spread} on all ranks.",
    "ranks.groups": "{count} groups of ranks do not share their collectives: replicas or pipeline stages.",
    "ranks.bars": "What each rank did over its span",
    "ranks.compute": "Computing",
    "ranks.exposed": "Communicating",
    "ranks.waiting": "Waiting for others",
    "ranks.passing": "Sending and receiving",
    "ranks.copies": "Copying",
    "ranks.idle": "Idle",
    "ranks.hidden": "Hidden",
    "ranks.segment": "{label}: {time}, {share}",
    "ranks.more_bars": "{count} more ranks are in the table.",
    "ranks.table": "Every rank in numbers",
    "ranks.late": "Late, mean",
    "ranks.delay": "Would save",
    "ranks.last": "Came last",
    "ranks.slowest": "Slowest in",
    "ranks.offset": "Clock ahead",
    "ranks.group": "Group",
    "ranks.note": "Communication is divided: hidden while another kernel runs; waiting until the last rank came; "
    "sending and receiving between pipeline stages; communicating, when data moves and nothing else happens. Late is "
    "how long after the first rank it comes to a collective. Would save is what the matched steps would win if this "
    "rank alone were no slower than the next.",
    "ranks.steps": "Steps that lost most to their slowest rank",
    "ranks.step": "Step",
    "ranks.wait_mean": "Waiting, mean",
    "ranks.nobody": "none",
    "ranks.slowest_rank": "Slowest rank",
    "ranks.steps_omitted": "{count} more matched steps are not in this report.",
    "ranks.bubbles": "Pipeline bubbles",
    "ranks.bubbles_note": "Time of a stage between its first and last step in which it computes nothing: idle, or "
    "inside a send or receive.",
    "ranks.bubble_share": "Share of its span",
}
