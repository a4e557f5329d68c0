"""`auto`: a run that decides by itself when n grows, from what it measures anyway.

**The rule.** n begins at config.group_size, doubles, and never falls or passes `schedule.largest`. Problems and rate
stay as they are, and C is not known to it. After every evaluation at which n has been used for `LEAST_STEPS` steps and
C has doubled since it began, n doubles if either holds:

    learned by heart   of what training reward gained since the run began, held-out reward gained less than half, and
                       half of it is more than the error of that gain; n doubles twice if both hold of a quarter
    past its steepest  over the last doubling of C held-out reward gained no more than half of the most that it gained
                       over one, or than the standard error of the gain

Between evaluations it doubles if of the groups of the last `LEAST_STEPS` steps less than one in eight had a signal,
while most rollouts still fail: a larger group sees more.

Why: small groups make more steps of the same rollouts, so that they are ahead early; they also see each problem more
often, and learn it by heart sooner (IsoCompute Playbook, arXiv 2603.12151; docs/findings.md). What is learned by heart
shows as training reward that held-out problems do not share. Where problems are many it does not; there n stays until
reward is past the middle of its rise over log C: what is still to come depends on its asymptote, which grows with n.

Held-out reward that it decides on is that of the problems at even places of each set; it is to be judged on the others
(`records.metrics.halves`). It evaluates no more often than a run of fixed n. Gradient noise is measured too, where
schedule.noise_every asks for it, and logged; the rule does not read it, because |G|^2 is too small against its error.

Everything is a pure function of logged lines: `replay` of metrics.jsonl and eval.jsonl gives each decision again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from isocompute_jax.records.errors import InputError

LEAST_STEPS = 32
"""Steps of an n before it may change."""
FIRST_STEPS = 8
"""Steps whose training reward is that of the base model: most of them lie in the warm-up."""
DOUBLED = 2.0
"""C at a change, over C at the one before it, at least."""
SHARED = (1 / 2, 1 / 4)
"""Of a gain in training reward: for each of these shares that held-out reward has less of, n doubles."""
SLOWER = 1 / 2
"""Of the most that held-out reward gained over a doubling of C: with no more over the last one, n doubles."""
LEAST_SIGNAL = 1 / 8
"""Share of groups whose rewards differ, at least."""


Rates = Mapping[str, tuple[float, ...]]
"""Name of an evaluation set -> solve rates of its deciding problems."""


@dataclasses.dataclass(frozen=True)
class Controller:
    """What the rule knows: all of it from lines of the logs."""

    group_size: int  # n of batches that are begun now
    largest: int  # that n may be
    begun: int = 0  # C when it began
    steps: int = 0  # made of it
    first: tuple[float, ...] = ()  # training reward of the run's first steps, `FIRST_STEPS` at most
    last: tuple[float, ...] = ()  # and of the last of this n
    signal: tuple[float, ...] = ()  # share of groups with a signal in its last steps
    past: tuple[tuple[int, Rates], ...] = ()  # C of each evaluation, and what it measured
    steepest: float = 0.0  # the most that held-out reward gained over a doubling of C
    decision: str = ""  # what the next line says: why n changed

    def after_step(self, line: Mapping[str, Any]) -> Controller:
        """With one more line of metrics.jsonl."""
        if line.get("group_size") != self.group_size:  # drawn ahead, before the change; or by the run it forks from
            return dataclasses.replace(self, decision="")
        reward, signal = line["reward"], 1 - line["zero_variance_share"]
        found = dataclasses.replace(
            self,
            steps=self.steps + 1,
            first=(*self.first, reward)[:FIRST_STEPS],
            last=(*self.last, reward)[-LEAST_STEPS:],
            signal=(*self.signal, signal)[-LEAST_STEPS:],
            decision="",
        )
        seen, mean = float(np.mean(found.signal)), float(np.mean(found.last))
        if found.steps >= LEAST_STEPS and seen < LEAST_SIGNAL and mean < 0.5:
            return found.grown(line["compute"], f"{seen:.0%} of groups have a signal, at a reward of {mean:.3f}")
        return found

    def after_evaluation(self, lines: Iterable[Mapping[str, Any]]) -> Controller:
        """With the lines of eval.jsonl of one step, one for each set; InputError for others than in the one before."""
        lines = list(lines)
        compute = lines[0]["compute"]
        rates = {
            line["eval_set"]: tuple(count / line["samples"] for count in line["solve_counts"][::2]) for line in lines
        }
        before = self.past[-1][1] if self.past else rates
        for name in rates:
            if len(before.get(name, ())) != len(rates[name]):
                was = "the one before had no such set, or another number of its problems"
                raise InputError(f"evaluation of {name!r} at {compute:,} rollouts: {was}; evaluate the same throughout")
        found = dataclasses.replace(self, past=(*self.past, (compute, rates)))
        if compute == 0 or not self.past:
            return found
        since, earlier = [each for each in self.past if 2 * each[0] <= compute or each is self.past[0]][-1]
        gain, error = gain_of(earlier, rates)
        octaves = math.log2(compute / since) if since else 0.0  # from no rollouts on there are none
        if octaves >= 1:
            found = dataclasses.replace(found, steepest=max(self.steepest, gain / octaves))
        if self.steps < LEAST_STEPS or compute < DOUBLED * self.begun:
            return found
        trained = float(np.mean(found.last) - np.mean(found.first))
        shared, spread = gain_of(found.base, rates)
        doublings = sum(max(shared, spread) < share * trained for share in SHARED)
        if doublings:
            why = f"training reward has gained {trained:.3f}, held-out reward {shared:.3f}"
            return found.grown(compute, why, doublings)
        if gain <= max(error, SLOWER * octaves * found.steepest):
            why = f"held-out reward gained {gain:+.3f} since {since:,} rollouts (its error {error:.3f}"
            return found.grown(compute, f"{why}, at most {found.steepest:.3f} in a doubling)")
        return found

    @property
    def base(self) -> Rates:
        """Of the run's first evaluation."""
        return self.past[0][1]

    def grown(self, compute: int, why: str, doublings: int = 1) -> Controller:
        """With larger groups from here on, as many times doubled as may be."""
        n = doubled(self.group_size, self.largest, doublings)
        if n == self.group_size:
            return self
        decision = f"n {self.group_size} -> {n} at {compute:,} rollouts: {why}"
        known = dataclasses.replace(self, group_size=n, begun=compute, decision=decision)
        return dataclasses.replace(known, steps=0, last=(), signal=())


def doubled(group_size: int, largest: int, times: int | None = None) -> int:
    """n after so many doublings, fewer where that would pass the largest; as often as may be if None."""
    room = max(largest // group_size, 1).bit_length() - 1
    return group_size << (room if times is None else min(times, room))


def gain_of(before: Rates, now: Rates) -> tuple[float, float]:
    """What held-out reward gained, in the mean of the sets, and its standard error over their problems."""
    gains = [np.subtract(now[name], before[name]) for name in now]
    error = np.sqrt(sum(gain.var(ddof=1) / len(gain) for gain in gains if len(gain) > 1)) / len(gains)
    return float(np.mean([gain.mean() for gain in gains])), float(error)


def replay(
    first: Controller, metrics: Iterable[Mapping[str, Any]], evaluations: Iterable[Mapping[str, Any]]
) -> Controller:
    """The controller after the lines of a run's logs; an evaluation comes after the step whose weights it measures."""
    *_, found = (first, *states(first, metrics, evaluations))
    return found


def states(
    first: Controller, metrics: Iterable[Mapping[str, Any]], evaluations: Iterable[Mapping[str, Any]]
) -> Iterator[Controller]:
    """The controller after each line of metrics.jsonl, and after each step's lines of eval.jsonl."""
    of_step: dict[int, list[Mapping[str, Any]]] = {}
    for line in evaluations:
        of_step.setdefault(line["step"], []).append(line)
    found = first
    if 0 in of_step:
        yield (found := found.after_evaluation(of_step[0]))
    for line in metrics:
        yield (found := found.after_step(line))
        if line["step"] in of_step:
            yield (found := found.after_evaluation(of_step[line["step"]]))
