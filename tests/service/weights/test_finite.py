"""NaN and infinite weights: found whatever the dtype, the way they come and the place they stand in."""

import grpc
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  (numpy learns bfloat16)
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute_jax.records.errors import RunError
from isocompute_jax.records.tensors import DTYPE_BYTES, Box
from isocompute_jax.service.proto.refusal import Refusal
from isocompute_jax.service.weights.check import FiniteSpans, is_finite
from tests.service.builders import (
    TENSORS,
    Probe,
    arrays,
    end,
    header,
    manifest,
    manifest_bytes,
    refused,
    run,
    serves,
    serving,
    update,
)
from tests.service.fleet_builders import fleet, live, params

Code = grpc.StatusCode
BITS = {"float32": np.uint32, "bfloat16": np.uint16, "float16": np.uint16}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_pattern_of_16_bits_is_judged_as_numpy_does(dtype):
    bits = np.arange(1 << 16, dtype=np.uint16)
    expected = np.isfinite(bits.view(dtype).astype(np.float32))
    data = bits.tobytes()
    assert [is_finite(data[2 * i : 2 * i + 2], dtype) for i in range(1 << 16)] == expected.tolist()


@given(st.lists(st.integers(0, 2**32 - 1), max_size=9))
def test_patterns_of_32_bits(patterns):
    bits = np.array(patterns, np.uint32)
    assert is_finite(bits.tobytes(), "float32") == np.isfinite(bits.view(np.float32)).all()


@settings(deadline=None)
@given(st.data())
def test_a_bad_number_is_found_in_whatever_box_and_block_it_lies(data):
    """Boxes one behind the other, with gaps, and blocks as `ManifestFile` reads them."""
    boxes, starts, at = [], [], 0
    for i in range(data.draw(st.integers(1, 5))):
        dtype = data.draw(st.sampled_from(sorted(DTYPE_BYTES)))
        at = -(-(at + data.draw(st.integers(0, 9))) // 4) * 4
        boxes.append(Box(str(i), dtype, (data.draw(st.integers(1, 9)),), (0,)))
        starts.append(at)
        at += boxes[-1].nbytes
    file = bytearray(b"\xff") * at  # what is in no box is not looked at
    for box, start in zip(boxes, starts, strict=True):
        file[start : start + box.nbytes] = bytes(box.nbytes)
    bad = data.draw(st.none() | st.integers(0, len(boxes) - 1))
    if bad is not None:
        size = DTYPE_BYTES[boxes[bad].dtype]
        place = starts[bad] + size * data.draw(st.integers(0, boxes[bad].shape[0] - 1))
        number = np.array([data.draw(st.sampled_from([np.nan, -np.nan, np.inf, -np.inf]))], boxes[bad].dtype)
        file[place : place + size] = number.tobytes()
    spans, width = FiniteSpans(boxes, starts), data.draw(st.sampled_from([4, 8, 16, 1024]))
    found = None
    for start in range(0, at, width):
        try:
            spans.check(start, memoryview(file)[start : start + width])
        except Refusal as refusal:
            found = refusal.message
            break
    assert found is None if bad is None else f"tensor '{bad}' holds numbers that are NaN" in str(found)


@pytest.mark.parametrize("way", ["chunks", "manifest"])
@pytest.mark.parametrize("which", range(len(TENSORS)))
@pytest.mark.parametrize("number", [np.nan, -np.inf])
def test_such_weights_are_refused_by_the_tensors_name_and_the_old_ones_serve_on(tmp_path, way, which, number):
    async def test():
        engine, values, tensor = Probe(), arrays(2), TENSORS[which]
        bits = np.array([number], tensor.dtype).view(BITS[tensor.dtype])
        values[which] = np.array(values[which])
        values[which].reshape(-1)[-1] = bits[0]
        async with serving(engine, tmp_path) as (_, client):
            await client.update(update(arrays(1), version=1))
            messages = update(values, version=2)
            if way == "manifest":
                messages = [header(version=2), manifest(tmp_path / "pushed", values), end(manifest_bytes())]
            await refused(client.update(messages), Code.INVALID_ARGUMENT, f"tensor {tensor.name!r} holds numbers that")
            await serves(engine, client, arrays(1), 1)

    run(test())


@pytest.mark.parametrize("push", ["auto", "stream"])
def test_a_learner_whose_weights_are_refused_for_it_ends_and_says_why(tmp_path, push):
    broken = {**params(2), "embed": jnp.full_like(params(2)["embed"], jnp.nan)}
    with live(weights_dir=str(tmp_path)) as [server], fleet(server, directory=tmp_path, push=push) as sampler:
        sampler.update_weights(params(), version=1)
        with pytest.raises(RunError, match=r"refuses the weights of version 2: tensor .* NaN .*Training has diverged"):
            sampler.update_weights(broken, version=2)
        assert server.engine.version == 1
