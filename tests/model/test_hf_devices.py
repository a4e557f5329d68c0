"""What each device holds in Hugging Face layout, against what it really holds."""

import jax
import numpy as np
import pytest

from isocompute_jax import model, sharding
from isocompute_jax.model.hf_devices import device_boxes
from tests.model.tiny import LLAMA4, random_params, tiny_config


@pytest.mark.parametrize(
    ("axes", "family"),
    [
        (None, {}),
        (dict(data=2, fsdp=2, tensor=2), {}),
        pytest.param(dict(expert=2, fsdp=2, context=2), LLAMA4, marks=pytest.mark.slow),
    ],
)
def test_every_device_holds_what_is_said(axes, family):
    config = tiny_config(**family)
    params = random_params(config)
    mesh = None if axes is None else sharding.make_mesh(**axes)
    wanted = dict(model.hf_tensors(config, params))
    if mesh is not None:
        params = jax.device_put(params, model.param_shardings(config, mesh))
    leaves = jax.tree.leaves(model.to_hf_layout(config, params))
    held = device_boxes(config, mesh)
    devices = [jax.devices()[0]] if mesh is None else list(mesh.devices.flat)
    counts = {name: np.zeros(tensor.shape, int) for name, tensor in wanted.items()}
    for device, boxes in zip(devices, held, strict=True):
        shards = [{s.device: s.data for s in leaf.addressable_shards}[device] for leaf in leaves]
        for each in boxes:
            numbers = np.asarray(shards[each.leaf][each.index])
            np.testing.assert_array_equal(numbers, wanted[each.box.name][each.box.slices])
            assert (numbers.shape, numbers.dtype.name) == (each.box.shape, each.box.dtype)
            counts[each.box.name][each.box.slices] += 1
    assert all(count.min() >= 1 for count in counts.values())
