"""n*(C) of a sweep that was not run: the stochastic model of `runs`, over group sizes and budgets.

What goes in is the distribution of pass@1, the learning rate, B_problem, the number of problems and n. What a model and
its tasks are beside that are `Constants`; their defaults were calibrated once, on sweeps of the embedded study.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float, Int

from isocompute_jax.allocation.estimator import AdvantageScale, Baseline
from isocompute_jax.options import check, described, option
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import write_atomic
from isocompute_jax.theory.exchange import RULES, RateRule, Rule
from isocompute_jax.theory.runs import Constants, Curves, Optimizer, World, make_world, simulate

HELD_OUT = 300
TIE_ERRORS = 2.0
"""Group sizes whose mean reward is within so many standard errors of the best one's count as tied with it."""

WITHIN_AN_OCTAVE = 0.87
"""Measured error: the share of budgets at which n* was within one octave of the measured one, over the embedded sweeps
(Adam, avg@k, default constants) that were forecast before they ran. docs/findings.md has it by sweep, and a test holds
it to the recorded runs."""

EMBEDDED = Constants()

TRIED: Mapping[str, tuple[float, float]] = {
    "learning rate": (1.25e-4, 4e-3),
    "B_problem": (2, 32),
    "D": (16, 1661),
    "n": (4, 256),
    "budget": (0, 2**19),
}
"""Least and most of each in the embedded sweeps on which `EMBEDDED` was calibrated or held against; a test holds it to
the recorded forecasts."""


@described
@dataclasses.dataclass(frozen=True)
class Question:
    """The sweep that is asked about; each field is a flag of its name."""

    budget: int = option(2**17, "Largest C, in rollouts.", low=1)
    group_sizes: tuple[int, ...] = option((4, 8, 16, 32, 64, 128), "Rollouts per problem, n, that are compared.", low=2)
    problems_per_batch: int = option(8, "B_problem.", low=1)
    problem_set_size: int = option(0, "D, training problems; 0 for as many as --pass_rates has.", low=0)
    optimizer: Optimizer = option(
        "adam",
        "Of the weights. With sgd, which takes no `gain`, a rate is what a weight moves by per unit of "
        "its gradient, in logits of its skill: rates near 1, not 1e-4.",
    )
    base_lr: float = option(2.5e-4, "Learning rate at `base_batch` rollouts per step; its unit: `optimizer`.", low=0)
    base_batch: int = option(64, "See `base_lr`.", low=1)
    rate_rule: RateRule = option("constant", "How the rate grows with the rollouts per step.")
    warmup_steps: int = option(10, "Steps over which it rises from zero.", low=0)
    advantage_scale: AdvantageScale = option("group_std", "As in the run config.")
    baseline: Baseline = option("group_mean", "As in the run config.")
    zero_variance_groups: Literal["drop", "keep"] = option("drop", "Whether groups without signal leave the mean.")
    clip_norm: float = option(1.0, "Of the gradient.", above=0)
    metric: Literal["avg", "best", "worst"] = option("avg", "What is to be best: avg@k, best@k or worst@k.")
    k: int = option(4, "k of the metric.", low=1)
    points: int = option(13, "Budgets that are compared, log-spaced, up to the largest.", low=2)
    first_budget: int = option(2048, "The smallest of them.", low=1)
    runs: int = option(16, "Simulated runs of each n.", low=2)
    seed: int = option(0, "Of the simulation.", low=0)

    def __post_init__(self) -> None:
        check(self, "--")
        if self.first_budget >= self.budget:
            raise InputError(f"--first_budget={self.first_budget}: it must be below --budget={self.budget}")
        if len(set(self.group_sizes)) < 2:
            raise InputError("--group_sizes: give two or more different ones to compare")

    @property
    def rule(self) -> Rule:
        """How steps are made."""
        scale = self.base_batch / self.problems_per_batch
        return Rule(self.advantage_scale, self.baseline, self.rate_rule, self.base_lr, scale)


def asked(question: Question, problems: int) -> dict[str, tuple[float, float]]:
    """What `TRIED` has of a sweep of so many training problems: least and most of each; the rate at each of its n."""
    sizes = question.group_sizes
    rates = [float(question.rule.rate_at(n)) for n in sizes]
    return {
        "learning rate": (min(rates), max(rates)),
        "B_problem": (question.problems_per_batch, question.problems_per_batch),
        "D": (problems, problems),
        "n": (min(sizes), max(sizes)),
        "budget": (question.budget, question.budget),
    }


def untried(question: Question, problems: int) -> list[str]:
    """In what a sweep lies outside of the sweeps that the default constants stand on: a phrase for each."""
    found = [
        f"{name} {low:.3g}{'' if low == high else f' to {high:.3g}'} (tried: {least:.3g} to {most:.3g})"
        for name, (low, high) in asked(question, problems).items()
        for least, most in [TRIED[name]]
        if low < least * (1 - 1e-6) or high > most * (1 + 1e-6)
    ]
    found += [f"--optimizer={question.optimizer} (tried: adam)"] if question.optimizer != "adam" else []
    return found + ([f"--metric={question.metric} (tried: avg)"] if question.metric != "avg" else [])


def question_about(fields: Mapping[str, Any], group_sizes: tuple[int, ...], first_budget: int) -> Question | None:
    """What theory is asked of runs that differ in n and the seed alone; None where it has nothing to say of them.

    Args:
      fields: what the runs have in common, by dotted config field (`records.identity`).
      group_sizes: n.
      first_budget: C of the first evaluation.
    """
    rule = RULES.get(fields["optimizer.lr_scaling_exponent"])
    scale = fields["recipe.advantage_scale"]
    if rule is None or fields["loss.kl_coef"] or fields["loss.entropy_coef"] or scale not in get_args(AdvantageScale):
        return None
    return Question(
        budget=fields["max_compute"],
        first_budget=first_budget,
        group_sizes=group_sizes,
        problems_per_batch=fields["problems_per_batch"],
        problem_set_size=fields["problem_set_size"],
        base_lr=fields["optimizer.base_lr"],
        base_batch=fields["optimizer.base_batch"],
        rate_rule=rule,
        warmup_steps=fields["optimizer.warmup_steps"],
        advantage_scale=scale,
        baseline=fields.get("recipe.baseline", "group_mean"),
        zero_variance_groups="drop" if fields["recipe.zero_variance_groups"] == "drop" else "keep",
        clip_norm=fields["optimizer.clip_norm"],
        k=fields["evaluation.k"],
    )


@dataclasses.dataclass(frozen=True, eq=False)
class ExpectedCurves:
    """What is predicted, for N group sizes at T budgets."""

    compute: Float[np.ndarray, "T"]  # C
    group_sizes: Int[np.ndarray, "N"]  # n, rising
    reward: Float[np.ndarray, "N T"]  # mean of the metric on held-out problems; NaN below one step of n
    error: Float[np.ndarray, "N T"]  # its standard error over runs
    spread: Float[np.ndarray, "N T"]  # standard deviation of one run
    train: Float[np.ndarray, "N T"]  # mean solve rate of the training problems

    def of(self, group_sizes: Sequence[int]) -> ExpectedCurves:
        """The part that is about some of the group sizes."""
        rows = np.isin(self.group_sizes, group_sizes)
        arrays = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return ExpectedCurves(**{name: value if name == "compute" else value[rows] for name, value in arrays.items()})

    @property
    def records(self) -> Float[np.ndarray, "N T"]:
        """[N, T] highest mean reward so far, which is what a run that keeps its best checkpoint has."""
        return np.fmax.accumulate(self.reward, axis=1)

    @property
    def best(self) -> Int[np.ndarray, "T"]:
        """[T] n*(C): the group size of the highest record."""
        return self.group_sizes[np.nanargmax(self.records, axis=0)]

    @property
    def tied(self) -> Int[np.ndarray, "T 2"]:
        """[T, 2] smallest and largest n that the simulation cannot tell from the best."""
        top = np.nanargmax(self.records, axis=0)
        columns = np.arange(len(top))
        bar = self.records[top, columns] - self.records
        near = bar <= TIE_ERRORS * np.hypot(self.error, self.error[top, columns])
        return np.stack([[self.group_sizes[column].min(), self.group_sizes[column].max()] for column in near.T])

    @property
    def slope(self) -> float:
        """Octaves of n* per octave of C, by least squares over the budgets up to where n* is largest first."""
        end = int(np.argmax(self.best)) + 1
        if end < 2:
            return 0.0
        return float(np.polyfit(np.log2(self.compute[:end]), np.log2(self.best[:end]), 1)[0])

    @property
    def saturated(self) -> bool:
        """Whether n* stays below the largest n that was compared."""
        return bool(self.best[-1] < self.group_sizes[-1])

    def as_dict(self) -> dict[str, list[Any]]:
        """What is predicted, as JSON has it; rewards below one step are None."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        rows = {name: np.round(value, 5).astype(object) for name, value in fields.items()}
        for value in rows.values():
            value[value != value] = None
        columns = {name: value.tolist() for name, value in rows.items()}
        return columns | {"best": self.best.tolist(), "tied": self.tied.tolist()}


def forecast(
    pass_rates: Float[np.ndarray, "P"], question: Question, constants: Constants = EMBEDDED, *, repeated: bool = False
) -> ExpectedCurves:
    """Simulates every group size and compares them at equal compute.

    Args:
      pass_rates: pass@1 of problems like those that are trained on (`pass_rates.read_pass_rates`).
      question: the sweep.
      constants: of the model.
      repeated: whether it is asked many times: every n then has a program of its own, which takes seconds to compile
        and runs several times faster.

    Raises:
      InputError: a batch is larger than the training set.
    """
    problems = question.problem_set_size or len(pass_rates)
    if question.problems_per_batch > problems:
        raise InputError(f"--problems_per_batch={question.problems_per_batch} is more than the {problems} problems")
    world = make_world(pass_rates, problems=problems, held_out=HELD_OUT, constants=constants, seed=question.seed)
    sizes = np.unique(question.group_sizes)
    compute = np.geomspace(question.first_budget, question.budget, question.points)
    most = 0 if repeated else int(sizes[-1])
    columns = [_of_size(int(n), compute, question, constants, world, most) for n in sizes]
    reward, error, spread, train = (np.stack(part) for part in zip(*columns, strict=True))
    return ExpectedCurves(compute, sizes, reward, error, spread, train)


def _of_size(
    n: int, compute: Float[np.ndarray, "T"], question: Question, constants: Constants, world: World, most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """[T] each: mean, standard error and spread of the metric, and mean training solve rate, at each budget."""
    curves: Curves = simulate(
        world,
        compute,
        group_size=n,
        problems_per_batch=question.problems_per_batch,
        rule=question.rule,
        constants=constants,
        runs=question.runs,
        optimizer=question.optimizer,
        drop=question.zero_variance_groups == "drop",
        clip_norm=question.clip_norm,
        warmup_steps=question.warmup_steps,
        k=question.k,
        seed=question.seed,
        most=most,
    )
    values = {"avg": curves.held_out, "best": curves.best, "worst": curves.worst}[question.metric]

    def at(rows: np.ndarray) -> np.ndarray:
        """What it simulates are whole steps, the nearest to each budget: the first may lie above the first budget."""
        found = np.interp(np.log(compute), np.log(curves.compute), rows)
        return np.where(compute < n * question.problems_per_batch, np.nan, found)

    spread = at(values.std(axis=1, ddof=1))
    return at(values.mean(axis=1)), spread / np.sqrt(question.runs), spread, at(curves.train.mean(axis=1))


def standing(constants: Constants, outside: Sequence[str]) -> str:
    """What the constants are those of, and what the question has that they were never tried on."""
    if constants != EMBEDDED:
        return "Constants: as given."
    text = "Constants: those of the embedded study's model of 0.1 M parameters."
    if not outside:
        return text
    return (
        f"{text}\nThey were not tried on {'; '.join(outside)}: what follows is no forecast for a model of your own. "
        "Calibrate first: in a checkout record a pilot sweep of it (`make gallery-record SWEEP=DIR`), give its name to "
        "`python -m research.gallery calibrate --sweeps=NAME`, and the constants that this prints to this command as "
        "flags (docs/theory.md)."
    )


def measured_error(constants: Constants, outside: Sequence[str]) -> str:
    """How far such forecasts were off, in a sentence."""
    if constants != EMBEDDED:
        return "How far forecasts with these constants are off was not measured: hold them against runs."
    if outside:
        return "How far such forecasts are off is not known: see the lines before the table."
    return (
        "In the embedded sweeps that were forecast before they ran, n* was within one octave at "
        f"{WITHIN_AN_OCTAVE:.0%} of budgets (docs/findings.md)."
    )


class Filed(NamedTuple):
    """Of one file."""

    question: Question
    constants: Constants
    forecast: ExpectedCurves


def write_forecast(path: str | os.PathLike[str], filed: Filed) -> None:
    """Writes it as JSON, under a temporary name first."""
    asked = {"question": dataclasses.asdict(filed.question), "constants": dataclasses.asdict(filed.constants)}
    write_atomic(pathlib.Path(path), json.dumps(asked | filed.forecast.as_dict(), indent=1) + "\n")


def read_forecast(path: str | os.PathLike[str]) -> Filed:
    """What `write_forecast` wrote.

    Raises:
      InputError: it is missing, or something else.
    """
    try:
        found = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        question = Question(**{**found["question"], "group_sizes": tuple(found["question"]["group_sizes"])})
        # None is NaN; group sizes stay whole numbers.
        arrays = {field.name: np.array(found[field.name], float) for field in dataclasses.fields(ExpectedCurves)}
        arrays["group_sizes"] = np.array(found["group_sizes"], int)
        constants = Constants(**found["constants"])
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: `python -m isocompute_jax.theory --out=...` writes it") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no forecast of `python -m isocompute_jax.theory --out=...` ({error!r})") from error
    return Filed(question, constants, ExpectedCurves(**arrays))
