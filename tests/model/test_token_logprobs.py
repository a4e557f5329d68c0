"""The head against a plain softmax in float64: values, gradients, what its programs hold, and where they run."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import model, sharding
from isocompute_jax.model.head import multiply, precision_of
from isocompute_jax.records.errors import InputError
from tests.model.tiny import random_params, tiny_config

VOCAB, EMBED, ROWS, LENGTH = 150, 16, 3, 5
TEMPERATURE = 0.7


def config_of(**changes):
    return tiny_config(**(dict(vocab_size=VOCAB, embed_dim=EMBED, dtype="float64") | changes))


def head_of(tied, dtype="float64"):
    """The parameter that the head reads, by its name."""
    with jax.enable_x64(True):
        params = random_params(config_of(tied_embeddings=tied))
        name = "embed" if tied else "head"
        return {name: params[name].astype(dtype)}


def batch_of(dtype="float64"):
    """Hidden states, targets, and the cotangents of log-probabilities and entropies."""
    rng = np.random.default_rng(4)
    with jax.enable_x64(True):
        hidden = jnp.asarray(rng.normal(size=(ROWS, LENGTH, EMBED)), dtype)
        targets = jnp.asarray(rng.integers(0, VOCAB, (ROWS, LENGTH)), jnp.int32)
        weights = jnp.asarray(rng.normal(size=(2, ROWS, LENGTH)), jnp.promote_types(dtype, "float32"))
    return hidden, targets, weights


def with_gradients(scores, params, hidden, weights):
    """Values, and gradients of a weighted sum of both towards head, hidden states and temperature."""

    def loss(params, hidden, temperature):
        values = scores(params, hidden, temperature)
        return sum(jnp.sum(weight * value) for weight, value in zip(weights, values, strict=True)), values

    temperature = jnp.asarray(TEMPERATURE, weights.dtype)
    (_, values), gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(params, hidden, temperature)
    return tuple(np.asarray(x) for x in (*values, *jax.tree.leaves(gradients)))


def supports():
    """What each token could be: 1 to 6 ids, the target among them, twice perhaps; of the last token everything."""
    rng = np.random.default_rng(5)
    with jax.ensure_compile_time_eval():
        targets = np.asarray(batch_of()[1])
    support = rng.integers(-1, VOCAB, (ROWS, LENGTH, 6))
    support[..., 3] = targets
    support[0, 0] = np.where(np.arange(6) == 3, targets[0, 0], -1)  # certain
    support[-1, -1] = -1
    return jnp.asarray(support, jnp.int32)


@functools.cache
def plain(tied, head_dtype="float64", hidden_dtype="float64", cut=False):
    """A softmax as it is written down, in float64, of a head and hidden states that have been rounded."""

    def scores(params, hidden, temperature):
        table = params["embed"].T if tied else params["head"]
        listed = jnp.any(supports()[..., None] == jnp.arange(VOCAB), axis=-2)
        kept = listed | ~jnp.any(listed, axis=-1, keepdims=True) | (not cut)
        p = jax.nn.softmax(hidden @ table / temperature, where=kept)
        logprobs = jnp.log(jnp.where(p > 0, p, 1.0))
        chosen = jnp.take_along_axis(logprobs, targets[..., None], -1)[..., 0]
        return chosen, -jnp.sum(p * logprobs, -1)

    with jax.enable_x64(True):
        _, targets, weights = batch_of()
        params = jax.tree.map(lambda x: x.astype("float64"), head_of(tied, head_dtype))
        return with_gradients(scores, params, batch_of(hidden_dtype)[0].astype("float64"), weights)


def ours(config, params, *, chunk_tokens, support=None, mesh=None):
    """Log-probabilities, entropies, and the gradients of head, hidden states and temperature."""
    hidden, targets, weights = batch_of(config.dtype)
    if mesh is not None:
        params = {name: jax.device_put(x, model.param_shardings(config, mesh)[name]) for name, x in params.items()}

    def scores(params, hidden, temperature):
        return model.token_logprobs(
            config,
            params,
            hidden,
            targets,
            temperature=temperature,
            chunk_tokens=chunk_tokens,
            support=support,
            mesh=mesh,
        )

    return with_gradients(scores, params, hidden, weights)


def errors(found, wanted):
    """The largest difference of each array, relative to the largest number in it."""
    return [
        float(np.max(np.abs(np.asarray(a, np.float64) - b)) / np.max(np.abs(b)))
        for a, b in zip(found, wanted, strict=True)
    ]


@pytest.mark.parametrize(("chunk_tokens", "tied"), [(None, True), (1, True), (7, True), (7, False)])
def test_float64_equals_a_plain_softmax(tied, chunk_tokens):
    """In one chunk; in 15 of 10 columns; in 3 of 70, the last of which overlaps with the second."""
    with jax.enable_x64(True):
        found = ours(config_of(tied_embeddings=tied), head_of(tied), chunk_tokens=chunk_tokens)
    assert max(errors(found, plain(tied))) < 1e-13


@pytest.mark.parametrize(
    ("chunk_tokens", "tied", "devices"), [(None, True, 1), (1, True, 1), (7, False, 1), (2, False, 8)]
)
def test_among_what_could_be_drawn_it_is_a_softmax_of_that(tied, chunk_tokens, devices):
    """Probabilities that are exactly 1, gradients that are exactly 0, and chunks without any possible token."""
    mesh = None if devices == 1 else sharding.make_mesh(data=2, fsdp=2, tensor=2)
    with jax.enable_x64(True):
        config = config_of(tied_embeddings=tied)
        found = ours(config, head_of(tied), chunk_tokens=chunk_tokens, support=supports(), mesh=mesh)
    assert max(errors(found, plain(tied, cut=True))) < 1e-13
    assert found[0][0, 0] == 0


@pytest.mark.parametrize(
    ("tied", "data", "expert"), [(True, 2, 1), (False, 1, 2)], ids=["tied, over data", "untied, over experts"]
)
def test_eight_devices_give_what_one_does(tied, data, expert):
    """Columns over `tensor`, D over `fsdp`, a copy of the head for each of two parts of the tokens.

    There are 15 tokens for four shards, which four does not divide.
    """
    mesh = sharding.make_mesh(data=data, fsdp=2, expert=expert, tensor=2)
    config = config_of(tied_embeddings=tied)
    with jax.enable_x64(True):
        found = ours(config, head_of(tied), chunk_tokens=2, mesh=mesh)
    assert max(errors(found, plain(tied))) < 1e-13


def test_the_gradient_stays_where_the_head_lies():
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    config = config_of(dtype="float32", tied_embeddings=False)
    wanted = model.param_shardings(config, mesh)["head"]
    hidden, targets, _ = batch_of("float32")

    def loss(params):
        return sum(
            jnp.sum(x)
            for x in model.token_logprobs(config, params, hidden, targets, temperature=1.0, chunk_tokens=2, mesh=mesh)
        )

    head = jax.device_put(head_of(False, "float32")["head"], wanted)
    assert jax.jit(jax.grad(loss))({"head": head})["head"].sharding.is_equivalent_to(wanted, 2)


@pytest.mark.parametrize(
    ("head", "chunk_tokens", "bound"),
    [("auto", 7, 2e-6), ("bf16_x3", None, 3e-5), ("bf16_x3", 7, 3e-5), ("bf16", 7, 2e-2)],
)
def test_precision_of_a_float32_model(head, chunk_tokens, bound):
    """Three bfloat16 products keep 16 bits, one keeps 8: if lo were folded away, bf16_x3 would be a bf16."""
    config = config_of(dtype="float32", head=head, tied_embeddings=False)
    found = errors(ours(config, head_of(False, "float32"), chunk_tokens=chunk_tokens), plain(False))
    assert max(found) < bound
    if head == "bf16":
        assert min(found) > 2e-4  # it is what it says


@pytest.mark.parametrize("chunk_tokens", [None, 7])
def test_a_bfloat16_model_with_float32_masters(chunk_tokens):
    """Its logits are exact up to sums in float32, with the head that the sampler has; the head's gradient is float32.

    That of the hidden states is bfloat16, as they are.
    """
    config = config_of(dtype="bfloat16", tied_embeddings=False)
    found = ours(config, head_of(False, "float32"), chunk_tokens=chunk_tokens)
    assert found[2].dtype == np.float32
    logprobs, entropies, head, hidden, temperature = errors(found, plain(False, "bfloat16", "bfloat16"))
    assert max(logprobs, entropies) < 1e-6
    assert max(head, temperature) < 3e-5
    assert hidden < 2**-8


def test_one_product_of_bfloat16_numbers_and_three_of_float32():
    """What is exact is not multiplied again."""

    def products(precision, *dtypes):
        a, b = (jax.ShapeDtypeStruct((4, 4), dtype) for dtype in dtypes)
        program = jax.make_jaxpr(lambda a, b: multiply("ij,jk->ik", a, b, precision))(a, b)
        return str(program).count("dot_general[")

    assert products("bf16_x3", jnp.bfloat16, jnp.bfloat16) == 1
    assert products("bf16_x3", jnp.bfloat16, jnp.float32) == 2
    assert products("bf16_x3", jnp.float32, jnp.float32) == products("bf16_x3", jnp.float16, jnp.float16) == 3
    assert products("bf16", jnp.float32, jnp.float32) == products("float32", jnp.float32, jnp.float32) == 1


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_chunked_programs_hold_no_logits_of_all_tokens(tied):
    """Neither does a program on eight devices, of a device's tokens, nor a whole head there."""
    largest = functools.partial(_largest, config_of(dtype="float32", vocab_size=1024, tied_embeddings=tied))
    assert largest(128, None, None) == 128 * 1024
    assert largest(128, 8, None) == max(8, EMBED) * 1024
    assert largest(512, 8, sharding.make_mesh(fsdp=8)) == 8 * 1024


def _largest(config, tokens, chunk_tokens, mesh):
    """Numbers in the largest array of the compiled program of a gradient, per device."""
    spec = model.param_specs(config)["embed" if config.tied_embeddings else "head"]

    def abstract(shape, axes, dtype=jnp.float32):
        placed = None if mesh is None else sharding.named_sharding(mesh, shape, axes)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=placed)

    def loss(head, hidden, targets):
        params = {"embed" if config.tied_embeddings else "head": head}
        scores = model.token_logprobs(
            config, params, hidden, targets, temperature=1.0, chunk_tokens=chunk_tokens, mesh=mesh
        )
        return sum(jnp.sum(x) for x in scores)

    rows = abstract((8, tokens // 8, EMBED), ("batch", None, None))
    targets = abstract((8, tokens // 8), ("batch", None), jnp.int32)
    text = jax.jit(jax.grad(loss, (0, 1))).lower(abstract(spec.shape, spec.axes), rows, targets).compile().as_text()
    assert text is not None
    shapes = re.findall(r"\b[a-z]+\d+\[([\d,]+)\]", text)
    return max(math.prod(int(size) for size in shape.split(",")) for shape in shapes)


def test_logits_of_a_peaked_distribution_keep_their_digits():
    """Targets that are nearly certain, and logits far from zero: small log-probabilities are not lost in large sums."""
    config = config_of(dtype="float32", tied_embeddings=False)
    logits = np.full(VOCAB, 1000.0) + np.linspace(0, 1, VOCAB)
    logits[3] = 1016.0
    head = np.zeros((EMBED, VOCAB))
    head[0] = logits
    hidden = jnp.zeros((1, 2, EMBED), jnp.float32).at[..., 0].set(1.0)
    found = model.token_logprobs(
        config, {"head": jnp.asarray(head, jnp.float32)}, hidden, jnp.array([[3, 100]]), temperature=1.0, chunk_tokens=1
    )
    p = np.exp(np.float32(logits).astype(np.float64) - 1016)
    p /= p.sum()
    np.testing.assert_allclose(found[0][0], np.log(p[[3, 100]]), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found[1][0], -np.sum(p * np.log(p)), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("dtype", "head", "resolved"),
    [
        ("float32", "auto", "float32"), ("float64", "auto", "float32"), ("bfloat16", "auto", "bf16_x3"),
        ("float16", "auto", "bf16_x3"), ("bfloat16", "float32", "float32"), ("bfloat16", "bf16", "bf16"),
    ],
)  # fmt: skip
def test_auto_follows_the_dtype(dtype, head, resolved):
    assert precision_of(config_of(dtype=dtype, head=head)) == resolved


def test_a_head_narrower_than_float64_is_refused():
    with pytest.raises(InputError, match="head = 'bf16' is narrower than dtype = 'float64'"):
        config_of(head="bf16")
