"""Runs that change as they go, killed at random moments: they end as if nothing had happened, bit for bit.

A schedule with a falling rate, rollouts that a policy deals, `auto`, which grows n by what the run logs, and a game
that is played in worker processes, which die with the run. Each is a process of its own with its own sampler; the kills
are dealt over the four. Run by `make test-faults`; minutes.
"""

import dataclasses
import os
import pathlib
import signal
import time

import numpy as np
import pytest

from isocompute_jax.allocation.schedule import ScheduleConfig
from isocompute_jax.environments.config import EnvironmentConfig
from isocompute_jax.environments.number_hunt import NumberHunt
from isocompute_jax.experiment.config import RunConfig, SamplingConfig
from isocompute_jax.records import run_files
from isocompute_jax.tasks import write_problems
from tests.experiment import builders
from tests.experiment.processes import Processes, unfinished_checkpoint, wait_for, written
from tests.experiment.test_dealt_runs import dealt

pytestmark = pytest.mark.faults

KILLS, SEED = int(os.environ.get("KILLS", "20")), 0
MOMENTS = ("evaluation", "switch", "checkpoint", "step")
"""Where the next kill falls, if this run still has such a step."""
LAST_STEPS = 4
"""Of a run, in which none falls: it might have ended meanwhile."""


def scheduled(base: RunConfig) -> RunConfig:
    schedule = ScheduleConfig("4@0,8@160,16@480", problems_per_batch="4@0,2@700", rate="wsd")
    return dataclasses.replace(base, max_compute=1200, schedule=schedule)


def by_policy(base: RunConfig) -> RunConfig:
    return dataclasses.replace(dealt(base, "hit"), max_compute=64 * 24, evaluation=base.evaluation)


def auto(base: RunConfig) -> RunConfig:
    return dataclasses.replace(base, group_size=2, max_compute=1200, schedule=ScheduleConfig("auto", largest=8))


def played(base: RunConfig) -> RunConfig:
    """By the class's own name, so that its state lies in worker processes, as that of users' environments does."""
    game = EnvironmentConfig(
        "isocompute_jax.environments.number_hunt:NumberHunt",
        {"largest": 3, "guesses": 3},
        turns=3,
        turn_tokens=2,
        observation_tokens=1,
        stop=(",",),
        turn_credit="turn",
    )
    problems = pathlib.Path(base.train_set).parent / "games.jsonl"
    write_problems(problems, NumberHunt(3, 3).problems(40, 0))
    return dataclasses.replace(
        base,
        train_set=str(problems),
        problem_set_size=0,
        environment=game,
        sampling=SamplingConfig(max_prompt_tokens=6, max_tokens=10),
        evaluation=dataclasses.replace(base.evaluation, sets={"validation": str(problems)}),
        max_compute=1200,
        schedule=ScheduleConfig("4@0,8@320"),
    )


RUNS = (scheduled, by_policy, auto, played)


@pytest.fixture(scope="module")
def processes(tmp_path_factory) -> Processes:
    return Processes(tmp_path_factory.mktemp("processes"))


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> RunConfig:
    """Checkpoints are some steps apart: those in between are made again, evaluations and switches among them."""
    base = builders.make_inputs(tmp_path_factory.mktemp("inputs"))
    evaluation = dataclasses.replace(base.evaluation, points=8, first_compute=200)
    return dataclasses.replace(base, checkpoint_every_s=0.2, evaluation=evaluation)


def steps_of(workdir: pathlib.Path, name: str = run_files.METRICS) -> list[int]:
    """The steps that a log has lines of, in their order."""
    lines = run_files.read_lines(workdir / name, partial_last_line=True) if (workdir / name).exists() else []
    return [line["step"] for line in lines]


def draw(rng: np.random.Generator, whole: pathlib.Path, kills: int) -> list[tuple[int, str]]:
    """After which steps the run is killed, rising, and in what."""
    lines = builders.log_lines(whole, run_files.METRICS)
    sizes = [(line["group_size"], line["problems_per_batch"]) for line in lines]
    inner = set(range(1, len(lines) - LAST_STEPS))
    switches = {step for step in inner if sizes[step] != sizes[step - 1]}
    places = {"evaluation": inner & {*steps_of(whole, run_files.EVAL)}, "switch": switches}
    drawn: dict[int, str] = {}
    for number in range(kills):
        moment = MOMENTS[number % len(MOMENTS)]
        free = places.get(moment, inner) - drawn.keys()
        moment, free = (moment, free) if free else ("step", inner - drawn.keys())
        drawn[int(rng.choice(sorted(free)))] = moment
    return sorted(drawn.items())


@pytest.mark.parametrize("which", range(len(RUNS)), ids=[run.__name__ for run in RUNS])
def test_killed_at_random_moments_ends_the_same(base, processes, tmp_path, which):
    config, whole, workdir = RUNS[which](base), tmp_path / "whole", tmp_path / "run"
    file = builders.write_config(tmp_path / "config.json", config)
    processes.finish(file, whole)
    lines, rng = builders.log_lines(whole, run_files.METRICS), np.random.default_rng([SEED, which])
    if config.schedule.kind == "auto":
        assert any("decision" in line for line in lines)
    sampled = [line["group_size"] * line["problems_per_batch"] for line in lines]
    assert [line["compute"] for line in lines] == np.cumsum(sampled).tolist()

    clock = [line["wall_s"] for line in run_files.read_lines(whole / run_files.METRICS)]
    pace = float(np.median(np.diff(clock)))
    for step, moment in draw(rng, whole, KILLS // len(RUNS) + (which < KILLS % len(RUNS))):
        with processes.train(file, workdir) as process:
            appended = written(workdir)
            wait_for(process, lambda step=step, appended=appended: appended() > 0 and step in steps_of(workdir))
            if moment == "checkpoint":
                wait_for(process, lambda: unfinished_checkpoint(workdir))
            else:
                time.sleep(rng.uniform(0, pace / 4 if moment == "evaluation" else pace))
            process.send(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
    assert not (workdir / run_files.DONE).exists()
    processes.finish(file, workdir)
    builders.assert_same_run(workdir, whole)
