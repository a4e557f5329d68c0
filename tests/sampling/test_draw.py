"""How a token is drawn: the right frequencies, the right nucleus, never a token outside of it; and random numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from isocompute_jax import model
from isocompute_jax.sampling import SamplingParams
from isocompute_jax.sampling import draw as drawing
from isocompute_jax.sampling.draw import SMALLEST_PROBABILITY, nucleus, pick, problem_words
from tests.sampling.builders import CONFIG, make_request, sample, weights

DRAWS, PROMPT = 4096, [3, 7, 1]
LARGEST = np.float32(1 - 2**-24)
"""The largest number that is drawn."""

# Jitted, as samplers call them: the condition of a plain `pick` compiles at each call.
draw, open_uniform = jax.jit(pick), jax.jit(drawing.open_uniform)
draw_uniforms = jax.jit(drawing.draw_uniforms, static_argnums=2)


@functools.cache
def logits_after_prompt() -> np.ndarray:
    tokens = jnp.asarray([PROMPT])

    @jax.jit
    def logits(params):
        hidden, _ = model.prefill(CONFIG, params, tokens, jnp.ones_like(tokens, bool))
        return model.logits(CONFIG, params, hidden[0, -1])

    return np.asarray(logits(weights()), np.float64)


def first_token_probs(temperature) -> np.ndarray:
    """softmax(logits / temperature) after the prompt, in float64 NumPy."""
    scaled = logits_after_prompt() / temperature
    return np.exp(scaled - scaled.max()) / np.sum(np.exp(scaled - scaled.max()))


def looped_nucleus(probs, top_p):
    """Most probable tokens first until their sum reaches top_p; tokens as probable as the last one stay, too."""
    chosen, total = [], 0.0
    for token in sorted(range(len(probs)), key=lambda i: -probs[i]):
        if total >= top_p and probs[token] != probs[chosen[-1]]:
            break
        chosen.append(token)
        total += probs[token]
    return sorted(chosen)


@pytest.fixture(scope="module")
def drawn():
    """First tokens of 4,096 rollouts of one prompt, and their log-probabilities, for (temperature, top_p)."""

    @functools.cache
    def first_tokens(temperature, top_p):
        params = SamplingParams(temperature=temperature, top_p=top_p, max_tokens=1)
        request = make_request("coin", prompt=PROMPT, group_size=DRAWS, params=params)
        completions = sample([request], budget=DRAWS)["coin"].completions
        assert all(len(completion.tokens) == 1 for completion in completions)
        return np.array([c.tokens[0] for c in completions]), np.array([c.logprobs[0] for c in completions])

    return first_tokens


@pytest.mark.parametrize(("temperature", "top_p"), [(0.6, 1.0), (1.0, 1.0), (1.0, 0.7), (0.6, 0.7)])
def test_frequencies_match_the_softmax(drawn, temperature, top_p):
    """Chi-square over the tokens that can be drawn; with top_p the distribution is renormalised over the nucleus."""
    tokens, logprobs = drawn(temperature, top_p)
    probs = first_token_probs(temperature)
    allowed = looped_nucleus(probs, top_p) if top_p < 1 else list(range(CONFIG.vocab_size))
    assert len(allowed) >= 2
    assert (len(allowed) < CONFIG.vocab_size) == (top_p < 1)
    expected = np.zeros(CONFIG.vocab_size)
    expected[allowed] = probs[allowed] / probs[allowed].sum()
    counts = np.bincount(tokens, minlength=CONFIG.vocab_size)
    assert counts[expected == 0].sum() == 0
    # Cells of fewer than five expected draws are joined, as the test asks for.
    rare = [i for i in allowed if DRAWS * expected[i] < 5]
    cells = [[i] for i in allowed if i not in rare] + ([rare] if rare else [])
    observed = [counts[cell].sum() for cell in cells]
    wanted = [DRAWS * expected[cell].sum() for cell in cells]
    assert scipy.stats.chisquare(observed, wanted).pvalue > 0.001
    np.testing.assert_allclose(logprobs, np.log(expected[tokens]), atol=1e-5)


def test_the_frequency_test_has_teeth(drawn):
    """The draws at one temperature are not taken for those of another."""
    tokens, _ = drawn(1.0, 1.0)
    counts = np.bincount(tokens, minlength=CONFIG.vocab_size)
    assert scipy.stats.chisquare(counts, DRAWS * first_token_probs(1.15)).pvalue < 0.001


def test_nucleus_logprobs_sum_to_one(drawn):
    tokens, logprobs = drawn(1.0, 0.7)
    probability = dict(zip(tokens.tolist(), np.exp(logprobs.astype(np.float64)), strict=True))
    assert sorted(probability) == looped_nucleus(first_token_probs(1.0), 0.7)
    assert sum(probability.values()) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("top_k", "top_p"),
    [(3, 1.0), (6, 0.7), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1, 0.5), (99, 1.0)))],
)
def test_the_most_probable_tokens_alone(top_k, top_p):
    """top_p cuts what the top_k are to each other; the completions say what was left, and are drawn from it."""
    params = SamplingParams(temperature=1.0, top_p=top_p, max_tokens=1, top_k=top_k)
    request = make_request("coin", prompt=PROMPT, group_size=DRAWS, params=params)
    completions = sample([request], budget=DRAWS)["coin"].completions
    probs = first_token_probs(1.0)
    highest = np.argsort(-probs)[:top_k]
    among = probs[highest] / probs[highest].sum()
    allowed = highest if top_p == 1 else highest[looped_nucleus(among, top_p)]
    supports = np.stack([c.support_of(99)[0] for c in completions])
    assert (np.sort(supports[:, : len(allowed)]) == np.sort(allowed)).all()
    assert (supports[:, len(allowed) :] == -1).all()
    expected = probs[allowed] / probs[allowed].sum()
    counts = np.array([sum(c.tokens[0] == token for c in completions) for token in allowed])
    assert counts.sum() == DRAWS
    common = DRAWS * expected >= 5
    if common.sum() > 1:
        wanted = expected[common] / expected[common].sum() * counts[common].sum()
        assert scipy.stats.chisquare(counts[common], wanted).pvalue > 0.001
    logprobs = dict(zip(allowed.tolist(), np.log(expected), strict=True))
    np.testing.assert_allclose(
        [c.logprobs[0] for c in completions], [logprobs[c.tokens[0]] for c in completions], atol=1e-5
    )


@given(
    cuts=st.lists(st.integers(0, 64), min_size=7, max_size=7).map(sorted),
    whole=st.integers(1, 8),
    offset=st.sampled_from([-1, 0, 1]),
)
def test_nucleus_equals_a_plain_loop(cuts, whole, offset):
    """Probabilities in 64ths, so that sums are exact in float32, ties and zeros included.

    top_p lies on the sum of the most probable tokens, and just beside it: a sum that equals top_p is enough.
    """
    counts = np.diff([0, *cuts, 64])
    edge = np.clip(2 * np.sort(counts)[::-1][:whole].sum() + offset, 1, 127) / 128
    probs = (counts / 64).astype(np.float32)
    got = np.flatnonzero(jax.jit(nucleus)(probs, float(edge))).tolist()
    assert got == looped_nucleus((counts / 64).tolist(), edge)


@given(st.lists(st.floats(-8, 8, width=32), min_size=7, max_size=7), st.integers(0, 2**23 - 1).map(lambda i: i / 2**23))
def test_pick_inverts_the_cdf(scaled, uniform):
    """The token whose slice of [0, 1) holds the uniform number, within rounding; its log-probability is log-softmax."""
    token, logprob = draw(np.array(scaled, np.float32), np.float32(uniform), np.float32(1))
    exact = np.exp(np.array(scaled) - scipy.special.logsumexp(scaled))
    below, above = exact[: int(token)].sum(), exact[: int(token) + 1].sum()
    assert below - 1e-6 <= uniform < above + 1e-6
    assert float(logprob) == pytest.approx(np.log(exact[int(token)]), abs=1e-5)


@pytest.mark.parametrize("vocab", [255, 256, 257, 1000])
def test_the_token_is_where_the_cdf_passes_the_number(vocab):
    """As NumPy inverts it in float64, but where the number lies next to a boundary; whole blocks, and one filled up."""
    random = np.random.default_rng(1)
    scaled, uniforms = (3 * random.normal(size=(512, vocab))).astype(np.float32), random.random(512, np.float32)
    tokens, logprobs = map(np.asarray, draw(scaled, uniforms, np.ones(512, np.float32)))
    wide = scipy.special.log_softmax(scaled.astype(np.float64), axis=-1)
    cdf = np.cumsum(np.exp(wide), axis=-1)
    apart = np.abs(cdf - uniforms[:, None]).min(-1) > 1e-5
    assert apart.sum() > 400
    np.testing.assert_array_equal(tokens[apart], np.sum(cdf <= uniforms[:, None], axis=-1)[apart])
    np.testing.assert_allclose(logprobs, wide[np.arange(512), tokens], rtol=0, atol=1e-5)


def test_tokens_without_probability_are_never_drawn():
    """Over a large vocabulary the parallel cumsum also rises, by an ulp, at tokens outside the nucleus; it dips, too.

    The uniform numbers are placed on each of these rises. Among V = 1,000 they are one in 10^6, not never.
    """
    vocab, top_p = 1000, 0.7
    scaled = (3 * np.random.default_rng(0).normal(size=(64, vocab))).astype(np.float32)

    @jax.jit
    def cumulate(scaled):
        probs = jnp.exp(jax.nn.log_softmax(scaled, axis=-1))
        probs = jnp.where(nucleus(probs, top_p), probs, 0.0)
        return probs, jnp.cumsum(probs, axis=-1)

    probs, cdf = map(np.asarray, cumulate(scaled))
    rows, places = np.nonzero((np.diff(cdf, axis=-1, prepend=0) > 0) & (probs == 0))
    assert len(rows) > 10  # there are such rises, or this proves nothing
    uniforms = cdf[rows, places - 1] / cdf[rows, -1]
    for offset in (-1, 0, 1):
        shifted = np.nextafter(uniforms, np.float32(offset), dtype=np.float32) if offset else uniforms
        shifted = np.clip(shifted, 0, LARGEST)
        tokens, _ = draw(scaled[rows], shifted, np.full(len(rows), top_p, np.float32))
        assert np.all(probs[rows, np.asarray(tokens)] > 0)


@pytest.mark.parametrize("bits", [0, 1, 2**32 - 2, 2**32 - 1])
@pytest.mark.parametrize("vocab", [5, 1000])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_the_ends_of_the_unit_interval(bits, vocab, top_p):
    """The least and the greatest numbers take the first and last tokens that have a chance, not those of log-prob -50.

    Of the words of `jax.random.bits`, 0 to 511 gave the number 0 in `jax.random.uniform`, and by it the first token.
    """
    scaled = np.full(vocab, -50.0, np.float32)
    scaled[[1, vocab // 2, -2]] = 0.3, 0.1, 0.2
    token, logprob = draw(scaled, open_uniform(np.uint32(bits)), np.float32(top_p))
    assert int(token) == (1 if bits < 2 else vocab - 2)
    assert float(logprob) == pytest.approx(scaled[int(token)] - np.log(np.exp([0.3, 0.1, 0.2]).sum()), abs=1e-5)


def test_improbable_tokens_are_never_drawn():
    """Not at u = 0 either, nor where the parallel cumsum of a large vocabulary rises by an ulp at such a token."""
    scaled = (3 * np.random.default_rng(0).normal(size=(64, 1000))).astype(np.float32)
    scaled[:, ::2] = -50.0
    cdf = np.asarray(jax.jit(lambda x: jnp.cumsum(jax.nn.softmax(x), axis=-1))(scaled))
    rows, places = np.nonzero(np.diff(cdf, axis=-1) > 0)
    rows, places = rows[places % 2 == 1], places[places % 2 == 1]  # rises at an even token
    assert len(rows) > 10
    ends = np.array([0.0, SMALLEST_PROBABILITY, LARGEST], np.float32)
    for uniforms in (*(np.full(len(rows), end) for end in ends), cdf[rows, places] / cdf[rows, -1]):
        tokens, logprobs = draw(scaled[rows], np.clip(uniforms, 0, LARGEST), np.ones(len(rows), np.float32))
        assert np.all(np.asarray(tokens) % 2 == 1)
        assert np.min(logprobs) > np.log(SMALLEST_PROBABILITY)


def test_rare_tokens_are_drawn_as_often_as_they_should():
    """A first token of probability 2^-28 owns the numbers below 2^-28: sixteen of the 2^32 words, not 512."""
    scaled = np.log(np.array([2.0**-28, 1 - 2.0**-28])).astype(np.float32)
    bits = np.arange(600, dtype=np.uint32)
    tokens, _ = draw(np.tile(scaled, (600, 1)), open_uniform(bits), np.ones(600, np.float32))
    assert np.sum(np.asarray(tokens) == 0) == 16


@pytest.mark.parametrize("others", [1.0, 0.5])
def test_each_row_has_a_top_p_of_its_own(others):
    """As if it were drawn alone; rows that do not run decide nothing."""
    rng = np.random.default_rng(0)
    scaled, uniform = (2 * rng.normal(size=(6, 50))).astype(np.float32), rng.random(6, np.float32)
    top_p = np.array([1.0, 0.7, 1.0, 0.3, others, others], np.float32)
    for running in (np.ones(6, bool), top_p == 1):
        tokens, logprobs = draw(scaled, uniform, top_p, running)
        for row in np.flatnonzero(running):
            token, logprob = draw(scaled[row], uniform[row], top_p[row])
            assert tokens[row] == token
            np.testing.assert_allclose(logprobs[row], logprob, rtol=0, atol=1e-6)


def test_uniform_streams():
    """No two streams are alike, all lie in (0, 1), and each is the same whatever stands beside it."""
    words = np.array([[1, 2, 3, 4, 0], [1, 2, 4, 3, 0], [2, 1, 3, 4, 0]], np.uint32)
    rollouts = np.tile(np.arange(5, dtype=np.uint32), (3, 1))
    uniforms = np.asarray(draw_uniforms(words, rollouts, 8))
    assert uniforms.shape == (3, 5, 8)
    assert uniforms.min() > 0 and uniforms.max() < 1
    assert len({tuple(stream) for stream in uniforms.reshape(-1, 8).tolist()}) == 15
    np.testing.assert_array_equal(draw_uniforms(words[1:2], rollouts[:1, 3:], 8), uniforms[1:2, 3:])


def test_uniforms_do_not_depend_on_how_many_are_drawn():
    """What makes slots, which draw as many as fit a slot, agree with units, which draw `max_tokens`."""
    words = np.array([[1, 2, 3, 4, 0]], np.uint32)
    rollouts = np.arange(3, dtype=np.uint32)[None]
    long = np.asarray(draw_uniforms(words, rollouts, 64))
    for length in (1, 2, 33):
        np.testing.assert_array_equal(draw_uniforms(words, rollouts, length), long[..., :length])


@given(st.one_of(st.integers(0, 2**32 - 1), st.integers(0, 1023), st.integers(2**32 - 1024, 2**32 - 1)))
def test_a_number_lies_in_the_cell_that_its_upper_bits_name(word):
    """Within the cell of width 2^-23, half a unit of the 32nd bit from the ends of (0, 1); exact near 0."""
    uniform = float(open_uniform(np.uint32(word)))
    assert word >> 9 <= uniform * 2**23 < (word >> 9) + 1
    assert 2**-33 <= uniform <= 1 - 2**-24
    assert abs(uniform - (word + 0.5) / 2**32) <= uniform * 2**-23
    if word < 2**23:
        assert uniform == (word + 0.5) / 2**32


def test_the_ends():
    ends = open_uniform(np.array([0, 2**32 - 1], np.uint32))
    assert ends.tolist() == [2**-33, 1 - 2**-24]


def test_numbers_refine_those_of_jax():
    """The upper 23 bits are those of `jax.random.uniform`: the same draws, but where it had too few bits."""

    @jax.jit
    def both(key):
        return jax.random.uniform(key, (10_000,)), open_uniform(jax.random.bits(key, (10_000,), jnp.uint32))

    coarse, fine = (np.asarray(x, np.float64) for x in both(jax.random.key(3)))
    np.testing.assert_array_equal(np.floor(fine * 2**23) / 2**23, coarse)


def test_problem_words():
    assert problem_words("same") != problem_words("same2")
    assert all(0 <= word < 2**32 for word in problem_words("same"))
