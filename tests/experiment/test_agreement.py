"""Samplers that do not compute the learner's policy are caught, and say what to look at."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import model
from isocompute_jax.experiment import build, checkpoints, evaluation
from isocompute_jax.experiment.build import Parts
from isocompute_jax.experiment.config import AgreementConfig, EvaluationConfig, override
from isocompute_jax.experiment.inputs import read_inputs
from isocompute_jax.experiment.loop_state import LoopState
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import RunError
from isocompute_jax.records.requests import SamplingParams
from isocompute_jax.sampling import InProcessSampler
from tests.experiment import builders
from tests.experiment.samplers import Makes
from tests.model.tiny import random_params

MODEL = dataclasses.replace(builders.MODEL, tied_embeddings=False)
PROBLEMS, SAMPLES = 4, 4


@pytest.fixture(scope="module")
def config(base_run, tmp_path_factory):
    """`base_run` on a model with a head of its own, over a service."""
    directory = tmp_path_factory.mktemp("agreement") / "model"
    model.save_checkpoint(directory, MODEL, random_params(MODEL), tokenizer_from=base_run.model)
    config = override(override(base_run, "model", str(directory)), "service.endpoints", "nowhere:1")
    agreement = AgreementConfig(every=2, problems=PROBLEMS, samples=SAMPLES)
    return dataclasses.replace(config, agreement=agreement, evaluation=EvaluationConfig())


@dataclasses.dataclass
class Started:
    """A run over a sampler, before its first step, whose state is moved on by hand."""

    parts: Parts
    state: LoopState

    def check(self) -> None:
        self.state = evaluation.check_agreement(self.parts, self.state)

    def check_if_due(self) -> None:
        self.state = evaluation.check_if_due(self.parts, self.state)

    def update(self) -> None:
        """An update as training makes many of: every weight moves, by a tenth of its size."""
        rng = np.random.default_rng(self.state.step)
        old = self.state.learner
        moved = jax.tree.map(lambda x: x + 0.03 * rng.normal(size=x.shape).astype(x.dtype), old.params)
        ledger = dataclasses.replace(self.state.ledger, step=self.state.step + 1)
        learner = dataclasses.replace(old, step=old.step + 1, params=moved)
        self.state = dataclasses.replace(self.state, learner=learner, ledger=ledger)

    def save(self) -> None:
        checkpoints.save(self.parts, self.state)
        self.parts.checkpointer.wait()

    def lines(self) -> list[dict]:
        return run_files.read_lines(self.parts.path / run_files.AGREEMENT)


@pytest.fixture
def start(config, tmp_path):
    """Starts, or resumes, a run over samplers of a class."""

    def start(cls, **changes) -> Started:
        changed = config
        for name, value in changes.items():
            changed = override(changed, name.replace("__", "."), value)
        changed = changed.resolved()
        changed, inputs = evaluation.settled(changed, read_inputs(changed))
        grading = build.make_grading(changed.reward, inputs.tokenizer, inputs.problems)
        parts, first = build.build(
            changed, inputs, tmp_path, grading=grading, make_sampler=Makes(cls), interrupted=lambda: False
        )
        return Started(parts, checkpoints.resume(parts, first))

    return start


class Recording(InProcessSampler):
    """As it should be; remembers the prompts."""

    prompts: list[list[bytes]]

    def submit(self, requests, *, lane="train"):
        assert lane == "agreement"
        self.prompts = [*getattr(self, "prompts", []), [request.prompt_tokens.tobytes() for request in requests]]
        super().submit(requests, lane=lane)


def test_a_sound_sampler_agrees_and_is_booked_with_evaluation(start):
    run = start(Recording)
    run.check()
    run.update()
    run.check()
    lines = run.lines()
    assert [line["step"] for line in lines] == [0, 1]
    for number, line in enumerate(lines, 1):
        assert set(run_files.LINE_KEYS) <= set(line)
        assert 0 < line["logprob_difference"] <= line["logprob_difference_max"] < 1e-5
        assert line["compared_tokens"] * number <= line["evaluation_tokens"] + line["compared_tokens"]
        assert line["evaluation_rollouts"] == number * PROBLEMS * SAMPLES and line["compute"] == 0
    assert lines[1]["evaluation_tokens"] == lines[0]["compared_tokens"] + lines[1]["compared_tokens"]
    # The same prompts again: a cache that outlived its weights shows on no others.
    [first, second] = run.parts.sampler.prompts
    assert first == second and len(set(first)) == PROBLEMS


# --- what goes wrong


class StaleHead(InProcessSampler):
    """Every tensor is updated but the head."""

    def update_weights(self, params, *, version):
        super().update_weights({**params, "head": getattr(self, "_params", params)["head"]}, version=version)


@jax.jit
def half_cached_logprobs(old, new, prompt, tokens):
    """[1, 1, T] log-probabilities of `tokens` after `prompt`; all but its last token is cached from old weights."""
    _, prefix = model.prefill(MODEL, old, prompt[:, :-1], jnp.ones_like(prompt[:, :-1], bool))
    hidden, _ = model.extend(MODEL, new, jnp.concatenate([prompt[:, None, -1:], tokens[..., :-1]], axis=-1), prefix)
    logprobs = jax.nn.log_softmax(hidden @ new["head"])
    return jnp.take_along_axis(logprobs, tokens[..., None], axis=-1)[..., 0]


class StalePrefixCache(InProcessSampler):
    """The keys and values of a prompt, but for its last token, are those of the weights that first saw it."""

    def completed(self, *, lane="train"):
        seen = vars(self).setdefault("seen", {})
        for group in super().completed(lane=lane):
            prompt = group.prompt_tokens
            old = seen.setdefault(prompt.tobytes(), self._params)
            rescored = []
            for completion in group.completions:
                tokens = np.zeros((1, 1, 2), np.int32)
                tokens[0, 0, : len(completion.tokens)] = completion.tokens
                logprobs = np.asarray(half_cached_logprobs(old, self._params, prompt[None], tokens))[0, 0]
                rescored.append(dataclasses.replace(completion, logprobs=logprobs[: len(completion.tokens)]))
            yield dataclasses.replace(group, completions=tuple(rescored))


class UntemperedLogprobs(InProcessSampler):
    """Draws at the temperature asked for, and reports another one's log-probabilities: here, draws from it."""

    def submit(self, requests, *, lane="train"):
        params = SamplingParams(1.0, 1.0, requests[0].params.max_tokens)
        super().submit([dataclasses.replace(request, params=params) for request in requests], lane=lane)


@pytest.mark.parametrize("cls", [StaleHead, StalePrefixCache])
def test_what_is_stale_after_an_update_is_caught(start, cls):
    """It agrees at the start, and no longer once the weights have moved."""
    run = start(cls)
    run.check()
    [line] = run.lines()
    assert line["logprob_difference"] < 1e-5
    for _ in range(8):
        run.update()
    with pytest.raises(
        RunError, match=r"differ by .* nats per token .*agreement\.stop = 0\.2\. Look at .*prefix cache"
    ):
        run.check()
    assert len(run.lines()) == 2 and run.state.checked == 0  # it is not done, and comes again after a restart


def test_a_wrong_temperature_is_caught_at_the_start(start):
    run = start(UntemperedLogprobs, sampling__temperature=0.6)
    with pytest.raises(RunError, match="temperature"):
        run.check_if_due()


def test_a_small_difference_is_a_warning(start, caplog):
    """One update's worth of a stale head: more than two good engines differ by, and less than a broken one."""
    run = start(StaleHead)
    run.check()
    assert "differ" not in caplog.text
    run.update()
    run.check()
    [_, line] = run.lines()
    assert 0.02 < line["logprob_difference"] < 0.2
    assert "config.agreement.warn = 0.02. Look at the dtype of the head" in caplog.text


def test_a_sampler_that_missed_an_update_is_caught_by_its_versions(start):
    class Deaf(InProcessSampler):
        def update_weights(self, params, *, version):
            super().update_weights(params, version=0)

    run = start(Deaf)
    run.check()
    run.update()
    with pytest.raises(RunError, match="sampled under weights 0 to 0, where 1 to 1 were asked for"):
        run.check()


def test_numbers_that_are_none_are_caught(start):
    class Broken(InProcessSampler):
        def completed(self, *, lane="train"):
            for group in super().completed(lane=lane):
                broken = [dataclasses.replace(c, logprobs=c.logprobs * np.nan) for c in group.completions]
                yield dataclasses.replace(group, completions=tuple(broken))

    with pytest.raises(RunError, match="differ by nan nats per token"):
        start(Broken).check()


# --- when


def test_checks_come_at_the_start_every_n_updates_and_at_every_restart(start):
    """Every second update. What a restart checks stands in no log, and counts as drawn again."""
    run = start(InProcessSampler, sampling__temperature=0.6)
    for _ in range(4):
        run.check_if_due()
        run.update()
    run.save()
    assert [line["step"] for line in run.lines()] == [0, 2]
    run = start(InProcessSampler, sampling__temperature=0.6)
    assert run.state.ledger.step == 4 and run.state.checked == 2
    run.check_if_due()  # due, and not done when the checkpoint was written
    run.check_if_due()
    run.update()
    run.check_if_due()
    run.save()
    assert [line["step"] for line in run.lines()] == [0, 2, 4]
    run = start(UntemperedLogprobs, sampling__temperature=0.6)
    with pytest.raises(RunError, match="temperature"):
        run.check_if_due()  # not due, but servers may have changed
    run = start(InProcessSampler, sampling__temperature=0.6)
    run.check_if_due()
    assert run.state.ledger.redrawn_rollouts == PROBLEMS * SAMPLES
    assert [line["step"] for line in run.lines()] == [0, 2, 4]
