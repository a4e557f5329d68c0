"""Interference between problems: do their policy gradients, at the weights of a run, pull the same way?

Same sampler, rewards, credit and loss as in training.

The gradient of a problem is that of its own terms of the training loss. Measured on n rollouts it is the true one plus
noise, which inflates the norm, so that cosines of measured gradients are too small. Rollouts are therefore cut into two
halves, each a group of its own with its own baseline, whose noises are independent:

    <g_i, g_j> is estimated by <(a_i + b_i) / 2, (a_j + b_j) / 2> for i != j, and by <a_i, b_i> for i = j,

a and b being the gradients of the halves. Both are unbiased for gradients of groups of n / 2 (advantages that are
divided by the standard deviation of the group depend on its size).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from isocompute_jax import learner, model
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
from isocompute_jax.experiment.updates import credited_by
from isocompute_jax.learner.batches import Batch, microbatch_of
from isocompute_jax.learner.credit import Credit
from isocompute_jax.learner.noise import part_of
from isocompute_jax.learner.objective import LossConfig, Params, Score, make_loss
from isocompute_jax.options import check, described, option
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.interference_files import Cosine, Summary, write_summary
from isocompute_jax.records.rollout import RolloutGroup
from isocompute_jax.tasks import Prompts, graded, load_tokenizer

MicrobatchGradients = Callable[[Params, Batch, Credit, Params | None], Float[Array, "M F"]]

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
    inner: np.ndarray  # [P, P] inner products of their gradients, as `inner_products` estimates them.
    halves: np.ndarray  # [P] cosine of the two halves of each problem's rollouts.

    @property
    def with_signal(self) -> np.ndarray:
        """[P] problems both of whose halves have a gradient."""
        return np.isfinite(self.halves)

    @functools.cached_property
    def means(self) -> dict[str, Cosine]:
        """Mean cosines: of all, of those solved in half of the rollouts or more, of the others, and between these two.

        Problems without a gradient in these rollouts count as well: to leave them out would pick by noise.
        """
        solved, everyone = self.solve_rates >= 0.5, np.ones(len(self.problems), bool)
        unsolved = ~solved
        sets = {"all": (everyone, everyone), "solved": (solved, solved), "unsolved": (unsolved, unsolved)}
        sets["between"] = (solved, unsolved)
        return {name: mean_cosine(self.inner, *pair) for name, pair in sets.items()}


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
    inner, halves = inner_products(*by_problem(gradients, len(groups)))
    found = Interference(tuple(p.id for p in problems), np.array(rates), inner, halves)
    _write(found, out, {"model": policy.model, "problems": problems_file, **dataclasses.asdict(options)})
    return found


def _check(config: RunConfig) -> None:
    if config.loss.in_reward:
        raise InputError(
            "config.loss: its KL or entropy term stands in the reward (kl_in, entropy_in), which is not measured here: "
            "set it to 'loss' in a copy of config.json"
        )
    for field, plain in {"loss.routing": "own", "teacher": "", "supervised": "", "sampling.top_k": 0}.items():
        if (found := operator.attrgetter(field)(config)) != plain:
            raise InputError(f"config.{field} = {found!r} is not measured here: set it to {plain!r}")


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
    halves = [part_of(group, slice(start, start + half)) for start in (0, half) for group in groups]
    credited = learner.credit(**credited_by(config, halves), recipe=config.recipe)
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


def microbatch_gradients(score: Score, config: LossConfig, *, features: int, seed: int) -> MicrobatchGradients:
    """Compiles (params, batch, credited, reference params) -> the gradient of each micro-batch's part of the loss.

    A gradient of D > `features` numbers is sketched: each is given a random sign, and those whose places differ by a
    multiple of `features` are added up. Inner products of sketches are unbiased, with an error of about
    |x| |y| / sqrt(features), and no more than one gradient is held at a time.

    Args:
      score: the model.
      config: the loss, as in training.
      features: F, numbers that are kept of a gradient; a model of no more parameters has its gradients as they are.
      seed: of the signs.
    """

    @jax.jit
    def gradients(
        params: Params, batch: Batch, credited: Credit, reference_params: Params | None
    ) -> Float[Array, "M F"]:
        loss = make_loss(score, config, credited, reference_params)

        def one(index: Array) -> Float[Array, "F"]:
            part = microbatch_of(batch, index, None)
            return _sketched(jax.grad(lambda p: loss(p, part)[0])(params), features, jax.random.key(seed))

        return jax.lax.map(one, jnp.arange(batch.tokens.shape[0]))

    return gradients


def _sketched(gradients: Params, features: int, key: Array) -> Float[Array, "F"]:
    leaves = [jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(gradients)]
    if sum(leaf.size for leaf in leaves) <= features:
        return jnp.concatenate(leaves)
    total = jnp.zeros(features, jnp.float32)
    for own, leaf in zip(jax.random.split(key, len(leaves)), leaves, strict=True):
        signed = leaf * jax.random.rademacher(own, leaf.shape, jnp.float32)
        total += jnp.pad(signed, (0, -leaf.size % features)).reshape(-1, features).sum(axis=0)
    return total


def inner_products(
    first: Float[np.ndarray, "P F"], second: Float[np.ndarray, "P F"]
) -> tuple[Float[np.ndarray, "P P"], Float[np.ndarray, "P"]]:
    """From the gradients of two independent halves of each problem's rollouts, or sketches of them.

    Returns:
      Unbiased estimates of the inner products of the problems' gradients, on the diagonal of squared norms, which may
      be negative where there is no signal; and the cosine of the two halves of each problem: the share of a half's
      gradient that is no noise, NaN without a gradient.
    """
    a, b = (np.asarray(half, np.float64) for half in (first, second))
    own, norms = np.sum(a * b, axis=1), np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    inner = (a + b) @ (a + b).T / 4
    np.fill_diagonal(inner, own)
    return inner, own / np.where(norms > 0, norms, np.nan)


def cosines_of(inner: Float[np.ndarray, "P P"]) -> Float[np.ndarray, "P P"]:
    """Cosines of pairs: single ones are noisy, and can exceed 1; NaN where a squared norm is not above 0."""
    squares = np.diag(inner)
    norms = np.sqrt(np.where(squares > 0, squares, np.nan))
    return inner / norms[:, None] / norms


def mean_cosine(inner: Float[np.ndarray, "P P"], rows: Bool[np.ndarray, "P"], columns: Bool[np.ndarray, "P"]) -> Cosine:
    """Mean inner product of a problem of `rows` with another of `columns`, over the root of their mean squared norms.

    A ratio of means, and not a mean of ratios: it stays finite where single norms are lost in noise, and weighs
    problems as an update does.

    The error is that of the jackknife over problems.

    Args:
      inner: as `inner_products` estimates them.
      rows: a set of problems.
      columns: the same set, or another.
    """
    value = _ratio(inner, rows, columns)
    pairs = rows[:, None] & columns & ~np.eye(len(inner), dtype=bool)
    used = np.flatnonzero(rows | columns)
    draws = []
    for index in used:
        kept = np.arange(len(inner)) != index
        draws.append(_ratio(inner, rows & kept, columns & kept))
    left = np.array(draws)
    error = np.sqrt((len(left) - 1) * np.var(left)) if len(left) else np.nan
    return Cosine(value, float(error), int(np.count_nonzero(pairs | pairs.T) // 2))


def _ratio(inner: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> float:
    pairs = rows[:, None] & columns & ~np.eye(len(inner), dtype=bool)
    if not pairs.any():
        return float("nan")
    squares = [np.diag(inner)[each].mean() for each in (rows, columns)]
    return float(inner[pairs].mean() / np.sqrt(np.prod(squares))) if min(squares) > 0 else float("nan")


def by_problem(gradients: Float[np.ndarray, "M F"], problems: int) -> Sequence[Float[np.ndarray, "P F"]]:
    """Gradients of micro-batches, in the order first halves, second halves, as those two; parts of one are summed."""
    parts = np.asarray(gradients, np.float64).reshape(2, problems, -1, gradients.shape[-1]).sum(axis=2)
    return parts[0], parts[1]


def _write(found: Interference, out: pathlib.Path, made: dict[str, Any]) -> None:
    """The arrays, the picture, and last the summary."""
    np.savez_compressed(
        out / ARRAYS,
        problems=np.array(found.problems),
        solve_rates=found.solve_rates,
        inner=found.inner,
        cosines=cosines_of(found.inner),
        halves=found.halves,
    )
    _draw(found, out)
    write_summary(out, Summary(int(found.with_signal.sum()), found.means), made)


def _draw(found: Interference, out: pathlib.Path) -> None:
    """Cosines of problems with signal, in the order of their solve rates, and the mean cosines."""
    from matplotlib.figure import Figure

    order = np.argsort(found.solve_rates, kind="stable")
    order = order[found.with_signal[order]]
    figure = Figure(figsize=(7.4, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    image = left.imshow(cosines_of(found.inner)[np.ix_(order, order)], vmin=-1, vmax=1, cmap="RdBu_r")
    left.set(xlabel="problems, rarely solved first", ylabel="problems")
    figure.colorbar(image, ax=left, label="cosine of gradients")
    means = {name: mean for name, mean in found.means.items() if np.isfinite(mean.cosine)}
    for place, mean in enumerate(means.values()):
        right.errorbar(place, mean.cosine, yerr=2 * np.nan_to_num(mean.stderr), fmt="o", color="#4c6a92", capsize=3)
    right.set_xticks(range(len(means)), list(means), rotation=30)
    right.axhline(0, color="#9aa1a9", linewidth=1)
    right.set(ylabel="mean cosine ± 2 s.e.")
    right.spines[["top", "right"]].set_visible(False)
    for suffix in ("png", "svg"):
        temporary = out / f".{PICTURE}.{suffix}"
        figure.savefig(temporary, format=suffix, dpi=150)
        temporary.replace(out / f"{PICTURE}.{suffix}")
