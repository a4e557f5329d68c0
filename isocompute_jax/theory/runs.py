"""A run of GRPO in a world of shared skills, step by step, with everything that a learner does but the language.

Each step draws B problems, n answers of each from the softmax over answers, and advantages as the learner makes them;
groups without signal leave the loss; the mean gradient of the others, with the noise of n rollouts' words, is clipped,
and makes a step of Adam, or of plain SGD. Weights stand for random mixtures of a network's, so that they all have one
second moment: Adam's step then has the direction of its first moment, and a length that the rate alone sets. SGD's step
is the rate times the clipped gradient, so that it shrinks with the signal as problems are solved.

So what a rollout is worth comes out, and is not put in: a larger group has a straighter gradient (its words, and its
problems' own features, average out), a smaller one takes more steps at the same compute, sees each problem more
often, and learns it by heart sooner.

Problems that share skills: what the stochastic model of a run is made of, from a distribution of pass@1.

A problem has one right answer and some wrong ones, and each wrong answer is the error of one **skill**, drawn by Zipf's
law: few skills are behind most errors. The logit of a wrong answer is its value in the base model, minus how far its
skill has been learned, plus what the weights know about this answer alone:

    logit_ja = b_ja - w[skill(j, a)] + sqrt(own) xi_ja . v          (right answers: b_j0 + sqrt(own) xi_j0 . v)

so that w carries over to problems that were never trained on, and v, random features of the answer itself, is what
learning by heart uses. b is such that pass@1 of the problems has the given distribution, with the right answer's logit
equal to its log-odds. A share of rollouts **slips**: it fails whatever was learned, and so even what is solved keeps a
signal, which is noise.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from isocompute_jax.allocation.estimator import STD_EPSILON
from isocompute_jax.options import check, described, option
from isocompute_jax.theory.exchange import Rule

MOST_SOLVED = 0.999
"""No problem is solved by more than this share of the rollouts that do not slip."""


@described
@dataclasses.dataclass(frozen=True)
class Constants:
    """What pass@1, n, B and the rate do not say of a model and its task. The defaults are the embedded study's."""

    skills: int = option(128, "Number of skills.", low=1)
    skill_exponent: float = option(0.68, "Of Zipf's law: the i-th skill's share of errors is i^-exponent.", low=0)
    wrong_answers: int = option(15, "Of each problem.", low=1)
    wrong_spread: float = option(8.2, "Standard deviation of their logits in the base model.", low=0)
    own: float = option(0.75, "Energy of an answer's own features, in units of a skill's.", low=0)
    own_features: int = option(256, "How many there are: what can be learned by heart.", low=1)
    wording: float = option(2.35, "Noise of a rollout's words in its gradient, in units of a skill's.", low=0)
    slip: float = option(0.003, "Share of rollouts that fail for no skill's reason.", low=0, high=1)
    gain: float = option(1320.0, "Adam's step of every weight, in units of the learning rate.", low=0)

    def __post_init__(self) -> None:
        check(self)


class Problems(NamedTuple):
    """Some problems of a world: features [P, A, F] and base logits [P, A] of their answers, the right one first."""

    features: Float[Array, "P A F"]
    logits: Float[Array, "P A"]


class World(NamedTuple):
    """Training problems and held-out ones that share skills."""

    train: Problems
    held_out: Problems


def make_world(
    pass_rates: Float[np.ndarray, "N"], *, problems: int, held_out: int, constants: Constants, seed: int
) -> World:
    """Problems whose pass@1 is drawn from `pass_rates`.

    Args:
      pass_rates: pass@1 of a sample of problems, each between 0 and 1 (both excluded; see `pass_rates.smoothed`).
      problems: D, training problems.
      held_out: problems that are only evaluated.
      constants: of the model.
      seed: of the draw.
    """
    rng = np.random.default_rng([seed, problems])
    count, wrong = problems + held_out, constants.wrong_answers
    drawn = rng.choice(np.asarray(pass_rates, np.float64), size=count)
    drawn = np.minimum(drawn / (1 - constants.slip), MOST_SOLVED)  # of the rollouts that do not slip
    share = np.arange(1.0, constants.skills + 1) ** -constants.skill_exponent
    skill = rng.choice(constants.skills, size=(count, wrong), p=share / share.sum())
    features = np.zeros((count, wrong + 1, constants.skills + constants.own_features), np.float32)
    features[np.arange(count)[:, None], 1 + np.arange(wrong), skill] = -1.0
    scale = np.sqrt(constants.own / constants.own_features)
    features[:, :, constants.skills :] = scale * rng.standard_normal((count, wrong + 1, constants.own_features))
    errors = constants.wrong_spread * rng.standard_normal((count, wrong))
    errors -= np.log(np.exp(errors).sum(axis=1, keepdims=True))  # all of them together weigh 1
    logits = np.concatenate([np.log(drawn / (1 - drawn))[:, None], errors], axis=1).astype(np.float32)
    parts = slice(None, problems), slice(problems, None)
    return World(*(Problems(jnp.asarray(features[part]), jnp.asarray(logits[part])) for part in parts))


# --- runs


Optimizer = Literal["adam", "sgd"]

B1, B2, EPSILON = 0.9, 0.999, 1e-8


class Curves(NamedTuple):
    """Simulated learning curves: at `compute` [T] rollouts, of R runs, means over problems.

    `held_out`, `best`, `worst` (best@k and worst@k of held-out problems) and `train` are [T, R]; `updates` [T, R]
    counts optimizer steps.
    """

    compute: Int[np.ndarray, "T"]
    held_out: Float[np.ndarray, "T R"]
    best: Float[np.ndarray, "T R"]
    worst: Float[np.ndarray, "T R"]
    train: Float[np.ndarray, "T R"]
    updates: Float[np.ndarray, "T R"]


class _Weights(NamedTuple):
    """Of one run: weights [F], first moment [F], second moment (both stay 0 with SGD), optimizer steps so far."""

    values: Array
    first: Array
    second: Array
    updates: Array


def simulate(
    world: World,
    compute: Sequence[float] | Float[np.ndarray, "T"],
    *,
    group_size: int,
    problems_per_batch: int,
    rule: Rule,
    constants: Constants,
    runs: int,
    optimizer: Optimizer = "adam",
    drop: bool = True,
    clip_norm: float = 1.0,
    warmup_steps: int = 10,
    k: int = 4,
    seed: int = 0,
    most: int = 0,
) -> Curves:
    """Learning curves of `runs` runs that differ in their random numbers alone.

    Args:
      world: its problems.
      compute: C to evaluate at, rising; each is rounded to whole steps, and those below one step become one.
      group_size: n, at least 2.
      problems_per_batch: B_problem, at most the training problems of the world.
      rule: advantages, and the learning rate: `rule.rate` at `rule.reference_group_size` rollouts per problem.
      constants: of the model.
      runs: R.
      optimizer: with `sgd` a rate is the change of a weight per unit of its gradient, where a weight of 1 moves the
        logit of its skill's wrong answers by 1. `constants.gain` does not apply: it says how far all of a network's
        weights, moved by Adam's rate each, move such a logit, and says nothing of the length of their gradient.
      drop: whether groups without signal leave the mean (`zero_variance_groups=drop`) or count in it (`keep`).
      clip_norm: of the gradient.
      warmup_steps: the rate rises linearly over so many steps.
      k: of best@k and worst@k.
      seed: of the random numbers.
      most: largest n that is to come; calls that have it in common share a compiled program.

    Raises:
      ValueError: a batch larger than the training set, a group of one, compute that does not rise.
    """
    problems = len(world.train.logits)
    if not 1 <= problems_per_batch <= problems:
        raise ValueError(f"problems_per_batch = {problems_per_batch}: it must be 1 to the {problems} training problems")
    if group_size < 2:
        raise ValueError(f"a group of {group_size} has no advantages: group_size must be 2 or more")
    if np.any(np.diff([0.0, *compute]) < 0):
        raise ValueError("compute must rise")
    per_step = group_size * problems_per_batch
    steps = np.unique(np.maximum(np.round(np.asarray(compute, float) / per_step), 1).astype(np.int32))
    rate = float(rule.rate_at(group_size)) * (constants.gain if optimizer == "adam" else 1.0)
    found = _curves(
        world,
        jax.random.split(jax.random.key(seed), runs),
        jnp.asarray(np.diff([0, *steps])),
        jnp.asarray([group_size, rate, clip_norm, warmup_steps, constants.wording, constants.slip], jnp.float32),
        shape=(max(group_size, most), problems_per_batch, k),
        scaled=rule.advantage_scale == "group_std",
        loo=rule.baseline == "leave_one_out",
        drop=drop,
        take_step=_adam if optimizer == "adam" else _sgd,
    )
    return Curves(steps * per_step, *(np.asarray(column) for column in found))


@functools.partial(jax.jit, static_argnames=("shape", "scaled", "loo", "drop", "take_step"))
def _curves(
    world: World,
    keys: Array,
    spans: Array,
    numbers: Array,
    *,
    shape: tuple[int, int, int],
    scaled: bool,
    loo: bool,
    drop: bool,
    take_step: Callable[[_Weights, Array, Array, Array], _Weights],
) -> tuple[Array, ...]:
    """(held-out, best@k, worst@k, train, updates), each [T, R]."""
    most, batch, k = shape
    problems, features = len(world.train.logits), world.train.features.shape[-1]
    group_size, rate, clip_norm, warmup, wording, slip = numbers

    def one(key: Array) -> tuple[Array, ...]:
        order_key, key = jax.random.split(key)
        order = jax.random.permutation(order_key, problems)

        def step(_: int, state: tuple[_Weights, Array]) -> tuple[_Weights, Array]:
            weights, count = state
            answer_key, word_key = jax.random.split(jax.random.fold_in(key, count))
            chosen = order[(count * batch + jnp.arange(batch)) % problems]
            drawn = Problems(*(part[chosen] for part in world.train))
            uniforms = jax.random.uniform(answer_key, (batch, most, 1))
            counts = _answers(drawn.logits + drawn.features @ weights.values, uniforms, group_size, slip)
            pushes, noise, mixed = _advantages(counts, group_size, scaled=scaled, loo=loo)
            groups = jnp.sum(mixed)
            words = wording * jnp.sqrt(jnp.sum(noise) / features) * jax.random.normal(word_key, (features,))
            gradient = jnp.einsum("ba,baf->f", pushes, drawn.features) + words
            gradient = gradient / jnp.maximum(groups if drop else batch, 1)
            warm = jnp.minimum((count + 1) / jnp.maximum(warmup, 1.0), 1.0)
            stepped = take_step(weights, gradient, rate * warm, clip_norm)
            kept = jax.tree.map(lambda new, old: jnp.where(groups > 0, new, old), stepped, weights)
            return kept, count + 1

        def span(state: tuple[_Weights, Array], steps: Array) -> tuple[tuple[_Weights, Array], tuple[Array, ...]]:
            state = jax.lax.fori_loop(0, steps, step, state)
            rates = (1 - slip) * _solve_rates(world.held_out, state[0].values)
            trained = (1 - slip) * _solve_rates(world.train, state[0].values)
            columns = rates.mean(), 1 - jnp.mean((1 - rates) ** k), jnp.mean(rates**k), trained.mean()
            return state, (*columns, state[0].updates)

        zeros = jnp.zeros(features)
        start = _Weights(zeros, zeros, jnp.zeros(()), jnp.zeros(())), jnp.zeros((), jnp.int32)
        return jax.lax.scan(span, start, spans)[1]

    return jax.vmap(one, out_axes=1)(keys)


def _answers(
    logits: Float[Array, "B A"], uniforms: Float[Array, "B N 1"], group_size: Array, slip: Array
) -> Float[Array, "B A"]:
    """How many of n rollouts gave each answer, and did not slip; the uniforms beyond n are not used."""
    below = (1 - slip) * jnp.cumsum(jax.nn.softmax(logits, axis=-1), axis=-1)[:, None]
    drawn = jnp.arange(uniforms.shape[1])[:, None] < group_size
    beyond = jnp.sum((uniforms >= below) & drawn, axis=1).astype(jnp.float32)
    at_least = jnp.concatenate([jnp.full((len(logits), 1), group_size), beyond], axis=1)
    return at_least[:, :-1] - at_least[:, 1:]


def _advantages(
    counts: Float[Array, "B A"], n: Float[Array, ""], *, scaled: bool, loo: bool
) -> tuple[Float[Array, "B A"], Float[Array, "B"], Array]:
    """(1/n) sum of the advantages of each answer, sum A^2 / n^2 of the group, and whether it has a signal."""
    rate = counts[:, :1] / n
    mixed = (rate > 0) & (rate < 1)
    variance = rate * (1 - rate)
    scale = jnp.sqrt(variance * n / (n - 1)) + STD_EPSILON if scaled else jnp.float32(1.0)
    scale = scale * ((n - 1) / n if loo else 1.0)
    advantages = jnp.where(jnp.arange(counts.shape[1]) == 0, 1 - rate, -rate) / scale
    pushes = jnp.where(mixed, counts * advantages / n, 0.0)
    noise = jnp.where(mixed, variance / scale**2 / n, 0.0)
    return pushes, noise[:, 0], mixed[:, 0]


def _adam(weights: _Weights, gradient: Float[Array, "F"], rate: Array, clip_norm: Array) -> _Weights:
    """A step with one second moment for all weights, uphill."""
    gradient = _clipped(gradient, clip_norm)
    updates = weights.updates + 1
    first = B1 * weights.first + (1 - B1) * gradient
    second = B2 * weights.second + (1 - B2) * jnp.mean(gradient**2)
    direction = first / (1 - B1**updates) / (jnp.sqrt(second / (1 - B2**updates)) + EPSILON)
    return _Weights(weights.values + rate * direction, first, second, updates)


def _sgd(weights: _Weights, gradient: Float[Array, "F"], rate: Array, clip_norm: Array) -> _Weights:
    """A step along the gradient, as long as that is."""
    values = weights.values + rate * _clipped(gradient, clip_norm)
    return weights._replace(values=values, updates=weights.updates + 1)


def _clipped(gradient: Float[Array, "F"], clip_norm: Array) -> Float[Array, "F"]:
    """No longer than `clip_norm`."""
    norm = jnp.sqrt(jnp.sum(gradient**2) + EPSILON**2)
    return gradient * jnp.minimum(1.0, clip_norm / norm)


def _solve_rates(problems: Problems, weights: Float[Array, "F"]) -> Float[Array, "P"]:
    """pass@1 of each."""
    return jax.nn.softmax(problems.logits + problems.features @ weights, axis=-1)[:, 0]
