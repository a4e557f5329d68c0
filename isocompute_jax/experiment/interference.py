"""Interference between problems: how the policy gradients of different problems align, at the weights of a run.

Same sampler, rewards, credit and loss as in training; see `experiment.alignment` for the estimate.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from isocompute_jax import learner, model
from isocompute_jax.experiment.alignment import (
    Alignment,
    MeanCosine,
    MicrobatchGradients,
    alignment,
    by_problem,
    mean_cosine,
    microbatch_gradients,
)
from isocompute_jax.experiment.build import MakeSampler, make_grading
from isocompute_jax.experiment.config import MeshConfig, RunConfig
from isocompute_jax.experiment.inputs import (
    check_length,
    check_prompts,
    check_vocabulary,
    load_problems,
    model_config_of,
)
from isocompute_jax.experiment.rollouts import by_id, make_requests, sample
from isocompute_jax.experiment.samplers import make_sampler
from isocompute_jax.experiment.updates import length_penalties, masked_rollouts
from isocompute_jax.options import check, described, option
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.interference_files import Cosine, Summary, write_summary
from isocompute_jax.records.rollout import RolloutGroup
from isocompute_jax.tasks import Prompts, graded, load_tokenizer

LANE = "interference"
VERSION = 0
"""Of the weights, of which there is one."""
ARRAYS, PICTURE = "interference.npz", "interference"


@described
@dataclasses.dataclass(frozen=True)
class InterferenceConfig:
    """How the alignment of gradients is measured."""

    num_problems: int = option(64, "P, so many problems are drawn from the set; 0 for all.", low=0)
    rollouts: int = option(64, "n, rollouts of each problem, cut into two halves.", low=4)
    features: int = option(1 << 16, "Numbers kept of each gradient: larger ones are sketched.", low=1)
    seed: int = option(0, "Seed of the choice of problems, of every rollout and of sketches.", low=0)

    def __post_init__(self) -> None:
        check(self, "--")
        if self.rollouts % 2:
            raise InputError(f"--rollouts={self.rollouts} must be even: they are cut into two halves")


@dataclasses.dataclass(frozen=True, eq=False)
class Interference:
    """What was found about P problems."""

    problems: tuple[str, ...]  # [P] their ids.
    solve_rates: np.ndarray  # [P] of the rollouts that gave the gradients.
    alignment: Alignment  # of their gradients.

    @property
    def with_signal(self) -> np.ndarray:
        """[P] problems both of whose halves have a gradient."""
        return np.isfinite(self.alignment.halves)

    @functools.cached_property
    def means(self) -> dict[str, MeanCosine]:
        """Mean cosines: of all, of those solved in half of the rollouts or more, of the others, and between these two.

        Problems without a gradient in these rollouts count as well: to leave them out would pick by noise.
        """
        solved, everyone = self.solve_rates >= 0.5, np.ones(len(self.problems), bool)
        unsolved = ~solved
        sets = {"all": (everyone, everyone), "solved": (solved, solved), "unsolved": (unsolved, unsolved)}
        sets["between"] = (solved, unsolved)
        return {name: mean_cosine(self.alignment.inner, *pair) for name, pair in sets.items()}


def measure_interference(
    config: RunConfig,
    weights: str | os.PathLike[str],
    problems_file: str,
    out: str | os.PathLike[str],
    options: InterferenceConfig,
    *,
    make_sampler: MakeSampler = make_sampler,
) -> Interference:
    """Samples the problems, takes their gradients, and writes interference.json, .npz, .png and .svg into `out`.

    Args:
      config: of a run: prompts, sampling, rewards, recipe and loss. Its model is the reference of a KL term.
      weights: Hugging Face directory of the policy.
      problems_file: problem set; of the run's own, those that it trained on.
      out: made if absent.
      options: how many problems and rollouts.
      make_sampler: makes what draws the rollouts.

    Raises:
      InputError: bad input, or a loss whose terms stand in the reward, or that replays routing.
      RunError: the sampler has failed.
    """
    _check(config)
    out = pathlib.Path(out)
    config = dataclasses.replace(config, mesh=MeshConfig())  # one device
    policy = dataclasses.replace(config, model=os.fspath(weights))
    shape = model_config_of(policy)
    check_length(policy, shape)
    tokenizer = load_tokenizer(policy.model)
    check_vocabulary(policy.model, tokenizer, shape.vocab_size)
    trained_on = config.problem_set_size if problems_file == config.train_set else 0
    problems = load_problems(problems_file, trained_on, grader_name=config.reward.name_for)
    if options.num_problems:
        chosen = np.random.default_rng(options.seed).permutation(len(problems))[: options.num_problems]
        problems = [problems[index] for index in sorted(chosen)]
    prompts = Prompts(tokenizer, config.prompts)
    check_prompts([problems], prompts, config)
    params = model.load_params(policy.model, shape)
    reference = model.load_params(config.model, shape) if config.loss.reads_reference else None
    out.mkdir(parents=True, exist_ok=True)
    requests = make_requests(
        problems, prompts, config.sampling, group_size=options.rollouts, seed=options.seed, step=VERSION
    )
    with contextlib.ExitStack() as opened:
        grading = opened.enter_context(contextlib.closing(make_grading(config.reward, tokenizer, problems)))
        sampler = make_sampler(policy, shape, params, workdir=out, tokenizer=tokenizer, mesh=None)
        opened.enter_context(contextlib.closing(sampler))
        sampler.update_weights(params, version=VERSION)
        known = by_id(problems)
        groups = sample(
            sampler, requests, lane=LANE, version=VERSION, grade=lambda arriving: graded(arriving, known, grading)
        )
    gradients = _gradients(config, shape, params, reference, groups, options)
    rates = [np.mean(learner.rewards_of(group) >= config.evaluation.solved_at) for group in groups]
    found = Interference(tuple(p.id for p in problems), np.array(rates), alignment(*by_problem(gradients, len(groups))))
    _write(found, out, {"model": policy.model, "problems": problems_file, **dataclasses.asdict(options)})
    return found


def _check(config: RunConfig) -> None:
    if config.loss.in_reward:
        raise InputError(
            "config.loss: its KL or entropy term stands in the reward (kl_in, entropy_in), which is not measured here: "
            "set it to 'loss' in a copy of config.json"
        )
    if config.loss.routing != "own":
        raise InputError(f"config.loss.routing = {config.loss.routing!r} is not measured here: set it to 'own'")


def _gradients(
    config: RunConfig,
    shape: model.ModelConfig,
    params: model.Params,
    reference: model.Params | None,
    groups: Sequence[RolloutGroup],
    options: InterferenceConfig,
) -> np.ndarray:
    """[2 P parts, F] gradients of the first halves of all groups, then of the second; a half may have several parts."""
    half = options.rollouts // 2
    halves = [_part(group, slice(start, start + half)) for start in (0, half) for group in groups]
    rewards, lengths = learner.group_rewards(halves), learner.trained_lengths(halves)
    credited = learner.credit(
        rewards,
        lengths,
        config.recipe,
        max_tokens=config.sampling.max_tokens,
        penalties=length_penalties(config, halves, rewards),
        masked=masked_rollouts(config, halves),
    )
    laid_out = learner.batch_shape(
        problems_per_batch=1,
        group_size=half,
        max_prompt_tokens=config.sampling.max_prompt_tokens,
        max_tokens=config.sampling.max_tokens,
        microbatch_tokens=config.recipe.microbatch_tokens,
    )
    rows = len(halves) * (half // laid_out.rollouts)
    batch = dataclasses.replace(laid_out, microbatches=rows, rows=1).lay_out(halves)
    gradients = _program(shape, config.loss, config.temperature, options.features, options.seed)
    return np.asarray(gradients(params, batch, credited, reference))


@functools.lru_cache(maxsize=4)
def _program(
    shape: model.ModelConfig, loss: learner.LossConfig, temperature: float, features: int, seed: int
) -> MicrobatchGradients:
    """Compiled once for all weights that are measured in one process."""
    score = learner.make_score(shape, temperature=temperature, chunk_tokens=loss.chunk_tokens)
    return microbatch_gradients(score, loss, features=features, seed=seed)


def _part(group: RolloutGroup, rows: slice) -> RolloutGroup:
    """Some completions of a graded group."""
    return dataclasses.replace(
        group,
        completions=group.completions[rows],
        rewards=learner.rewards_of(group)[rows],
        reward_metrics={},
        failures={},
    )


def _write(found: Interference, out: pathlib.Path, made: dict[str, Any]) -> None:
    """The arrays, the picture, and last the summary."""
    np.savez_compressed(
        out / ARRAYS,
        problems=np.array(found.problems),
        solve_rates=found.solve_rates,
        inner=found.alignment.inner,
        cosines=found.alignment.cosines,
        halves=found.alignment.halves,
    )
    _draw(found, out)
    cosines = {name: Cosine(*mean) for name, mean in found.means.items()}
    write_summary(out, Summary(int(found.with_signal.sum()), cosines), made)


def _draw(found: Interference, out: pathlib.Path) -> None:
    """Cosines of problems with signal, in the order of their solve rates, and the mean cosines."""
    from matplotlib.figure import Figure

    order = np.argsort(found.solve_rates, kind="stable")
    order = order[found.with_signal[order]]
    figure = Figure(figsize=(7.4, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    image = left.imshow(found.alignment.cosines[np.ix_(order, order)], vmin=-1, vmax=1, cmap="RdBu_r")
    left.set(xlabel="problems, rarely solved first", ylabel="problems")
    figure.colorbar(image, ax=left, label="cosine of gradients")
    means = {name: mean for name, mean in found.means.items() if np.isfinite(mean.value)}
    for place, mean in enumerate(means.values()):
        right.errorbar(place, mean.value, yerr=2 * np.nan_to_num(mean.error), fmt="o", color="#4c6a92", capsize=3)
    right.set_xticks(range(len(means)), list(means), rotation=30)
    right.axhline(0, color="#9aa1a9", linewidth=1)
    right.set(ylabel="mean cosine ± 2 s.e.")
    right.spines[["top", "right"]].set_visible(False)
    for suffix in ("png", "svg"):
        temporary = out / f".{PICTURE}.{suffix}"
        figure.savefig(temporary, format=suffix, dpi=150)
        temporary.replace(out / f"{PICTURE}.{suffix}")
