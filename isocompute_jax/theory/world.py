"""Problems that share skills: what the stochastic model of a run is made of, from a distribution of pass@1.

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
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from isocompute_jax.options import check, described, option

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
    slip: float = option(0.003, "Share of rollouts that fail for no skill's reason.", low=0)
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
