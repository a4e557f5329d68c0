"""Parameters out of the devices: against the one-host export, over meshes of eight fake devices."""

import collections
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from isocompute_jax import model, sharding
from isocompute_jax.model.export import hf_boxes, to_hf_layout
from isocompute_jax.model.huggingface import hf_tensors
from tests.model.tiny import random_params, tiny_config

MESHES = [(2, 2, 2), (1, 2, 4), (8, 1, 1)]


def assembled(boxes) -> dict[str, np.ndarray]:
    """Tensors put together from boxes; fails where a number comes twice or never."""
    parts = collections.defaultdict(list)
    for name, offset, numbers in boxes:
        assert numbers.flags.c_contiguous
        parts[name].append((offset, numbers))
    whole = {}
    for name, found in parts.items():
        shape = np.max([np.add(offset, numbers.shape) for offset, numbers in found], axis=0)
        counts = np.zeros(shape, int)
        whole[name] = np.zeros(shape, found[0][1].dtype)
        for offset, numbers in found:
            here = tuple(slice(start, start + size) for start, size in zip(offset, numbers.shape, strict=True))
            counts[here] += 1
            whole[name][here] = numbers
        np.testing.assert_array_equal(counts, 1, err_msg=name)
    return whole


def on_mesh(config, params, mesh):
    return params if mesh is None else jax.device_put(params, model.param_shardings(config, mesh))


@pytest.mark.parametrize("axes", [None, *MESHES])
@pytest.mark.parametrize("changes", [{}, dict(tied_embeddings=False, num_heads=8, num_kv_heads=4, dtype="bfloat16")])
def test_boxes_hold_every_number_once(axes, changes):
    config = tiny_config(**changes)
    params = random_params(config)
    mesh = None if axes is None else sharding.make_mesh(**dict(zip(("data", "fsdp", "tensor"), axes, strict=True)))
    found = assembled(hf_boxes(config, on_mesh(config, params, mesh)))
    wanted = dict(hf_tensors(config, params))
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        np.testing.assert_array_equal(found[name], tensor, err_msg=name)


def test_shares_are_small_and_disjoint():
    config = tiny_config(num_heads=8, num_kv_heads=4)
    mesh = sharding.make_mesh(fsdp=2, tensor=4)
    boxes = [(n, o, x.shape) for n, o, x in hf_boxes(config, on_mesh(config, random_params(config), mesh))]
    assert len({(name, offset) for name, offset, _ in boxes}) == len(boxes)
    # Each device sends an eighth of every matrix; nobody gathers one.
    assert {shape for name, _, shape in boxes if name.endswith("q_proj.weight")} == {(64 // 4, 16 // 2)}
    assert {shape for name, _, shape in boxes if name.endswith("o_proj.weight")} == {(16 // 2, 64 // 4)}


def test_layout_stays_sharded():
    config = tiny_config(num_heads=8, num_kv_heads=4)
    mesh = sharding.make_mesh(fsdp=2, tensor=4)
    laid_out = to_hf_layout(config, on_mesh(config, random_params(config), mesh))
    for name, spec in (("wq", (None, ("tensor",), ("fsdp",))), ("w_down", (None, ("fsdp",), ("tensor",)))):
        leaf = laid_out["layers"][name]
        assert leaf.sharding.is_equivalent_to(NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)), leaf.ndim)
    assert laid_out["layers"]["wo"].shape == (2, 16, 64)


def test_one_kv_head_over_four_devices():
    """It does not divide; its joined width does, and is cut all the same."""
    config = tiny_config()
    mesh = sharding.make_mesh(tensor=4, fsdp=2)
    shapes = {x.shape for n, _, x in hf_boxes(config, on_mesh(config, random_params(config), mesh)) if "k_proj.w" in n}
    assert shapes == {(8 // 4, 16 // 2)}


def test_master_weights_leave_in_the_models_dtype():
    config = tiny_config(dtype="bfloat16")
    master = model.cast_params(random_params(config), jnp.float32)
    master["final_norm"] = master["final_norm"] + 2.0**-12  # lost in bfloat16
    [found] = [x for name, _, x in hf_boxes(config, master) if name == "model.norm.weight"]
    np.testing.assert_array_equal(found, np.asarray(master["final_norm"].astype(jnp.bfloat16)))


PROGRAM = """
import sys
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
import numpy as np
from isocompute_jax import model, sharding
from isocompute_jax.model.export import hf_boxes
from tests.model.tiny import tiny_config

config = tiny_config(num_heads=8, num_kv_heads=4)
mesh = sharding.make_mesh(fsdp=2, tensor=4)
shapes = model.abstract_params(config)
fill = lambda leaf, where: jax.make_array_from_callback(
    leaf.shape, where, lambda index: np.arange(leaf.size, dtype=leaf.dtype).reshape(leaf.shape)[index]
)
params = jax.tree.map(fill, shapes, model.param_shardings(config, mesh))
boxes = {f"{name} {' '.join(map(str, offset))}": numbers for name, offset, numbers in hf_boxes(config, params)}
np.savez(sys.argv[3], **boxes)
"""


@pytest.mark.slow
def test_two_processes_hold_every_number_once(tmp_path):
    """Real processes of one JAX program; each writes its own share."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    files = [tmp_path / f"{i}.npz" for i in range(2)]
    commands = [[sys.executable, "-c", PROGRAM, address, str(i), str(file)] for i, file in enumerate(files)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    config = tiny_config(num_heads=8, num_kv_heads=4)
    params = jax.tree.map(
        lambda leaf: np.arange(leaf.size, dtype=leaf.dtype).reshape(leaf.shape), model.abstract_params(config)
    )
    boxes, sizes = [], []
    for file in files:
        content = np.load(file)
        sizes.append(sum(content[key].nbytes for key in content))
        for key in content:
            name, *offset = key.split(" ")
            boxes.append((name, tuple(map(int, offset)), content[key]))
    found = assembled(boxes)
    for name, tensor in hf_tensors(config, params):
        np.testing.assert_array_equal(found[name], tensor, err_msg=name)
    assert max(sizes) < 0.7 * sum(sizes)
