"""What the processes of a run share: grading goes round them, and none computes on other numbers than the rest."""

import dataclasses

import numpy as np
import pytest

from isocompute_jax.experiment.curriculum import Sampled
from isocompute_jax.experiment.loop_state import ReadyBatch
from isocompute_jax.experiment.rollouts import SharedGrading
from isocompute_jax.experiment.updates import shared_of
from isocompute_jax.experiment.workdir import RECORDS
from isocompute_jax.records.errors import RunError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import Grading, RewardConfig
from tests.distributed.company import SOON, Company
from tests.learner.builders import make_groups, pack

GROUPS = [dataclasses.replace(group, rewards=None) for group in make_groups()]
PROBLEMS = [Problem(group.problem_id, "1+1=", str(i), "numeric") for i, group in enumerate(GROUPS)]


@pytest.fixture
def three():
    """Three processes that send each other groups and problems."""
    company = Company(3, records=RECORDS)
    yield company
    company.close()


class Noting(Grading):
    """Remembers what it was given."""

    def __init__(self):
        super().__init__(RewardConfig(), lambda many: [str(len(tokens)) for tokens in many])
        self.given: list[str] = []

    def submit(self, group, problem, **options):
        self.given.append(problem.id)
        return super().submit(group, problem, **options)


def test_grading_goes_round_the_processes_and_finds_what_one_finds(three):
    gradings = [Noting() for _ in range(3)]
    shared = [SharedGrading(team, grading) for team, grading in zip(three.teams, gradings, strict=True)]
    futures = [shared[0].submit(group, problem) for group, problem in zip(GROUPS, PROBLEMS, strict=True)]
    names = [problem.id for problem in PROBLEMS]
    rewards = set()
    for future, group, problem in zip(futures, GROUPS, PROBLEMS, strict=True):
        found, alone = future.result(SOON), Noting().submit(group, problem).result()
        assert found.rewards is not None and alone.rewards is not None
        assert found.rewards.tobytes() == alone.rewards.tobytes()
        rewards |= set(found.rewards.tolist())
        assert found.completions is group.completions and found.task == alone.task
    assert [grading.given for grading in gradings] == [names[0::3], names[1::3], names[2::3]]
    assert rewards == {0.0, 1.0}


def test_a_reward_that_fails_in_another_process_fails_with_its_name(three):
    shared = [SharedGrading(team, Noting()) for team in three.teams]
    broken = dataclasses.replace(PROBLEMS[0], answer=None)  # which reads as no number: the grader raises
    shared[0].submit(GROUPS[0], PROBLEMS[0])
    with pytest.raises(RunError, match="process 1: reward numeric raised on problem"):
        shared[0].submit(GROUPS[0], broken, on_failure="stop").result(SOON)


def ready() -> ReadyBatch:
    groups = make_groups()
    return ReadyBatch(Sampled(groups, groups), [pack(groups)], {}, groups, 0.0)


def other_advantages(batch: ReadyBatch) -> None:
    """The next number that a float can be, of one rollout."""
    advantages = np.asarray(batch.updates[0][1].advantages)
    advantages[0, 0] = np.nextafter(advantages[0, 0], np.float32(9))


def other_rows(batch: ReadyBatch) -> None:
    """Two rows, change places: shapes and sums stay as they are."""
    rollout = np.asarray(batch.updates[0][0].rollout)
    rollout[0, [0, 1]] = rollout[0, [1, 0]]


def other_rewards(batch: ReadyBatch) -> None:
    rewards = batch.sampled.groups[0].rewards
    assert rewards is not None
    rewards += np.float32(1)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (other_advantages, "advantages and weights (checksum)"),
        (other_rows, "rows (checksum)"),
        (other_rewards, "rewards (checksum)"),
    ],
)
def test_who_would_compute_on_other_numbers_ends_all_with_its_name(three, change, name):
    batches = [ready() for _ in three.teams]
    assert three.all(lambda team: team.agree("step 1", shared_of([batches[team.index]]))) == [None] * 3
    change(batches[2])
    found = three.all(lambda team: team.agree("step 2", shared_of([batches[team.index]])))
    for error in found:
        assert isinstance(error, RunError)
        assert f"process 2 disagrees with process 0 about step 2: {{'{name}': " in str(error)
    assert "shapes" not in str(found[0])
