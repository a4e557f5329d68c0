"""Attention over packed rows: every kernel computes the same function, and the chunked one in memory linear in T."""

import dataclasses
import functools
import logging
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import sharding
from isocompute_jax.model import packed_attention as module
from isocompute_jax.model.grouped_product import grouped_kernel
from isocompute_jax.model.kernels import ATTENTION_OUTPUT, filled_up, imports, tokamax
from isocompute_jax.model.kernels.chunked import chunk_size, chunked_attention
from isocompute_jax.model.kernels.splash import splash_attention
from isocompute_jax.model.packed_attention import choose_kernel, context_divides, packed_attention
from isocompute_jax.records.errors import InputError

HEADS, KV_HEADS, SIZE = 6, 2, 8


def packed(*lengths: int, padding: int = 0) -> list[int]:
    """`first` of a row of sequences of these lengths, and of padding behind them."""
    starts = np.cumsum([0, *lengths[:-1]])
    end = sum(lengths)
    return [*np.repeat(starts, lengths), *range(end, end + padding)]


def draws(rows: int, length: int, *, dtype: Any = np.float64, heads=HEADS, kv_heads=KV_HEADS, size=SIZE, seed=0):
    """q, k, v, and a gradient of the output."""
    rng = np.random.default_rng(seed)
    counts = (heads, kv_heads, kv_heads, heads)
    return [jnp.asarray(rng.normal(size=(rows, length, count, size)), dtype) for count in counts]


def plain(q, k, v, first, gradient):
    """Output and gradients by the book, in NumPy: all [T, T] scores, one row and one head after the other."""
    q, k, v, gradient = (np.asarray(x, np.float64) for x in (q, k, v, gradient))
    repeats, tokens, scale = q.shape[2] // k.shape[2], np.arange(q.shape[1]), q.shape[-1] ** -0.5
    found = [np.zeros(x.shape) for x in (q, q, k, v)]
    for row, head in np.ndindex(q.shape[0], q.shape[2]):
        at, shared = (row, slice(None), head), (row, slice(None), head // repeats)
        visible = (tokens >= np.asarray(first)[row][:, None]) & (tokens <= tokens[:, None])
        scores = np.where(visible, q[at] @ k[shared].T * scale, -np.inf)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        dweights = gradient[at] @ v[shared].T
        dscores = weights * (dweights - np.sum(weights * dweights, axis=1, keepdims=True)) * scale
        found[0][at], found[1][at] = weights @ v[shared], dscores @ k[shared]
        found[2][shared] += dscores.T @ q[at]
        found[3][shared] += weights.T @ gradient[at]
    return found


def test_no_array_without_elements_is_made_where_rows_fill_their_chunks():
    """One in a `shard_map` crashed jaxlib 0.11.2, where the flag of Llama 4's layers decides on `first`."""
    q, k, v, gradient = draws(2, 16, dtype=np.float32)
    first = jnp.asarray([packed(16)] * 2)

    def attend(q, k, v):
        return jnp.sum(chunked_attention(q, k, v, first, chunk=8) * gradient)

    text = str(jax.make_jaxpr(jax.grad(attend, argnums=(0, 1, 2)))(q, k, v))
    assert "f32[2,16,6,8]" in text and not re.search(r"\w\[(\d+,)*0(,\d+)*\]", text)
    assert filled_up(first, 16) is first
    np.testing.assert_array_equal(filled_up(first[:, :3], 5), [[0, 0, 0, 3, 4]] * 2)


def with_gradients(attend, q, k, v, first, gradient):
    """The output, and the gradients of q, k and v."""

    @jax.jit
    def both(q, k, v, first, gradient):
        out, pullback = jax.vjp(lambda *inputs: attend(*inputs, first), q, k, v)
        return out, *pullback(gradient)

    return both(q, k, v, jnp.asarray(first, jnp.int32), gradient)


def chunked(chunk):
    return functools.partial(chunked_attention, chunk=chunk)


def relative(ours, theirs) -> float:
    return float(np.linalg.norm(np.asarray(ours, np.float64) - theirs) / np.linalg.norm(theirs))


ROWS = {
    "several chunks": [
        packed(13, 1, 29, 3, 5),
        packed(1, 1, 1, 48),
        packed(51),
        packed(32, 19),
        packed(7, padding=44),
        packed(40, 10, padding=1),
    ],
    "one chunk": [packed(3, 4), packed(7)],
}


@pytest.mark.parametrize("first", ROWS.values(), ids=ROWS)
def test_chunked_is_masked_softmax(first):
    """Values and gradients in float64, with chunks of up to 16 tokens; the last one is not full."""
    with jax.enable_x64(True):
        q, k, v, gradient = draws(len(first), len(first[0]))
        ours = with_gradients(chunked(16), q, k, v, first, gradient)
    for a, b in zip(ours, plain(q, k, v, first, gradient), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)


def test_bfloat16_accumulates_in_float32():
    """Against float64 of the same numbers: sums over 300 tokens lose no more than single roundings do."""
    first = [packed(150, 1, 300, padding=61)]
    q, k, v, gradient = draws(1, 512, dtype=jnp.bfloat16)
    ours = with_gradients(chunked(128), q, k, v, first, gradient)
    for a, b in zip(ours, plain(q, k, v, first, gradient), strict=True):
        assert a.dtype == jnp.bfloat16
        assert relative(a, b) < 2**-7


def test_a_sequence_does_not_see_its_neighbours_to_the_bit():
    """Other numbers in them, other bounds between them, and with both other chunks that are read or not."""
    first = [packed(20, 44, 10, 54), packed(20, 24, 20, 10, 54), packed(64, 10, 54), packed(20, 44, 10, 14, padding=40)]
    own = np.isin(np.arange(128), range(64, 74))[:, None, None]
    # The sequence from 64 to 74 is the same in all rows.
    q, k, v, gradient = (jnp.where(own, x[:1], x) for x in draws(4, 128, dtype=np.float32))
    for x in with_gradients(chunked(16), q, k, v, first, gradient):
        rows = np.asarray(x[:, 64:74])
        assert np.any(rows[0])
        assert {row.tobytes() for row in rows} == {rows[0].tobytes()}


@pytest.mark.parametrize(
    ("heads", "kv_heads"),
    [pytest.param(4, 2, marks=pytest.mark.slow), (2, 1)],
    ids=["tensor cuts heads", "one kv head for all"],
)
def test_eight_devices_compute_what_one_does(heads, kv_heads):
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    first = [packed(13, 1, 26), packed(40), packed(20, padding=20), packed(1, 39)]
    q, k, v, gradient = draws(4, 40, dtype=np.float32, heads=heads, kv_heads=kv_heads)

    def attend(q, k, v, first):
        return packed_attention(q, k, v, first, kernel="auto", mesh=mesh)

    ours = with_gradients(attend, q, k, v, first, gradient)
    for a, b in zip(ours, plain(q, k, v, first, gradient), strict=True):
        assert relative(a, b) < 1e-6
    cut = ours[0].sharding.shard_shape(q.shape)
    assert cut[0] == 1 and cut[2] == (heads // 2 if kv_heads == 2 else heads)


@pytest.mark.parametrize(
    ("axes", "heads", "kv_heads"),
    [
        (dict(fsdp=2, context=4), 8, 2),
        pytest.param(dict(data=2, context=2, tensor=2), 8, 4, marks=pytest.mark.slow),
        pytest.param(dict(context=2, tensor=4), 4, 2, marks=pytest.mark.slow),
    ],
    ids=["kv heads for two devices each", "heads cut twice", "kv heads that tensor does not cut"],
)
def test_cut_rows_are_whole_ones(axes, heads, kv_heads):
    """Sequences that cross every cut or none, in float64; the output lies where the queries do."""
    mesh = sharding.make_mesh(**axes)
    first = [packed(13, 1, 26), packed(40), packed(20, padding=20), packed(1, 39)]
    with jax.enable_x64(True):
        q, k, v, gradient = draws(4, 40, heads=heads, kv_heads=kv_heads)

        def attend(q, k, v, first):
            return packed_attention(q, k, v, first, kernel="auto", mesh=mesh)

        ours = with_gradients(attend, q, k, v, first, gradient)
    for a, b in zip(ours, plain(q, k, v, first, gradient), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)
    shards = sharding.shards(mesh, "rows"), sharding.shards(mesh, "tokens")
    assert ours[0].sharding.shard_shape(q.shape)[:2] == (4 // shards[0], 40 // shards[1])


@pytest.mark.slow
def test_cut_rows_with_the_kernel_of_tpus(monkeypatch):
    """Emulated: what it is given are whole rows, of the heads of one device."""
    first = [packed(130, 1, 250, 100, padding=31), packed(512)]
    q, k, v, gradient = draws(2, 512, dtype=np.float32, heads=4, kv_heads=2, size=16)
    splash = functools.partial(splash_attention, largest_block=128, interpret=True)
    monkeypatch.setattr(module, "_computed_by", lambda kernel, device: splash)
    attend = functools.partial(packed_attention, kernel="auto", mesh=sharding.make_mesh(fsdp=2, context=4))
    ours = with_gradients(attend, q, k, v, first, gradient)
    for a, b in zip(ours, plain(q, k, v, first, gradient), strict=True):
        assert relative(a, b) < 1e-6


def test_heads_that_devices_cannot_share_are_refused():
    q, k, v, _ = draws(1, 8, dtype=np.float32, heads=6, kv_heads=2)
    first, mesh = jnp.asarray([packed(8)], jnp.int32), sharding.make_mesh(context=4)
    with pytest.raises(InputError, match="context axis of 4 devices does not divide 6 heads and 2 kv heads"):
        packed_attention(q, k, v, first, kernel="auto", mesh=mesh)
    shared = [n for n in range(1, 13) if context_divides(n, 12, 3)]
    assert shared == [1, 3, 6, 12]


def compiled(length: int) -> Any:
    """Forward and backward of one row, not run."""
    shapes = [jax.ShapeDtypeStruct((1, length, heads, 16), jnp.float32) for heads in (4, 2, 2)]

    def loss(q, k, v, first):
        return jnp.sum(packed_attention(q, k, v, first, kernel="chunked", mesh=None) ** 2)

    first = jax.ShapeDtypeStruct((1, length), jnp.int32)
    return jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*shapes, first).compile()


@pytest.mark.parametrize(("tokens", "most"), [(2048, 2**23), (16384, 2**25)], ids=["few a chunk", "many"])
def test_memory_is_linear_in_tokens(tokens, most):
    short, long = compiled(tokens), compiled(4 * tokens)
    before, after = (program.memory_analysis().temp_size_in_bytes for program in (short, long))
    assert before < most and after / before < 4.5
    text = str(long.as_text())
    assert f"{4 * tokens}" in text and f"{4 * tokens},{4 * tokens}" not in text


@pytest.mark.parametrize("sharded", [False, True])
def test_saved_outputs_spare_the_second_forward(sharded):
    """Under `save_only_these_names`, the loops of the forward pass stand in the program once."""
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2) if sharded else None
    q, k, v, _ = draws(4, 40, dtype=np.float32, heads=4)
    first = jnp.asarray([packed(40)] * 4, jnp.int32)

    def loops(policy) -> int:
        def attend(q, k, v):
            return jnp.sum(jnp.sin(packed_attention(jnp.sin(q), k, v, first, kernel="chunked", mesh=mesh)))

        return str(jax.make_jaxpr(jax.value_and_grad(jax.checkpoint(attend, policy=policy)))(q, k, v)).count("while[")

    policies = jax.checkpoint_policies
    saved = loops(policies.save_only_these_names(ATTENTION_OUTPUT))
    assert saved == loops(policies.everything_saveable) < loops(policies.nothing_saveable)


def test_splash_is_masked_softmax():
    """The TPU's kernel, emulated, on rows of four blocks of which it skips different ones."""
    first = [packed(130, 1, 250, 100, padding=19), packed(500)]
    q, k, v, gradient = draws(2, 500, dtype=np.float32, heads=2, kv_heads=1, size=16)
    attend = functools.partial(splash_attention, largest_block=128, interpret=True)
    ours = with_gradients(attend, q, k, v, first, gradient)
    for a, b in zip(ours, plain(q, k, v, first, gradient), strict=True):
        assert relative(a, b) < 1e-6


@pytest.mark.parametrize(
    "attend",
    [chunked(128), functools.partial(splash_attention, largest_block=128, interpret=True)],
    ids=["chunked", "splash"],
)
def test_blocks_of_earlier_sequences_are_not_read(attend):
    """What is read and masked is multiplied by 0, which makes a NaN of a NaN."""
    q, k, v, _ = draws(1, 384, dtype=np.float32, heads=2, kv_heads=1, size=16)
    first = jnp.asarray([packed(250, 134)], jnp.int32)
    out = attend(q, k, v.at[:, :128].set(jnp.nan), first)
    assert np.isfinite(out[:, 256:]).all() and not np.isfinite(out[:, 128:250]).any()


@dataclasses.dataclass(frozen=True)
class Device:
    platform: str
    device_kind: str
    compute_capability: str = ""


H200, A100 = Device("gpu", "NVIDIA H200", "9.0"), Device("gpu", "NVIDIA A100", "8.0")
B200, RTX = Device("gpu", "NVIDIA B200", "10.0"), Device("gpu", "NVIDIA RTX PRO 6000", "12.0")
V100, MI300 = Device("gpu", "Tesla V100", "7.0"), Device("gpu", "AMD Instinct MI300X", "gfx942")
V5P, CPU = Device("tpu", "TPU v5"), Device("cpu", "cpu")


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "expected"),
    [
        (H200, "bfloat16", 128, "mosaic"), (B200, "bfloat16", 32, "mosaic"), (H200, "float32", 128, "triton"),
        (H200, "float32", 256, "chunked"), (A100, "bfloat16", 64, "triton"), (RTX, "bfloat16", 128, "triton"),
        (V100, "float16", 64, "chunked"), (MI300, "bfloat16", 128, "chunked"), (V5P, "bfloat16", 64, "splash"),
        (V5P, "float64", 64, "chunked"), (CPU, "bfloat16", 128, "chunked"),
    ],
)  # fmt: skip
def test_auto_takes_what_the_device_has(device, dtype, head_dim, expected, monkeypatch, caplog, asked_anew):
    monkeypatch.setattr(tokamax, "why_missing", lambda *modules: None)
    with caplog.at_level(logging.WARNING):
        assert choose_kernel("auto", device, head_dim=head_dim, dtype=dtype) == expected
    # Where a device has to do without, it is said.
    assert ("no fused kernel" in caplog.text) == (expected == "chunked" and device is not CPU)


@pytest.fixture
def asked_anew():
    """What is imported, and said, once in a process is asked again by a test."""
    for cached in (imports.why_missing, imports.warn_once):
        cached.cache_clear()
    yield
    for cached in (imports.why_missing, imports.warn_once):
        cached.cache_clear()


@pytest.fixture
def without_tokamax(monkeypatch, asked_anew):
    monkeypatch.setitem(sys.modules, "tokamax", None)


@pytest.fixture
def tokamax_of(tmp_path, monkeypatch, asked_anew):
    """Makes a package of that name, with modules of attention of these sources."""

    def make(**sources):
        for name in [name for name in sys.modules if name.partition(".")[0] == "tokamax"]:
            monkeypatch.delitem(sys.modules, name)
        inside = tmp_path / "tokamax" / "_src" / "ops" / "attention"
        inside.mkdir(parents=True)
        for package in (inside, *inside.parents[:3]):
            (package / "__init__.py").touch()
        for name, source in sources.items():
            (inside / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)

    yield make
    for name in [name for name in sys.modules if name.partition(".")[0] == "tokamax"]:
        del sys.modules[name]


def chosen_twice(caplog):
    """What `auto` takes on an H200, and the warnings that it says."""
    with caplog.at_level(logging.WARNING):
        kernels = {choose_kernel("auto", H200, head_dim=128, dtype="bfloat16") for _ in range(2)}
    return kernels, [record.getMessage() for record in caplog.records]


def test_without_tokamax_a_gpu_computes_in_chunks_and_says_so_once(caplog, without_tokamax):
    kernels, [said] = chosen_twice(caplog)
    assert kernels == {"chunked"}
    assert "no fused kernel (mosaic, triton: tokamax is not installed: pip install 'isocompute-jax[tokamax]')" in said


HIGHER = "raise AttributeError('no HiPrimitive\\nmore')"
"""As flax says it that meets another JAX than its own."""


def test_a_kernel_that_does_not_import_is_not_installed(tokamax_of, caplog):
    """Of experts likewise."""
    tokamax_of(api=HIGHER)
    kernels, [said] = chosen_twice(caplog)
    assert kernels == {"chunked"}
    assert said.count("tokamax is installed and does not import (AttributeError: no HiPrimitive): its versions") == 1
    caplog.clear()
    assert {grouped_kernel(H200, "bfloat16", (256, 128)) for _ in range(2)} == {"blocks"}
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith("products of experts: computed in blocks, for want of mosaic: tokamax is installed and does")
    with pytest.raises(InputError, match=r"attention = mosaic: tokamax is installed and does not import \(Attr"):
        choose_kernel("mosaic", H200, head_dim=128, dtype="bfloat16")


def test_the_next_kernel_is_taken_where_one_does_not_import(tokamax_of, caplog):
    tokamax_of(api="", base="", pallas_triton="", pallas_mosaic_gpu=HIGHER)
    kernels, [said] = chosen_twice(caplog)
    assert kernels == {"triton"}
    assert said.startswith("attention = auto: computed by triton, for want of mosaic: tokamax is installed and does")


@pytest.mark.parametrize(
    ("kernel", "device", "dtype", "head_dim", "message"),
    [
        ("mosaic", H200, "bfloat16", 128, r"attention = mosaic: tokamax is not installed: pip install"),
        ("mosaic", A100, "bfloat16", 128, r"needs Hopper or Blackwell .*, and NVIDIA A100 has 8.0"),
        ("mosaic", H200, "float32", 128, r"computes in bfloat16 or float16, not float32"),
        ("triton", H200, "bfloat16", 512, r"head_dim = 512 is above 256"),
        ("triton", MI300, "bfloat16", 128, r"made for NVIDIA GPUs"),
        ("triton", CPU, "bfloat16", 128, r"attention = triton: made for GPUs, and this is a CPU"),
        ("splash", CPU, "float32", 128, r"attention = splash: made for TPUs, and this is a CPU"),
    ],
)
def test_a_kernel_that_cannot_be_used_is_refused(kernel, device, dtype, head_dim, message, without_tokamax):
    with pytest.raises(InputError, match=message):
        choose_kernel(kernel, device, head_dim=head_dim, dtype=dtype)


def test_chunks_are_alike_and_leave_little_to_fill():
    assert [chunk_size(length, 128) for length in (1, 128, 129, 256, 1000, 32768)] == [1, 128, 72, 128, 128, 128]
    q, k, v, _ = draws(0, 5, dtype=np.float32)
    assert chunked_attention(q, k, v, jnp.zeros((0, 5), jnp.int32), chunk=16).shape == (0, 5, HEADS, SIZE)
