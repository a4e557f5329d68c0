"""Random numbers are keyed by (seed, step, problem, rollout), and lie strictly between 0 and 1."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from isocompute_jax.sampling import draw
from isocompute_jax.sampling.draw import problem_words

draw_uniforms, open_uniform = jax.jit(draw.draw_uniforms, static_argnums=2), jax.jit(draw.open_uniform)


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
