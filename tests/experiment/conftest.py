"""What this room's tests share: one set of inputs, and step functions that are compiled once for all runs."""

import functools
import pathlib

import pytest

from isocompute_jax import learner
from isocompute_jax.experiment.config import RunConfig
from tests.experiment import builders

MAKE_OPTIMIZER = functools.cache(learner.make_optimizer)
MAKE_SCORE = functools.cache(learner.make_score)
MAKE_SCORER = functools.cache(learner.make_scorer)
MAKE_TRAIN_STEP = learner.make_train_step
ON_ONE_DEVICE = functools.cache(MAKE_TRAIN_STEP)


def make_train_step(score, loss_config, optimizer, *, shardings=None, donate=False):
    """Shardings are no key of a cache: a step on a mesh is made anew."""
    if shardings is None:
        return ON_ONE_DEVICE(score, loss_config, optimizer, donate=donate)
    return MAKE_TRAIN_STEP(score, loss_config, optimizer, shardings=shardings, donate=donate)


@pytest.fixture(autouse=True)
def compile_once(monkeypatch):
    """Runs in this process that differ in neither model, loss nor optimizer share a program (they are pure)."""
    monkeypatch.setattr(learner, "make_optimizer", MAKE_OPTIMIZER)
    monkeypatch.setattr(learner, "make_score", MAKE_SCORE)
    monkeypatch.setattr(learner, "make_train_step", make_train_step)
    monkeypatch.setattr(learner, "make_scorer", MAKE_SCORER)


@pytest.fixture(scope="session")
def base_run(tmp_path_factory) -> RunConfig:
    """See `builders.make_inputs`; nobody writes to its files."""
    return builders.make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="session")
def undisturbed(base_run, tmp_path_factory) -> pathlib.Path:
    """The run directory of `base_run`, run in this process without a break."""
    from isocompute_jax.experiment.loop import train

    workdir = tmp_path_factory.mktemp("runs") / "undisturbed"
    train(base_run, workdir)
    return workdir


@pytest.fixture
def use_sampler(monkeypatch):
    """Puts a sampler in the place of the service; returns the list of those that the loop made."""

    def use(cls, **options):
        made = []

        def make(config, model_config, params, *, workdir, tokenizer, mesh, interrupted):
            made.append(
                cls(
                    model_config,
                    params,
                    stop_tokens=tokenizer.eos_ids,
                    pad_token=tokenizer.pad_id,
                    max_prompt_tokens=config.sampling.max_prompt_tokens,
                    max_rollouts_per_dispatch=config.sampling.max_rollouts_per_dispatch,
                    mesh=mesh,
                    **options,
                )
            )
            made[-1].interrupted = interrupted
            return made[-1]

        monkeypatch.setattr("isocompute_jax.experiment.loop.make_sampler", make)
        return made

    return use
