"""`python -m benchmarks.recorded`: which n the start of a recorded sweep names for the whole of it, at what cost.

    python -m benchmarks.recorded                                 # every sweep of gallery/, cut at 1/2, 1/4 and 1/8
    python -m benchmarks.recorded --sweeps=late,batch_2 --shares=0.25 --each

Evaluations up to a share of a sweep's largest compute are told, and the n for all of it is asked for. The truth is what
was measured there: the best so far of the mean over seeds, so that a run that is stopped at its peak has what it had.
Regret is that of the best n less that of the named one. Means of five seeds are not the truth: the regret that the best
n would show itself, were as many seeds drawn again, stands beside that of the methods.

The answer's 95% interval is held against that best so far of the named n, and against its last evaluation, which lies
lower where a curve falls after the cut. Cuts of one sweep are not independent: intervals of differences are of a
bootstrap over sweeps, each with all of its cuts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from absl import flags

from benchmarks.harness import METRIC, analysed, scipy_hill
from benchmarks.recorded_sweeps import GALLERY, SWEEPS, Recorded, recorded_sweep
from benchmarks.shared import names, numbers, print_head, print_row
from isocompute_jax import app
from isocompute_jax.fit.configurations import SAME_COMPUTE, ConfigurationRuns, Curve, average_seeds, read_off
from isocompute_jax.fit.frontier.answers import answer
from isocompute_jax.fit.results import Choice

SHARES = flags.DEFINE_list("shares", ["0.5", "0.25", "0.125"], "Shares of the compute that are told.")
EACH = flags.DEFINE_bool("each", False, "Print the answer to each question too.")

FIT = "the tool"
SCIPY = "SciPy's Hill per curve"
NOISE = "the best n, seeds drawn again"
METHODS = (FIT, SCIPY, "best so far", "largest n", NOISE)
RESAMPLED = 10_000
"""Draws of the bootstrap over sweeps."""
REDRAWN = 2_000
"""Draws of the seeds of a sweep."""


class Question(NamedTuple):
    """A sweep, what is told of it, and what was measured at the whole."""

    sweep: str
    share: float
    told: list[ConfigurationRuns]
    budget: float
    whole: list[Curve]  # [K] means over seeds of all evaluations

    @property
    def curves(self) -> list[Curve]:
        """[K] means over seeds of what is told."""
        return means(self.told)


class BudgetAnswer(NamedTuple):
    """Of one question."""

    sweep: str
    share: float
    regret: dict[str, float]  # method -> measured reward of the best n less that of the named one
    named: str  # by the fit
    best: str
    error: float  # reward that the fit expects less the best so far of its n
    held: bool  # whether its 95% interval holds that
    held_last: bool  # whether it holds the mean that was measured where its answer ends


def main() -> None:
    """Flags -> tables."""
    wanted = names(SWEEPS, recorded()) or recorded()
    found = [answered(question) for name in wanted for question in questions(name, numbers(SHARES))]
    if EACH.value:
        print_each(found)
    print_answers(found)


def recorded() -> list[str]:
    """Names of the recorded sweeps."""
    return sorted(path.stem for path in GALLERY.glob("*.parquet") if path.stem != "llm")  # which has no fixed n


def questions(name: str, shares: Sequence[float]) -> list[Question]:
    """Of one sweep, one for each share of its compute that is told."""
    sweep: Recorded = recorded_sweep(name)
    every = tuple({run.facts.seed for group in sweep.groups for run in group.runs})
    whole = means(sweep.groups)
    return [Question(name, share, sweep.told(every, sweep.end * share), sweep.end, whole) for share in shares]


def means(groups: Sequence[ConfigurationRuns]) -> list[Curve]:
    """[K] curve of each configuration."""
    curves = (average_seeds(group, METRIC) for group in groups)
    return [curve for curve in curves if curve is not None]


def answered(question: Question) -> BudgetAnswer:
    """Asks all methods."""
    advice = asked(question)
    run_of = [curve.configuration.name for curve in question.whole]
    index, end = run_of.index(advice.configuration.name), advice.stop
    truth = np.array([best_so_far(curve, question.budget) for curve in question.whole])
    value = {name: truth[k] for name, k in rivals(question).items()}
    value[FIT] = best_so_far(question.whole[index], end)
    low, high = advice.interval95
    last = float(read_off(question.whole[index].compute, question.whole[index].reward, np.array([end]))[0])
    regret = {name: float(truth.max() - reward) for name, reward in value.items()}
    regret[NOISE] = noise_alone(question)
    return BudgetAnswer(
        question.sweep, question.share, regret, run_of[index], run_of[int(truth.argmax())],
        advice.reward - value[FIT], low <= value[FIT] <= high, low <= last <= high,
    )  # fmt: skip


def asked(question: Question) -> Choice:
    """What `python -m isocompute_jax.fit --budget=...` advises, without its report."""
    found = answer(analysed(question.told, METRIC, [question.budget]), question.budget)
    assert found is not None
    return found.advised


def best_so_far(curve: Curve, compute: float) -> float:
    """The highest mean over seeds of the evaluations up to a compute."""
    return float(curve.reward[curve.compute <= compute * (1 + SAME_COMPUTE)].max())


def rivals(question: Question) -> dict[str, int]:
    """Method -> number of the configuration that it names."""
    curves, at = question.curves, np.array([question.budget])
    predicted = [scipy_hill(curve.compute, curve.reward)(at)[0] for curve in curves]
    sizes = [curve.configuration.group_size for curve in curves]
    return {
        SCIPY: int(np.argmax(predicted)),
        "best so far": int(np.argmax([best_so_far(curve, question.budget) for curve in curves])),
        "largest n": int(np.argmax(sizes)),
    }


def noise_alone(question: Question) -> float:
    """Mean regret that the best n itself would show if as many seeds were drawn again; NaN with one seed."""
    if min(len(curve.seeds) for curve in question.whole) < 2:
        return float("nan")
    rng = np.random.default_rng(0)
    again = np.array([redrawn(curve, question.budget, rng) for curve in question.whole])
    best = int(np.argmax([best_so_far(curve, question.budget) for curve in question.whole]))
    return float(np.mean(again.max(axis=0) - again[best]))


def redrawn(curve: Curve, compute: float, rng: np.random.Generator) -> np.ndarray:
    """[REDRAWN] best so far of the mean over seeds that were drawn with replacement."""
    per_seed = curve.per_seed[:, curve.compute <= compute * (1 + SAME_COMPUTE)]
    chosen = rng.integers(0, len(per_seed), (REDRAWN, len(per_seed)))
    return per_seed[chosen].mean(axis=1).max(axis=1)


def print_each(found: Sequence[BudgetAnswer]) -> None:
    """A row for each question."""
    print_head(("sweep", "told", "named", "best", *METHODS, "error", "95% interval holds", "the last"), left=(0, 2, 3))
    for each in found:
        cells = [f"{each.regret[name]:.4f}" for name in METHODS]
        print_row(
            each.sweep, told(each.share), each.named, each.best, *cells, f"{each.error:+.4f}", each.held, each.held_last
        )
    print()


def told(share: float) -> str:
    """1/4 for a share of 0.25."""
    return f"1/{1 / share:g} C"


def print_answers(found: Sequence[BudgetAnswer]) -> None:
    """Mean regret and coverage for each share that is told, and over all; then the fit's regret beside the others'."""
    shares = sorted({each.share for each in found}, reverse=True)
    parts = {told(share): [each for each in found if each.share == share] for share in shares}
    if len(parts) > 1:
        parts["all"] = list(found)
    sweeps = len({each.sweep for each in found})
    print(f"{sweeps} recorded sweeps, asked for the n at the whole of their compute. Mean regret\n")
    print_head(("method", *parts))
    for name in METHODS:
        print_row(name, *(f"{np.nanmean([each.regret[name] for each in part]):.4f}" for part in parts.values()))
    print_row("95% interval holds the best so far", *(share_of(each.held for each in part) for part in parts.values()))
    print_row("it holds the last evaluation", *(share_of(each.held_last for each in part) for part in parts.values()))
    errors = (np.mean(np.abs([each.error for each in part])) for part in parts.values())
    print_row("error of the reward", *(f"{error:.4f}" for error in errors))
    print("\nThe fit's regret less another's, and its share of it, with 95% intervals over sweeps\n")
    print_head(("the other", *parts))
    for name in (SCIPY, "best so far", "largest n"):
        print_row(name, *(beside(part, name) for part in parts.values()))


def share_of(held: Iterable[bool]) -> str:
    """In percent."""
    return f"{np.mean(list(held)):.0%}"


def beside(part: Sequence[BudgetAnswer], other: str) -> str:
    """Difference of mean regrets and their ratio, each with its bootstrap interval."""
    rows: dict[str, list[tuple[float, float]]] = {}
    for each in part:
        rows.setdefault(each.sweep, []).append((each.regret[FIT], each.regret[other]))
    return written(np.array([np.sum(of, axis=0) for of in rows.values()]), len(part))


def written(sums: np.ndarray, questions: int) -> str:
    """Of sums of the two regrets by sweep [N, 2] over so many questions in all."""
    drawn = np.random.default_rng(0).integers(0, len(sums), (RESAMPLED, len(sums)))
    ours, others = np.moveaxis(sums[drawn].sum(axis=1), 1, 0) / questions
    low, high = np.percentile(ours - others, [2.5, 97.5])
    least, most = np.percentile(ours / np.maximum(others, 1e-9), [2.5, 97.5])
    mine, theirs = sums.sum(axis=0) / questions
    return f"{mine - theirs:+.4f} ({low:+.4f} to {high:+.4f}); {mine / theirs:.2f} ({least:.2f} to {most:.2f})"


if __name__ == "__main__":
    app.run(main)
