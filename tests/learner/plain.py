"""The objective written out: whole sequences, a full log-softmax, and what each token weighs by hand, in NumPy.

It shares nothing with the learner but the model's prefill.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from isocompute_jax import learner, model
from tests.learner.builders import LENGTH, PROMPT, TEMPERATURE, make_groups

GROUPS = make_groups()
SIGNAL = [p for p, group in enumerate(GROUPS) if len(set(learner.rewards_of(group).tolist())) > 1]


def plain_logprobs(config, params, groups=GROUPS):
    """log p [P, G, T, V] of every completion position from whole, right-padded sequences."""
    rows, places = [], []
    for group in groups:
        for completion in group.completions:
            row = np.concatenate([group.prompt_tokens, completion.tokens])
            rows.append(np.pad(row, (0, PROMPT + LENGTH - len(row))))
            # The token at place s is predicted at s - 1; places beyond the completion repeat its last one.
            places.append(len(group.prompt_tokens) - 1 + np.minimum(np.arange(LENGTH), len(completion.tokens) - 1))
    tokens = jnp.asarray(np.stack(rows))
    hidden, _ = model.prefill(config, params, tokens, jnp.ones_like(tokens, bool))  # causal: padding comes after
    hidden = jnp.take_along_axis(hidden, jnp.asarray(np.stack(places))[..., None], axis=1)
    head = params["embed"].T if config.tied_embeddings else params["head"]
    logprobs = jax.nn.log_softmax(hidden @ head / TEMPERATURE, axis=-1)
    return logprobs.reshape(len(groups), -1, LENGTH, logprobs.shape[-1])


@functools.partial(jax.jit, static_argnums=0)
def _with_gradient(config, params, weights):
    logprobs, pullback = jax.vjp(functools.partial(plain_logprobs, config), params)
    return logprobs, pullback(weights)[0]


def logprobs_of(config, params) -> np.ndarray:
    """[P, G, T, V] of all tokens of `GROUPS` in float64; meaningless beyond a completion's end."""
    shape = (len(GROUPS), len(GROUPS[0].completions), LENGTH, config.vocab_size)
    return np.asarray(_with_gradient(config, params, np.zeros(shape, config.dtype))[0], np.float64)


def picked(logprobs) -> np.ndarray:
    """[P, G, T] of the tokens that were drawn."""
    tokens = np.zeros(logprobs.shape[:3], np.int32)
    for p, group in enumerate(GROUPS):
        for g, completion in enumerate(group.completions):
            tokens[p, g, : len(completion.tokens)] = completion.tokens
    return np.take_along_axis(logprobs, tokens[..., None], axis=-1)[..., 0]


def gradient_of(loss, config, params, reference, coefficient):
    """The gradient of the mean over rollouts of the mean over their trained tokens of each token's terms.

    The k2 penalty pulls a token with lp - reference, the entropy of a distribution each of its log-probabilities with
    -p (log p + 1).

    Args:
      loss: the `LossConfig` whose coefficients of both are meant.
      config: of the model.
      params: where the gradient is taken.
      reference: parameters of the reference policy.
      coefficient: (p, g, t, log-probability, advantage) -> d policy term / d log-probability.
    """
    current, fixed = logprobs_of(config, params), logprobs_of(config, reference)
    weights = np.zeros_like(current)
    for p in SIGNAL:
        rewards = learner.rewards_of(GROUPS[p]).astype(np.float64)
        advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
        for g, completion in enumerate(GROUPS[p].completions):
            for t in np.flatnonzero(completion.mask):
                token, logprobs = completion.tokens[t], current[p, g, t]
                share = 1 / (completion.mask.sum() * len(SIGNAL) * len(advantages))
                weights[p, g, t] = share * loss.entropy_coef * np.exp(logprobs) * (logprobs + 1)
                kl = loss.kl_coef * (logprobs[token] - fixed[p, g, t, token])
                weights[p, g, t, token] += share * (coefficient(p, g, t, logprobs[token], advantages[g]) + kl)
    return _with_gradient(config, params, weights.astype(config.dtype))[1]
