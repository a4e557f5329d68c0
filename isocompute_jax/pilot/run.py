"""A pilot, in order: hold problems out, look and measure, test rates, ask theory, say what it comes to."""

from __future__ import annotations

import dataclasses
import logging
import math
import pathlib
import shutil
from collections.abc import Sequence

from isocompute_jax import model
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.curation.measure import check_environment
from isocompute_jax.experiment.inputs import read_inputs
from isocompute_jax.options import check, described, option
from isocompute_jax.pilot.advice import EMBEDDED_RATE, Findings, advised, config_source, expect, question_of
from isocompute_jax.pilot.check import look
from isocompute_jax.pilot.lines import lines
from isocompute_jax.pilot.rates import Tested, TestPlan, least_rollouts, plan_test, run_test, usual_of
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import write_atomic
from isocompute_jax.tasks import read_problems, split, write_problems

LOG = logging.getLogger(__name__)

SHARE = 0.02
"""Of the budget, at most."""
LEAST_PROBLEMS = 8
CONFIG_FILE, SCREEN_FILE = "advised.py", "pilot.txt"
EMBEDDED_PARAMS = 1e5
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Rates that are tried, in multiples of the usual one."""


@described
@dataclasses.dataclass(frozen=True)
class PilotConfig:
    """What a pilot may take; each field is a flag of its name."""

    budget: int = option(0, "C, the rollouts of the run that is planned.", low=0)
    rollouts: int = option(0, "Rollouts that the pilot may take; 0 for 2% of the budget.", low=0)
    samples: int = option(16, "Rollouts of each problem that is measured.", low=4)
    problems_per_batch: int = option(8, "B_problem of the run; as many as there are if they are fewer.", low=2)
    rates: tuple[float, ...] = option(
        (), "Learning rates to test, rising; left out, a quarter to 16 times the usual for the model's size.", above=0
    )

    def __post_init__(self) -> None:
        check(self, "--")
        if not self.budget:
            raise InputError("--budget is missing: say how many rollouts the run may take, such as --budget=131072")
        if self.rollouts > self.budget:
            raise InputError(f"--rollouts={self.rollouts} is more than the run that is planned, --budget={self.budget}")
        if self.rates and sorted(set(self.rates)) != list(self.rates):
            raise InputError(f"--rates={','.join(map(str, self.rates))}: give rates above 0 that rise")

    @property
    def most(self) -> int:
        """Rollouts of the pilot."""
        return self.rollouts or math.floor(SHARE * self.budget)


def run_pilot(config: RunConfig, pilot: PilotConfig, directory: pathlib.Path) -> Findings:
    """Measures and tests; writes sets, records and logs into `directory`, and last the advised config.

    Args:
      config: model, problems, sampling and all else of the run that is planned; `evaluation.sets` are its held-out
        problems, and where there are none a fifth of the training problems becomes them.
      pilot: what it may take.
      directory: made; must not hold anything.

    Raises:
      InputError: bad input, or problems that are never solved, or always.
      RunError: the sampler, the rewards or a run failed.
    """
    check_environment(config)
    if directory.exists() and any(directory.iterdir()):
        raise InputError(f"--workdir={directory} is not empty: a pilot is not continued, choose another one")
    try:
        return _run(config, pilot, directory)
    except InputError:  # leaves nothing that the corrected command would meet
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _run(config: RunConfig, pilot: PilotConfig, directory: pathlib.Path) -> Findings:
    """As `run_pilot`, in a directory that is empty."""
    least = LEAST_PROBLEMS * pilot.samples
    if pilot.most < least:
        raise InputError(
            f"--budget={pilot.budget}: 2% of it are {pilot.most} rollouts, and the least that says anything is {least} "
            f"({LEAST_PROBLEMS} problems x --samples={pilot.samples}): give --rollouts={least}, or a budget from "
            f"{math.ceil(least / SHARE):,} on"
        )
    given = config.train_set
    config = held_out(config, directory)
    config = dataclasses.replace(config, max_compute=pilot.budget)
    problems = len(read_problems(config.train_set, grader_name=config.reward.name_for))
    problems = min(problems, config.problem_set_size or problems)
    config = dataclasses.replace(config, problems_per_batch=min(pilot.problems_per_batch, problems))
    inputs = read_inputs(config.resolved())
    rates = pilot.rates or usual_rates(model.count_params(inputs.model_config))
    question_of(with_rate(config, rates, None), problems)  # what it refuses shows before anything is drawn

    room = pilot.most - min(least_rollouts(config.problems_per_batch, rates), pilot.most - least)
    count = min(problems, max(min(room, pilot.most * 2 // 5) // pilot.samples, LEAST_PROBLEMS))
    LOG.info("pilot: %d problems, %d rollouts of each", count, pilot.samples)
    facts = look(config, directory / "measured", problems=count, samples=pilot.samples, stops=True)
    facts = dataclasses.replace(facts, config=dataclasses.replace(config, train_set=given))
    for line in (checked := lines(facts)):
        if line.what == "solved" and line.state == "wrong":
            raise InputError(f"--problems: {line.said}: {line.remedy}")
    assert facts.rollouts is not None
    measured = facts.rollouts.rates

    group_size = next(
        (share.group_size for share in facts.rollouts.shares if share.share >= 0.5 and share.group_size >= 4), 16
    )
    left = pilot.most - measured.rollouts
    plan = plan_test(left, group_size=min(group_size, 16), problems=config.problems_per_batch, rates=rates)
    tested, no_test = test(config, plan, directory, least=least_rollouts(config.problems_per_batch, rates) + least)
    config = with_rate(config, rates, tested)
    expected = expect(config, measured, problems)
    validation = str(directory / "sets" / "validation.jsonl")
    advice, held = advised(config, expected, validation), sum(map(len, inputs.evaluation_sets.values()))
    found = Findings(pilot.budget, problems, facts.rollouts, checked, tested, no_test, expected, advice, held)
    write_atomic(directory / CONFIG_FILE, config_source(found.config, f"What a pilot of {pilot.budget:,} advises."))
    return found


def held_out(config: RunConfig, directory: pathlib.Path) -> RunConfig:
    """With held-out problems, which are taken from those that are trained on if there are none."""
    if config.evaluation.sets:
        return config
    problems = read_problems(config.train_set, grader_name=config.reward.name_for)
    train, validation = split(problems, validation=min(300, max(1, len(problems) // 5)), seed=config.seed)
    sets = directory / "sets"
    sets.mkdir(parents=True, exist_ok=True)
    for name, chosen in (("train", train), ("validation", validation)):
        write_problems(sets / f"{name}.jsonl", chosen)
    evaluation = dataclasses.replace(config.evaluation, sets={"validation": str(sets / "validation.jsonl")})
    return dataclasses.replace(config, train_set=str(sets / "train.jsonl"), evaluation=evaluation)


def usual_rates(params: int) -> tuple[float, ...]:
    """A quarter to 16 times 2.5e-4 / sqrt(parameters / 0.1 M), which for 7B is the IsoCompute Playbook's 1e-6."""
    usual = float(f"{EMBEDDED_RATE / math.sqrt(params / EMBEDDED_PARAMS):.2g}")
    return tuple(float(f"{usual * factor:.6g}") for factor in FACTORS)


def test(config: RunConfig, plan: TestPlan | None, directory: pathlib.Path, *, least: int) -> tuple[Tested | None, str]:
    """The rates that were tested; none, and why, where rollouts do not suffice."""
    if plan is None:
        return None, f"a test takes {least:,} rollouts, 2% of a budget of {math.ceil(least / SHARE):,} (--rollouts)"
    return run_test(config, plan, directory / "rates"), ""


def with_rate(config: RunConfig, rates: Sequence[float], tested: Tested | None) -> RunConfig:
    """With the rate that was chosen, the same for all sizes of a batch; the usual one where none was tested."""
    rate = tested.choice.rate if tested else usual_of(rates)
    optimizer = dataclasses.replace(config.optimizer, base_lr=rate, lr_scaling_exponent=0.0)
    if tested:
        optimizer = dataclasses.replace(optimizer, base_batch=tested.plan.batch)
    return dataclasses.replace(config, optimizer=optimizer)
