"""Rounds of runs -> one table, of medians and ranges over the rounds."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from benchmarks.peers.job import PHASES, Timed
from benchmarks.peers.limit import Flops
from benchmarks.shared import row, spread

HEAD = (
    *("setting", "n", "who", "rollouts/s", "from .. to", "tokens/s", "sampling s", "grading s", "update s", "other s"),
    *("ours is faster", "from .. to"),
)
OURS = "ours"


@dataclasses.dataclass(frozen=True)
class Summary:
    """One run: medians over its timed steps."""

    rollouts_per_s: float  # of whole steps
    tokens_per_s: float  # completion tokens
    seconds: dict[str, float]  # of a step, by phase; `other` is what no phase holds


def summary(timed: Timed, rollouts: int) -> Summary:
    step = statistics.median(timed.step_s)
    phases = {name: statistics.median(phase.get(name, 0.0) for phase in timed.phase_s) for name in PHASES}
    others = zip(timed.step_s, timed.phase_s, strict=True)
    other = statistics.median(whole - sum(phase.values()) for whole, phase in others)
    rate = rollouts / step
    return Summary(rate, rate * timed.completion_tokens, {**phases, "other": other})


def lines(setting: str, group_size: int, rounds: Sequence[Mapping[str, Summary]]) -> list[str]:
    """A line for each of those that ran; their ratios are of the same round, so that drift of the machine drops out."""
    found = []
    for who in rounds[0]:
        runs = [of[who] for of in rounds]
        rates = [run.rollouts_per_s for run in runs]
        ratios = [of[OURS].rollouts_per_s / of[who].rollouts_per_s for of in rounds] if OURS in rounds[0] else []
        cells = (
            setting,
            f"{group_size}",
            who,
            _number(statistics.median(rates)),
            f"{_number(min(rates))} .. {_number(max(rates))}",
            _number(statistics.median(run.tokens_per_s for run in runs)),
            *(f"{statistics.median(run.seconds[name] for run in runs):.3f}" for name in (*PHASES, "other")),
            *(("-", "-") if who == OURS or not ratios else _ratio(ratios)),
        )
        found.append(row(*cells))
    return found


def limit_line(setting: str, group_size: int, flops: Flops, rate: float, rollouts: int) -> str:
    """What the machine's products allow, in words."""
    parts = ", ".join(
        f"{name} {getattr(flops, name) / 1e9:,.1f}" for name in ("prefill", "decode", "forward", "backward")
    )
    return (
        f"{setting}, n = {group_size}: {flops.total / 1e9:,.1f} GFLOP a step ({parts}), each prompt read once for its "
        f"group; at the {rate / 1e9:,.0f} GFLOP/s of a large product: {_number(rollouts * rate / flops.total)} "
        "rollouts/s."
    )


def _ratio(ratios: Sequence[float]) -> tuple[str, str]:
    return f"{statistics.median(ratios):.2f}x", spread(ratios)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
