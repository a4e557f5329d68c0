"""The constants of theory under which it errs least on recorded sweeps.

A recorded sweep says of itself what theory asks (`theory.Question`): pass@1 of its problems, their number, n, B_problem
and the rate. The model's constants (`theory.Constants`) are what is left, and all sweeps share them: `calibrated`
finds them by least squares.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import scipy.optimize
from jaxtyping import Float

from isocompute_jax.records.errors import InputError
from isocompute_jax.theory import Question, forecast, question_about, smoothed
from isocompute_jax.theory.runs import Constants
from research.record import Sweep, curves_of

LEAST = 0.01
"""Rewards are kept this far from 0 and 1 before their log-odds are compared."""
SEARCHED = ("skill_exponent", "wrong_spread", "own", "wording", "slip", "gain")
"""Constants that are moved; the others shape arrays, and each of their values would be compiled anew."""
STEP, SCALE = 0.2, 0.5
"""Differences are taken over so much of a constant's log, for simulations are noisy; a first step goes SCALE far."""


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """A recorded sweep that theory is compared with."""

    name: str  # of the sweep
    question: Question  # what theory is asked
    pass_rates: Float[np.ndarray, "P"]  # pass@1 of the training set
    # mean held-out reward over seeds at the budgets of `question`; NaN where there is none
    reward: Float[np.ndarray, "N T"]


def measured(sweep: Sweep, *, points: int = 13, runs: int = 16) -> Measured:
    """What a sweep asks, and its answer.

    Args:
      sweep: over n and seeds alone.
      points: budgets that are compared.
      runs: simulated runs of each n.

    Raises:
      InputError: theory has nothing to say of the sweep: it differs in something else, or has another rate rule.
    """
    question = question_of(sweep, points=points, runs=runs)
    counts = sweep.facts.pass_rates[sweep.facts.shared["train_set"]]
    samples = round(1 / min(float(rate) for rate in counts if float(rate) > 0))
    solved = np.concatenate([np.full(count, round(float(rate) * samples)) for rate, count in counts.items()])
    budgets = np.geomspace(question.first_budget, question.budget, points)
    rows = []
    for one in curves_of(sweep, f"avg@{question.k}").values():
        reward = np.interp(np.log(budgets), np.log(one.compute), one.values.mean(axis=0)[:, 0])
        rows.append(np.where(budgets < one.compute[0], np.nan, reward))
    return Measured(sweep.name, question, smoothed(solved, samples), np.stack(rows))


def question_of(sweep: Sweep, *, points: int, runs: int) -> Question:
    """What theory is asked of a sweep; arguments and errors are those of `measured`."""
    fields = sweep.facts.shared
    varied = {name for own in sweep.facts.runs.values() for name in own} - {"seed", "group_size"}
    found = None
    if not varied:
        sizes = tuple(sorted(set(sweep.table["group_size"].to_pylist())))
        found = question_about(fields, sizes, fields["evaluation.first_compute"])
    if found is None:
        raise InputError(
            f"{sweep.name}: theory knows runs that differ in n and the seed alone, have a rate rule, and no KL or "
            "entropy term"
        )
    return dataclasses.replace(found, points=points, runs=runs)


def residuals(measured: Measured, constants: Constants) -> Float[np.ndarray, "N T"]:
    """Log-odds of held-out reward, expected minus measured; NaN where nothing was measured."""
    expected = forecast(measured.pass_rates, measured.question, constants, repeated=True)
    return _log_odds(expected.reward) - _log_odds(measured.reward)


def error(measured: Sequence[Measured], constants: Constants) -> float:
    """Root mean square of `residuals`, over sweeps, n and budgets, each sweep alike."""
    return float(np.sqrt(np.mean([np.nanmean(residuals(one, constants) ** 2) for one in measured])))


def calibrated(
    measured: Sequence[Measured], start: Constants, *, rounds: int, progress: Callable[[Constants, float], object]
) -> Constants:
    """The constants under which theory errs least, by least squares over log-odds and over the log of each constant.

    Args:
      measured: sweeps, each of which weighs the same.
      start: constants to begin with.
      rounds: steps of the solver, each with a simulation for every constant.
      progress: is called with constants and their error after every simulation.
    """

    def constants(logs: np.ndarray) -> Constants:
        return dataclasses.replace(start, **{name: float(np.exp(x)) for name, x in zip(SEARCHED, logs, strict=True)})

    def errors(logs: np.ndarray) -> np.ndarray:
        parts = [residuals(one, constants(logs)) for one in measured]
        known = [part[np.isfinite(part)] for part in parts]
        weighed = np.concatenate([part / np.sqrt(part.size * len(parts)) for part in known])
        progress(constants(logs), float(np.linalg.norm(weighed)))
        return weighed

    first = np.log([getattr(start, name) for name in SEARCHED])
    solved = scipy.optimize.least_squares(errors, first, x_scale=SCALE, diff_step=STEP / np.abs(first), max_nfev=rounds)
    return constants(solved.x)


def _log_odds(reward: np.ndarray) -> np.ndarray:
    """Log-odds of rewards that are no nearer to 0 and 1 than `LEAST`."""
    inside = np.clip(reward, LEAST, 1 - LEAST)
    return np.log(inside / (1 - inside))
