"""Truncated sampling: each token is scored among those that could be drawn, as a plain NumPy softmax of them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import learner
from isocompute_jax.records.errors import InputError
from tests.learner.builders import LENGTH, PROMPT, TEMPERATURE, VOCAB, make_groups, one_layer, shape_for
from tests.model.tiny import logits_of, random_params

CONFIG = one_layer(dtype="float64")
WIDTH = 5
PACKED = learner.pack_shape(
    problems_per_batch=6,
    group_size=4,
    max_prompt_tokens=PROMPT,
    max_tokens=LENGTH,
    row_tokens=24,
    microbatch_tokens=1000,
    top_k=WIDTH,
)
PADDED = dataclasses.replace(shape_for(1000), top_k=WIDTH)


def with_supports(groups, widths=(2, WIDTH + 1)):
    """The groups, with a random support for every token that was drawn, itself among it."""
    rng = np.random.default_rng(0)

    def filled(completion):
        support = np.full((len(completion.tokens), max(widths) - 1), -1, np.int32)
        for row, token, drawn in zip(support, completion.tokens, completion.mask, strict=True):
            others = rng.permutation(np.setdiff1d(np.arange(VOCAB), [token]))[: rng.integers(*widths) - 1]
            row[: len(others) + 1] = [*others, token] if drawn else -1
        return dataclasses.replace(completion, support=support)

    return [dataclasses.replace(group, completions=tuple(map(filled, group.completions))) for group in groups]


def plain(params, group, completion):
    """Log-probabilities and entropies of a completion's tokens, one by one."""
    text = np.concatenate([group.prompt_tokens, completion.tokens])
    tokens = np.pad(text, (0, PROMPT + LENGTH - len(text)))[None]  # one length, one program
    logits = logits_of(CONFIG, params, jnp.asarray(tokens), jnp.ones(tokens.shape, bool))
    logits = np.asarray(logits)[0, len(group.prompt_tokens) - 1 :] / TEMPERATURE
    found = []
    for row, token, support in zip(logits, completion.tokens, completion.support, strict=False):
        kept = support[support >= 0] if np.any(support >= 0) else np.arange(VOCAB)
        p = np.exp(row[kept] - row[kept].max())
        p /= p.sum()
        found.append((np.log(p[kept == token][0]), -np.sum(p * np.log(p))))
    return np.array(found).T


@pytest.mark.parametrize("shape", [PADDED, PACKED], ids=["padded", "packed"])
@pytest.mark.parametrize("chunk_tokens", [None, 1])
def test_scores_are_of_what_could_be_drawn(shape, chunk_tokens):
    groups = with_supports(make_groups())
    with jax.enable_x64(True):
        params = random_params(CONFIG)
        batch = shape.lay_out(groups)
        score = learner.make_score(CONFIG, temperature=TEMPERATURE, chunk_tokens=chunk_tokens)
        scores = jax.jit(score)(params, jax.tree.map(lambda x: x[0] if x.ndim else x, batch))
        logprobs, entropies = (np.asarray(x) for x in (scores.logprobs, scores.entropies))
        number = 0
        for group in groups:
            for completion in group.completions:
                here = np.asarray(batch.mask[0]) & (
                    np.asarray(batch.rollout[0]) == number
                    if shape is PACKED
                    else (np.asarray(batch.rollout[0]) == number)[..., None]
                )
                wanted = plain(params, group, completion)[:, completion.mask]
                np.testing.assert_allclose(logprobs[here], wanted[0], atol=1e-12)
                np.testing.assert_allclose(entropies[here], wanted[1], atol=1e-12)
                number += 1


@pytest.mark.parametrize("shape", [PADDED, PACKED], ids=["padded", "packed"])
@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        (lambda c: dataclasses.replace(c, support=None), r"top_k = 5: the sampler does not say which could be drawn"),
        (lambda c: dataclasses.replace(c, support=np.tile(c.tokens[:, None], 6)), r"says of more than 5 tokens"),
        (lambda c: dataclasses.replace(c, support=(c.tokens[:, None] + 1) % VOCAB), r"could not be drawn"),
    ],
)
def test_what_a_sampler_may_not_say(shape, spoiled, message):
    groups = with_supports(make_groups())
    groups[1] = dataclasses.replace(groups[1], completions=tuple(map(spoiled, groups[1].completions)))
    with pytest.raises(InputError, match=message):
        shape.lay_out(groups)


def test_supports_count_in_what_a_batch_takes():
    for shape in (PADDED, PACKED):
        without = dataclasses.replace(shape, top_k=0)
        tokens = shape.microbatches * shape.microbatch_tokens
        assert shape.least_bytes - without.least_bytes == 4 * WIDTH * tokens
