"""What the measurements come to: sizes, rate and expected reward, as one screen and as a config file."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from isocompute_jax.allocation import noise
from isocompute_jax.allocation.schedule import Breakpoints, from_leaders
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.pilot.check import RolloutFacts
from isocompute_jax.pilot.lines import Line, solving_table, text_of
from isocompute_jax.pilot.measure import RESAMPLED, BaseRates
from isocompute_jax.pilot.rates import Tested
from isocompute_jax.records.errors import InputError
from isocompute_jax.theory import ExpectedCurves, Question, forecast, question_about, smoothed
from isocompute_jax.theory.forecast import EMBEDDED, TRIED, measured_error, untried

CANDIDATES = (4, 8, 16, 32, 64, 128, 256)
LEAST_STEPS = 16
"""Group sizes are compared of which the budget holds so many steps."""
EMBEDDED_RATE = 2.5e-4
"""Rate of most runs that theory's constants were calibrated on."""
UNSEEN = 1e5
"""Critical sizes beyond it are quotients by what is not told from zero."""


@dataclasses.dataclass(frozen=True, eq=False)
class Expected:
    """n*(C), and what it promises, by theory."""

    curves: ExpectedCurves
    question: Question
    sizes: Breakpoints[int]
    translated: bool  # whether the rate is the embedded study's, standing in for one that theory does not know


def question_of(config: RunConfig, problems: int, *, runs: int = 8) -> tuple[Question, bool]:
    """What theory is asked of a run, and whether the embedded study's rate stands in for its own.

    Args:
      config: of the run; its n does not matter.
      problems: that it trains on.
      runs: that are simulated of each n.

    Raises:
      InputError: the budget is too small for two group sizes, or theory has nothing to say of such a run.
    """
    budget, batch = config.max_compute, config.problems_per_batch
    sizes = tuple(n for n in CANDIDATES if n * batch * LEAST_STEPS <= budget)
    if len(sizes) < 2:
        raise InputError(
            f"--budget={budget}: that is less than {LEAST_STEPS} steps of {batch} problems with {CANDIDATES[1]} "
            "rollouts each, too little to choose in"
        )
    rate = config.optimizer.base_lr
    least, most = TRIED["learning rate"]
    translated = not least <= rate <= most
    fields = {
        "optimizer.lr_scaling_exponent": config.optimizer.lr_scaling_exponent,
        "recipe.advantage_scale": config.recipe.advantage_scale,
        # theory knows no such terms: what it is asked is the run without them
        "loss.kl_coef": 0.0,
        "loss.entropy_coef": 0.0,
        "max_compute": budget,
        "problems_per_batch": batch,
        "problem_set_size": problems,
        "optimizer.base_lr": EMBEDDED_RATE if translated else rate,
        "optimizer.base_batch": config.optimizer.base_batch,
        "optimizer.warmup_steps": config.optimizer.warmup_steps,
        "recipe.baseline": config.recipe.baseline,
        "recipe.zero_variance_groups": config.recipe.zero_variance_groups,
        "optimizer.clip_norm": config.optimizer.clip_norm,
        "evaluation.k": config.evaluation.k,
    }
    question = question_about(fields, sizes, max(budget // 64, 2))
    if question is None:
        raise InputError(
            "--config: theory has nothing to say of its advantages, or of its rule for rate and B: it knows "
            "recipe.advantage_scale of group_std and none, and exponents 0, 0.5 and 1"
        )
    return dataclasses.replace(question, runs=runs, points=7), translated


def expect(config: RunConfig, measured: BaseRates, problems: int) -> Expected:
    """n*(C) of the run, predicted from the measured rates; raises as `question_of`, whose arguments these are."""
    question, translated = question_of(config, problems)
    curves = forecast(smoothed(measured.solved, measured.samples), question)
    leaders = [(float(compute), int(n)) for compute, n in zip(curves.compute, curves.best, strict=True)]
    return Expected(curves, question, from_leaders(leaders), translated)


@dataclasses.dataclass(frozen=True)
class Critical:
    """A critical size by the gradient's noise, with a 95% interval; infinite where it is not seen."""

    value: float
    low: float
    high: float


def critical(
    lines: Sequence[Mapping[str, Any]], group_size: float, *, seed: int = 0
) -> tuple[Critical, Critical] | None:
    """Critical n and critical problems a batch (`allocation.noise`), of the gradient itself.

    In Adam's metric the first steps are mostly those weights whose second moment is still nearly zero. Measurements are
    resampled; None without two of them.

    Args:
      lines: of metrics.jsonl.
      group_size: n at which problems are counted.
      seed: of the resampling.
    """
    names = [noise.PREFIX + what for what in noise.ESTIMATES]
    rows = np.array([[line[name] for name in names] for line in lines if names[0] in line])
    if len(rows) < 2:
        return None

    def sizes(mean: np.ndarray) -> tuple[float, float]:
        averages = dict(zip(noise.ESTIMATES, mean.tolist(), strict=True)) | {"weight": 1.0}
        return noise.critical_group_size(averages), noise.critical_problems(averages, group_size)

    draws = np.random.default_rng(seed).integers(len(rows), size=(RESAMPLED, len(rows)))
    drawn = np.array([sizes(rows[draw].mean(axis=0)) for draw in draws])
    n, problems = sizes(rows.mean(axis=0))
    return _interval(n, drawn[:, 0]), _interval(problems, drawn[:, 1])


def _interval(value: float, drawn: np.ndarray) -> Critical:
    """No interpolation: some of what was drawn may be infinite."""
    ordered = np.sort(drawn).tolist()
    return Critical(value, ordered[round(0.025 * RESAMPLED)], ordered[round(0.975 * RESAMPLED) - 1])


def advised(config: RunConfig, expected: Expected, validation: str) -> RunConfig:
    """The run that is advised: it begins with theory's first n, and decides by itself when n grows.

    Where it may not, because its problems come in an order, it has the n that theory has at the end.

    Args:
      config: with its rate and budget.
      expected: what theory says of it.
      validation: file of held-out problems.
    """
    ordered, schedule = config.curriculum.order != "shuffled", config.schedule
    n = expected.sizes.values[-1 if ordered else 0]
    if not ordered:
        schedule = dataclasses.replace(schedule, group_size="auto", largest=max(schedule.largest, n))
    evaluation = config.evaluation
    if not evaluation.sets:
        evaluation = dataclasses.replace(evaluation, sets={"validation": validation})
    return dataclasses.replace(config, group_size=n, schedule=schedule, evaluation=evaluation)


# --- as a config file


def config_source(config: RunConfig, title: str) -> str:
    """A Python file whose `get_config` returns the config; a default is left out unless it is the budget."""
    modules: dict[str, set[str]] = {}
    body = _source(config, 4, modules)
    imports = "\n".join(f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(modules.items()))
    return (
        f'"""{title}"""\n\n{imports}\n\n\ndef get_config() -> RunConfig:\n'
        '    """The config; every field can be overridden with --config.FIELD=VALUE."""\n'
        f"    return {body}\n"
    )


def _source(value: Any, indent: int, modules: dict[str, set[str]]) -> str:
    """An expression; what it needs is added to `modules`."""
    if not dataclasses.is_dataclass(value):
        return repr(value)
    kind = type(value)
    modules.setdefault(_home(kind), set()).add(kind.__name__)
    inner = " " * (indent + 4)
    lines = []
    for field in dataclasses.fields(value):
        here = getattr(value, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if here != default or field.name == "max_compute":
            lines.append(f"{inner}{field.name}={_source(here, indent + 4, modules)},\n")
    return f"{kind.__name__}(\n{''.join(lines)}{' ' * indent})" if lines else f"{kind.__name__}()"


def _home(kind: type) -> str:
    """The module from which configs/ import a class: the room's own where that offers it."""
    from isocompute_jax import learner
    from isocompute_jax.experiment import config

    return next((room.__name__ for room in (config, learner) if hasattr(room, kind.__name__)), kind.__module__)


# --- as a screen


@dataclasses.dataclass(frozen=True, eq=False)
class Findings:
    """All that a pilot found."""

    budget: int
    problems: int  # that the run trains on
    base: RolloutFacts
    checked: Sequence[Line]
    tested: Tested | None
    no_test: str  # why there is none
    expected: Expected
    config: RunConfig  # that is advised
    held_out: int  # problems that it is judged on

    @property
    def measured(self) -> BaseRates:
        """How often the base model solves the problems."""
        return self.base.rates

    @functools.cached_property
    def noise(self) -> tuple[Critical, Critical] | None:
        """Critical n, and critical problems a batch at the n of the test; None where they were not measured."""
        return critical(self.tested.lines, self.tested.plan.group_size) if self.tested else None

    @property
    def rollouts(self) -> int:
        """That the pilot took."""
        return self.measured.rollouts + (self.tested.rollouts if self.tested else 0)


def screen(found: Findings, file: str) -> str:
    """What the pilot says; `file` is the config's."""
    checked = (text_of(found.checked), solving_table(found.base))
    parts = (checked, _spent(found), _rates(found), _advice(found), _unsure(found), _next(found, file))
    return "\n\n".join("\n".join(part) for part in parts)


def _spent(found: Findings) -> Iterator[str]:
    tested = found.tested.rollouts if found.tested else 0
    yield (
        f"Spent: {found.rollouts:,} rollouts, {found.rollouts / found.budget:.2%} of {found.budget:,} "
        f"({found.measured.rollouts:,} to measure, {tested:,} to test rates)"
    )


def _rates(found: Findings) -> Iterator[str]:
    tested = found.tested
    if tested is None:
        yield f"Rates: not tested, {found.no_test}"
        return
    plan = tested.plan
    yield (
        f"Rates: {plan.steps} steps of {plan.problems} x {plan.group_size} rollouts each; a step takes "
        f"{tested.seconds:.3g} s, {tested.sampling_s:.3g} s of it to sample"
    )
    yield "      rate    reward  +-      KL/step gradient  entropy  updates"
    for trial in tested.trials:
        mark = "  candidate" if trial.rate in tested.choice.candidates else ""
        if trial.rate == tested.choice.edge:
            mark = f"  broken: {tested.choice.why}"
        kl = "-" if math.isnan(trial.kl) else f"{trial.kl:.2g}"
        yield (
            f"  {trial.rate:8.3g}    {trial.reward:.3f}  {trial.error:.3f}  {kl:>8}  "
            f"x{trial.gradient_norm:<7.2g}  x{trial.entropy:<5.2f}  {trial.felt:6}{mark}"
        )
    if tested.choice.felt:
        yield f"  taken: {tested.choice.rate:.3g}, the geometric middle of the candidates"
    if found.noise is None:
        yield "Gradient noise: not measured, it needs groups of 4 with a signal"
        return
    n, problems = map(_range, found.noise)
    yield f"Gradient noise: critical n {n}; critical problems a batch, at n = {plan.group_size}, {problems}"


def _range(size: Critical) -> str:
    def number(value: float) -> str:
        return "unseen" if value > UNSEEN else f"{max(value, 0.0):.2g}"

    if min(size.value, size.low) > UNSEEN:
        return "unseen"
    return f"{number(size.value)} (95%: {number(size.low)} to {number(size.high)})"


def _advice(found: Findings) -> Iterator[str]:
    config, curves = found.config, found.expected.curves
    reward, last = curves.records[:, -1], int(np.nanargmax(curves.records[:, -1]))
    yield "Advice"
    how = "fixed, as the problems come in an order"
    if config.schedule.kind == "auto":
        how = "doubled when the run's own measurements say so (auto, docs/allocation.md)"
    yield f"  n          {config.group_size}, {how}"
    yield f"  problems   {config.problems_per_batch} a batch, of {found.problems}{against_noise(found)}"
    optimizer = config.optimizer
    rule = (
        ""
        if optimizer.lr_scaling_exponent == 0
        else (f" at B = {optimizer.base_batch}, times (B / {optimizer.base_batch})^{optimizer.lr_scaling_exponent:g}")
    )
    yield f"  rate       {optimizer.base_lr:.3g}{rule}"
    yield f"  steps      up to {config.num_steps:,}"
    error = math.sqrt(reward[last] * (1 - reward[last]) / found.held_out)
    yield (
        f"  reward     {reward[last]:.2f} (avg@{config.evaluation.k} at the end, by theory; runs differ by "
        f"{curves.spread[last, -1]:.2f}, and {found.held_out} held-out problems err by up to {error:.2f})"
    )


def against_noise(found: Findings) -> str:
    """Whether the batch is too small, or too large, by the critical number of problems."""
    if found.noise is None:
        return ""
    batch, problems = found.config.problems_per_batch, found.noise[1]
    if batch < problems.low:
        return ", fewer than the critical number: more (--problems_per_batch) would save steps and cost few rollouts"
    if batch > problems.high:
        return ", more than the critical number: fewer (--problems_per_batch) would spend rollouts better"
    return ", which the gradient's noise finds neither too few nor too many"


def _unsure(found: Findings) -> Iterator[str]:
    expected, tested = found.expected, found.tested
    outside = untried(expected.question, found.problems)
    low, high = expected.curves.tied[-1]
    yield "Unsure"
    if expected.translated:
        yield (
            f"  - theory does not know the rate of your model: {EMBEDDED_RATE:g}, that of the embedded study's 0.1 M "
            "parameters, stands in for it, so that n and reward are a guess from pass@1"
        )
    elif outside:
        yield f"  - theory was not tried on {'; '.join(outside)}"
    else:
        yield f"  - {measured_error(EMBEDDED, outside)}"
    if len(expected.sizes.values) > 1:
        yield f"  - when n grows: the run decides; theory's fixed n that lead, by C, are {expected.sizes.text}"
    if low < high:
        yield f"  - at the end n = {low} to {high} are tied"
    if tested is None:
        yield f"  - the rate is the usual one for --rates, or for the model's size, and untested: {found.no_test}"
    elif not tested.choice.felt:
        yield (
            f"  - the rate goes by the model's size: in {tested.plan.steps} steps hardly a group had a signal, so that "
            "no rate could show what it does; a larger --rollouts tests longer"
        )
    elif tested.choice.edge is None:
        yield f"  - no rate broke: the best may lie above {tested.trials[-1].rate:.3g}"
    else:
        best = max(tested.trials, key=lambda trial: trial.reward)
        if best.reward - tested.trials[0].reward < 2 * math.hypot(best.error, tested.trials[0].error):
            yield "  - no rate gained reward beyond its error in so few steps: it stands on where they broke alone"
    yield "  - theory's reward is on the high side: docs/pilot.md has what runs of the advice came to on eight set-ups"
    solved = found.measured.solved
    if 2 * int((solved == 0).sum()) > len(solved):
        yield (
            "  - most problems were never solved, and how many a run would reach is not known, so that the reward is a "
            "guess"
        )


def _next(found: Findings, file: str) -> Iterator[str]:
    config, tested = found.config, found.tested
    yield "Next"
    yield f"  python -m isocompute_jax.train --config={file} --workdir=runs/first"
    if len(found.expected.sizes.values) > 1:
        yield f"  n*(C) as theory has it: --config.schedule.group_size={found.expected.sizes.text}"
    if tested is not None and tested.choice.felt and tested.choice.edge is None:
        higher = ",".join(f"{tested.trials[-1].rate * factor:.3g}" for factor in (1, 2, 4, 8))
        yield f"  higher rates: this command with --rates={higher} and another --workdir"
    elif config.optimizer.base_lr:
        rate = config.optimizer.base_lr
        yield f"  half and twice the rate: --config.optimizer.base_lr={rate / 2:.3g} and {rate * 2:.3g}"
