"""Runs over samplers that answer in any order, under older weights, or not at all."""

import dataclasses
import functools
import os
import signal
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import app, learner, model
from isocompute_jax.experiment import loop
from isocompute_jax.experiment.build import Parts
from isocompute_jax.experiment.config import CurriculumConfig, EvaluationConfig, override
from isocompute_jax.experiment.problem_stream import ProblemStream, TrainSets
from isocompute_jax.experiment.rollouts import by_id, make_requests
from isocompute_jax.experiment.samplers import in_flight
from isocompute_jax.learner import LossConfig
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import Interrupted
from isocompute_jax.sampling import TRAIN, InProcessSampler
from isocompute_jax.tasks import Grading, Prompts, RewardConfig, graded, load_tokenizer, read_problems
from tests.experiment import builders
from tests.experiment.samplers import FailingSampler, LaggingSampler, Makes, ShuffledSampler


@pytest.fixture
def served(base_run):
    """`base_run` over a service, without checks."""
    return override(override(base_run, "service.endpoints", "nowhere:1"), "agreement.every", 0)


def metrics_of(workdir):
    return run_files.read_lines(workdir / run_files.METRICS)


def evaluations_of(workdir):
    return run_files.read_lines(workdir / run_files.EVAL)


@pytest.mark.parametrize(
    ("staleness", "asynchrony", "recompute", "expected"),
    [
        (0, "in_flight", False, "abort"), (2, "in_flight", False, "continue"), (2, "in_flight", True, "recompute"),
        (2, "boundary", True, "wait"), (2, "phases", True, "abort"),
    ],
)  # fmt: skip
def test_what_new_weights_do_to_rollouts_in_flight(served, staleness, asynchrony, recompute, expected):
    config = override(dataclasses.replace(served, max_staleness=staleness), "asynchrony", asynchrony)
    assert in_flight(override(config, "service.recompute_cache", recompute)) == expected


# --- a service that is lost


CASES = [  # of a run of 6 steps with evaluations after 0, 2, 3, 4 and 6, and checks after 0, 3 and 6
    ("update_weights", "", 4, 4),
    ("completed", "agreement", 1, 3),
    pytest.param("completed", "train", 3, 3, marks=pytest.mark.slow),
    pytest.param("completed", "evaluation", 8, 6, marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def short_run(base_run):
    config = override(override(base_run, "service.endpoints", "nowhere:1"), "agreement.every", 3)
    return dataclasses.replace(config, max_compute=64 * 6, checkpoint_every_s=1e9)


@pytest.fixture(scope="module")
def whole(short_run, tmp_path_factory):
    """The undisturbed run, whose checks the sampler of this process takes part in."""
    workdir = tmp_path_factory.mktemp("runs") / "whole"
    loop.train(short_run, workdir, make_sampler=Makes(InProcessSampler))
    return workdir


@pytest.mark.parametrize(("method", "lane", "fatal", "step"), CASES)
def test_a_lost_service_checkpoints_and_the_same_command_ends_the_same(
    short_run, whole, capsys, tmp_path, method, lane, fatal, step
):
    made = Makes(type("Lost", (FailingSampler,), {"method": method, "lane": lane, "fatal": fatal}))
    assert app.exit_code(lambda: loop.train(short_run, tmp_path / "run", make_sampler=made)) == app.FAILED
    assert "error: no endpoint has answered for 1800 s" in capsys.readouterr().err
    assert [entry.name for entry in (tmp_path / "run" / run_files.CHECKPOINTS).iterdir()] == [str(step)]
    assert made.samplers[0].closed
    loop.train(short_run, tmp_path / "run", make_sampler=Makes(ShuffledSampler))
    for name in (run_files.METRICS, run_files.EVAL, run_files.AGREEMENT):
        assert builders.log_lines(tmp_path / "run", name) == builders.log_lines(whole, name) != []
    assert (tmp_path / "run/model/model.safetensors").read_bytes() == (whole / "model/model.safetensors").read_bytes()
    if step < 6:  # the checkpoint of the last step was written before its evaluation
        builders.assert_same_run(tmp_path / "run", whole)


class WaitingSampler(ShuffledSampler):
    """Every server is gone in step 3, and the user gives up: as the fleet does, it looks whether to go on waiting."""

    interrupted: Callable[[], bool]

    def completed(self, *, lane=TRAIN):
        for group in super().completed(lane=lane):
            if group.step == 3 and lane == TRAIN:
                assert not self.interrupted()
                os.kill(os.getpid(), signal.SIGTERM)
                assert self.interrupted()
                raise Interrupted
            yield group


def test_an_interrupt_while_every_server_is_gone_ends_the_run_with_a_checkpoint(short_run, whole, tmp_path):
    waiting = Makes(WaitingSampler)
    assert app.exit_code(lambda: loop.train(short_run, tmp_path / "run", make_sampler=waiting)) == app.INTERRUPTED
    assert [entry.name for entry in (tmp_path / "run" / run_files.CHECKPOINTS).iterdir()] == ["3"]
    loop.train(short_run, tmp_path / "run", make_sampler=Makes(ShuffledSampler))
    builders.assert_same_run(tmp_path / "run", whole)


def test_on_policy_results_do_not_depend_on_arrival_and_what_a_lost_endpoint_cost_is_booked_apart(
    short_run, whole, tmp_path
):
    """Groups come in another order, and 5 rollouts were drawn again: the files are the undisturbed run's otherwise."""
    loop.train(short_run, tmp_path / "run", make_sampler=Makes(FailingSampler))
    builders.assert_same_run(tmp_path / "run", whole)
    assert {line["redrawn_rollouts"] for line in metrics_of(tmp_path / "run")} == {5}
    assert {line["redrawn_rollouts"] for line in metrics_of(whole)} == {0}


class BrokenSampler(ShuffledSampler):
    """What it says of the tokens of step 2 is no number, and so no number of that update is one."""

    def completed(self, *, lane=TRAIN):
        for group in super().completed(lane=lane):
            if group.step == 2 and lane == TRAIN:
                broken = (dataclasses.replace(c, logprobs=np.full_like(c.logprobs, np.nan)) for c in group.completions)
                group = dataclasses.replace(group, completions=tuple(broken))
            yield group


def test_a_diverged_run_leaves_no_checkpoint_of_it(short_run, tmp_path, capsys):
    broken = Makes(BrokenSampler)
    assert app.exit_code(lambda: loop.train(short_run, tmp_path / "run", make_sampler=broken)) == app.FAILED
    assert "loss" in capsys.readouterr().err
    assert not (tmp_path / "run" / run_files.CHECKPOINTS).exists()


# --- a window


SAMPLER_RATIO = LossConfig(
    policy_loss="cispo", ratio_from="sampler", correction_mode="off", clip_low=1.0, clip_high=4.0
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("k", "loss"),
    [pytest.param(1, LossConfig(), id="tis"), pytest.param(3, SAMPLER_RATIO, id="sampler", marks=pytest.mark.slow)],
)
def test_an_asynchronous_run_keeps_its_bound_and_its_books(served, tmp_path, k, loss):
    made = Makes(LaggingSampler)
    config = dataclasses.replace(served, max_staleness=k, loss=loss, max_compute=64 * 12)
    loop.train(config, tmp_path, make_sampler=made)
    lines = metrics_of(tmp_path)
    assert [line["compute"] for line in lines] == [64 * step for step in range(1, 13)]
    assert max(line["staleness"] for line in lines) == k  # chance reaches the bound ...
    assert min(line["staleness_mean"] for line in lines[k:]) < k  # ... and not always
    for line in lines:
        histogram = np.array(line["staleness_histogram"])
        assert len(histogram) == k + 1 and histogram.sum() == line["completion_length"] * 64
        assert line["staleness"] == np.flatnonzero(histogram).max() <= min(k, line["step"] - 1)
        assert line["staleness_mean"] == pytest.approx((histogram * np.arange(k + 1)).sum() / histogram.sum())
        if line["trained_tokens"] and loss.ratio_from == "old":
            assert line["ratio_max"] == pytest.approx(1, abs=1e-6)
    # Only what is stale has another probability now than when it was drawn.
    trained = [line for line in lines if line["trained_tokens"]]
    assert any(line["logprob_difference"] > 1e-4 for line in trained)
    if loss.ratio_from == "sampler":
        assert any(line["ratio_max"] > 1.001 for line in trained)
        assert all(line["correction"] == 1 for line in trained)
    else:
        assert any(line["correction"] != pytest.approx(1, abs=1e-4) for line in trained)
    steps = sorted({line["step"] for line in evaluations_of(tmp_path)})
    assert steps[0] == 0 and steps[-1] == 12
    assert all(
        sampler.closed and not sampler._waiting["train"] and not sampler._done["train"] for sampler in made.samplers
    )


@pytest.mark.slow
def test_an_interrupted_asynchronous_run_draws_what_was_in_flight_again(served, caplog, tmp_path):
    config = dataclasses.replace(served, max_staleness=2, max_compute=64 * 9, checkpoint_every_s=1e9)
    submitted = []

    class Recording(LaggingSampler):
        def submit(self, requests, *, lane="train"):
            if lane == "train":
                submitted.append((requests[0].step, [request.problem_id for request in requests]))
            super().submit(requests, lane=lane)

    with builders.interrupted_in_step(5):
        assert app.exit_code(lambda: loop.train(config, tmp_path, make_sampler=Makes(Recording))) == app.INTERRUPTED
    assert [number for number, _ in submitted] == [0, 1, 2, 3, 4, 5, 6]
    with caplog.at_level("INFO"):
        loop.train(config, tmp_path, make_sampler=Makes(Recording))
    assert "reproducible in distribution, not bit for bit" in caplog.text
    assert [number for number, _ in submitted[7:]] == [5, 6, 7, 8]
    assert submitted[5:7] == submitted[7:9]
    stream = ProblemStream(
        TrainSets.of(read_problems(config.train_set)), CurriculumConfig(), problems_per_batch=4, seed=config.seed
    )
    expected = [(number, [problem.id for problem in next(stream)]) for number in range(9)]
    assert submitted[:5] + submitted[7:] == expected
    lines = metrics_of(tmp_path)
    assert [line["step"] for line in lines] == list(range(1, 10))
    assert lines[-1]["compute"] == 64 * 9
    assert lines[5]["staleness"] == 0  # all of step 6 was drawn again, under the weights that were restored


# --- phases


@pytest.fixture
def phased(base_run):
    loss = LossConfig(kl_coef=0.0, entropy_coef=1e-3, clip_low=0.002, clip_high=0.002)
    return dataclasses.replace(
        base_run, max_staleness=3, asynchrony="phases", max_compute=64 * 5, loss=loss, evaluation=EvaluationConfig()
    )


@pytest.mark.slow
def test_phases_are_k_updates_on_what_one_set_of_weights_sampled(phased, tmp_path):
    """Beside the same walk written out: phases of 3 and of 2 updates, with old log-probabilities of their start.

    The two score in other programs, so they differ by rounding, which Adam amplifies where gradients cancel (those of
    k_proj.bias). Compared is what it cannot amplify: losses and gradient norms of every update, and the trained policy.
    """
    loop.train(phased, tmp_path)
    config, tokenizer = model.load_config(phased.model), load_tokenizer(phased.model)
    problems = read_problems(phased.train_set)
    stream = ProblemStream(TrainSets.of(problems), CurriculumConfig(), problems_per_batch=4, seed=phased.seed)
    params = model.load_params(phased.model, config)
    optimizer = learner.make_optimizer(phased.optimizer)
    score = learner.make_score(config, temperature=1.0, chunk_tokens=phased.loss.chunk_tokens)
    train_step = learner.make_train_step(score, phased.loss, optimizer)
    schedule = learner.make_schedule(phased.optimizer, rollouts_per_step=64)
    state = learner.init_state(params, optimizer)
    shape = learner.batch_shape(
        problems_per_batch=4, group_size=16, max_prompt_tokens=6, max_tokens=2, microbatch_tokens=32
    )
    sampler = InProcessSampler(
        config,
        params,
        pad_token=tokenizer.pad_id,
        max_prompt_tokens=6,
        max_rollouts_per_dispatch=512,
    )
    logprobs = jax.jit(
        functools.partial(learner.completion_logprobs, config, temperature=1.0, chunk_tokens=phased.loss.chunk_tokens)
    )
    updates, grading = [], Grading(RewardConfig(), tokenizer.decode)
    for phase in (range(3), range(3, 5)):
        start = state.params
        sampler.update_weights(start, version=phase[0])
        for step in phase:
            asked = make_requests(
                next(stream), Prompts(tokenizer), phased.sampling, group_size=16, seed=phased.seed, step=step
            )
            sampler.submit(asked)
            groups = graded(sampler.completed(), by_id(problems), grading)
            rewards, lengths = learner.group_rewards(groups), learner.trained_lengths(groups)
            credited = learner.credit(rewards, lengths, learner.CreditConfig(), max_tokens=2)
            batch = shape.lay_out(groups, kept=credited.kept)
            old = [
                logprobs(start, *rows)[0]
                for rows in zip(batch.prompt_tokens, batch.prompt_mask, batch.tokens, strict=True)
            ]
            batch = dataclasses.replace(batch, old_logprobs=jnp.stack(old))
            state, metrics = train_step(state, batch, credited, jnp.float32(schedule(step)))
            updates.append({name: float(value) for name, value in metrics.items()})
    trained = model.load_params(tmp_path / "model", config)
    for rows in zip(batch.prompt_tokens, batch.prompt_mask, batch.tokens, strict=True):
        before, after, ours = (logprobs(weights, *rows)[0] for weights in (start, state.params, trained))
        np.testing.assert_allclose(ours, after, rtol=0, atol=1e-5)
        assert np.abs(after - before).max() > 1e-3
    lines = metrics_of(tmp_path)
    assert [line["staleness"] for line in lines] == [0, 1, 2, 0, 1]
    for line, update in zip(lines, updates, strict=True):
        for name in ("loss", "policy_loss", "gradient_norm", "entropy", "ratio", "ratio_max", "correction"):
            assert line[name] == pytest.approx(update[name], rel=1e-5, abs=1e-6), name
    clipped = [update["ratio_max"] > 1.002 for update in updates]
    assert clipped == [False, True, True, False, True]  # all updates of a phase but its first
    assert [line["compute"] for line in lines] == [64, 128, 192, 256, 320]


def test_phases_of_one_update_are_on_policy(short_run, whole, tmp_path):
    config = dataclasses.replace(short_run, max_staleness=1, asynchrony="phases")
    loop.train(config, tmp_path / "run", make_sampler=Makes(ShuffledSampler))
    builders.assert_same_run(tmp_path / "run", whole)


@pytest.mark.slow
def test_a_phase_is_finished_before_a_checkpoint_and_resumes_exactly(phased, base_run, tmp_path):
    """Interrupted in the second update of the first phase, with evaluations within phases."""
    config = dataclasses.replace(phased, checkpoint_every_s=1e9, evaluation=base_run.evaluation)
    loop.train(config, tmp_path / "whole")
    assert {line["step"] for line in evaluations_of(tmp_path / "whole")} >= {0, 2, 5}
    with builders.interrupted_in_step(2):
        assert app.exit_code(lambda: loop.train(config, tmp_path / "run")) == app.INTERRUPTED
    assert [entry.name for entry in (tmp_path / "run" / run_files.CHECKPOINTS).iterdir()] == ["3"]
    loop.train(dataclasses.replace(config, checkpoint_every_s=0.0), tmp_path / "run")
    builders.assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
def test_phases_score_nothing_when_the_ratio_is_from_the_sampler(phased, monkeypatch, tmp_path):
    loss = dataclasses.replace(phased.loss, ratio_from="sampler", correction_mode="off")
    monkeypatch.setattr(Parts, "score", lambda *_: pytest.fail("scored"))
    loop.train(dataclasses.replace(phased, loss=loss), tmp_path)
    ratios = [line["ratio_max"] > 1.002 for line in metrics_of(tmp_path)]
    assert ratios == [False, True, True, False, True]
