"""Hugging Face layout: hand-worked, there and back, and off the devices over meshes of eight fake devices."""

import collections
import dataclasses
import socket
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from isocompute_jax import model, sharding
from isocompute_jax.model import hf_boxes, hf_tensors, to_hf_layout
from isocompute_jax.model.hf_layout import decode, encode, layer_size
from isocompute_jax.model.params import param_specs, spec_leaves
from isocompute_jax.records.tensors import Box
from tests.model.tiny import LLAMA4, random_params, tiny_config

MESHES = [(2, 2, 2), (1, 2, 4), (8, 1, 1)]


def assembled(boxes) -> dict[str, np.ndarray]:
    """Tensors put together from boxes; fails where a number comes twice or never."""
    parts = collections.defaultdict(list)
    for box, numbers in boxes:
        assert numbers.flags.c_contiguous and (box.dtype, box.shape) == (numbers.dtype.name, numbers.shape)
        parts[box.name].append((box.offset, numbers))
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


def test_attention_and_linear_layouts_by_hand():
    """torch.nn.Linear stores [out, in]; heads are joined with their size, on the side of them that is theirs."""
    config = tiny_config(embed_dim=3, num_heads=2, num_kv_heads=1, head_dim=2, mlp_dim=4)
    table = param_specs(config)["layers"]
    wq = np.arange(12).reshape(3, 2, 2)  # [D, N, H]
    np.testing.assert_array_equal(encode(table["wq"], wq), [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]])
    wo = np.arange(12).reshape(2, 2, 3)  # [N, H, D]
    np.testing.assert_array_equal(encode(table["wo"], wo), [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]])
    np.testing.assert_array_equal(encode(table["bq"], np.arange(4).reshape(2, 2)), [0, 1, 2, 3])
    np.testing.assert_array_equal(encode(table["w_down"], np.arange(12).reshape(4, 3)), np.arange(12).reshape(4, 3).T)


@pytest.mark.parametrize("family", [dict(tied_embeddings=True), dict(tied_embeddings=False), LLAMA4])
def test_decoding_undoes_encoding(family):
    """Of one layer and of all of them at once."""
    for spec in spec_leaves(tiny_config(num_heads=6, num_kv_heads=3, **family)):
        for shape in {spec.shape, spec.tensor_shape}:
            value = np.arange(np.prod(shape)).reshape(shape)
            tensor = encode(spec, value)
            assert tensor.shape == (*shape[: len(shape) - len(spec.tensor_shape)], *spec.hf_shape)
            np.testing.assert_array_equal(decode(spec, tensor), value)


@pytest.mark.parametrize("axes", [None, *MESHES])
@pytest.mark.parametrize(
    "changes", [{}, dict(tied_embeddings=False, num_heads=8, num_kv_heads=4, dtype="bfloat16"), LLAMA4]
)
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
    boxes = [box for box, _ in hf_boxes(config, on_mesh(config, random_params(config), mesh))]
    assert len({(box.name, box.offset) for box in boxes}) == len(boxes)
    # Each device sends an eighth of every matrix; nobody gathers one.
    assert {box.shape for box in boxes if box.name.endswith("q_proj.weight")} == {(64 // 4, 16 // 2)}
    assert {box.shape for box in boxes if box.name.endswith("o_proj.weight")} == {(16 // 2, 64 // 4)}


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
    boxes = [box for box, _ in hf_boxes(config, on_mesh(config, random_params(config), mesh))]
    assert {box.shape for box in boxes if box.name.endswith("k_proj.weight")} == {(8 // 4, 16 // 2)}


def test_master_weights_leave_in_the_models_dtype():
    config = tiny_config(dtype="bfloat16")
    master = model.cast_params(random_params(config), jnp.float32)
    master["final_norm"] = master["final_norm"] + 2.0**-12  # lost in bfloat16
    [found] = [x for box, x in hf_boxes(config, master) if box.name == "model.norm.weight"]
    np.testing.assert_array_equal(found, np.asarray(master["final_norm"].astype(jnp.bfloat16)))


BIG: dict[str, Any] = dict(vocab_size=1024, embed_dim=32, mlp_dim=64, num_heads=8, num_kv_heads=4, dtype="bfloat16")
"""The table is larger than a layer."""


@pytest.mark.parametrize("axes", [None, *MESHES])
@pytest.mark.parametrize("changes", [BIG, BIG | LLAMA4], ids=["dense", "llama4"])
def test_tensors_are_cast_a_layer_at_a_time(monkeypatch, axes, changes):
    config = tiny_config(**changes, tied_embeddings=False)
    mesh = None if axes is None else sharding.make_mesh(**dict(zip(("data", "fsdp", "tensor"), axes, strict=True)))
    params = random_params(dataclasses.replace(config, dtype="float32"))
    wanted = dict(hf_tensors(config, jax.tree.map(lambda x: np.asarray(x).astype(jnp.bfloat16), params)))
    masters, beyond, read = on_mesh(config, params, mesh), [], jax.device_get
    held = sum(x.nbytes for x in jax.live_arrays())

    def watched(x):
        beyond.append(sum(x.nbytes for x in jax.live_arrays()) - held)
        return read(x)

    monkeypatch.setattr(jax, "device_get", watched)
    found = {name: (x.dtype, x.shape, x.tobytes()) for name, x in hf_tensors(config, masters, dtype="bfloat16")}
    assert found == {name: (x.dtype, x.shape, x.tobytes()) for name, x in wanted.items()}
    assert list(found) == list(wanted)
    assert 0 < max(beyond) < 2 * layer_size(config)


@pytest.mark.parametrize(
    ("changes", "axes"),
    [({}, dict(fsdp=8)), ({}, dict(fsdp=2, tensor=4)), (LLAMA4, dict(fsdp=2, expert=2, tensor=2))],
    ids=str,
)
def test_what_processes_gather_takes_less_than_a_layer(changes, axes):
    """By the compiler's account of their programs; XLA:CPU gathers bfloat16 as float32, and float16 as it is."""
    config = tiny_config(**(BIG | changes), tied_embeddings=False)
    mesh, layer = sharding.make_mesh(**axes), 2 * layer_size(config)
    shapes, where = model.abstract_params(config, jnp.float32), model.param_shardings(config, mesh)
    leaves = jax.tree.map(lambda x, on: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=on), shapes, where)
    tables = [(leaves[name], *sharding.slices_of(leaves[name], layer // 8)) for name in ("embed", "head")]
    for x, length, size in [
        *tables,
        *((leaves["layers"][name], config.num_layers, 1) for name in ("w_gate", "w_down")),
    ]:
        memory = sharding.slicer(x, size, jnp.float16, gathered=True).lower(x, 0).compile().memory_analysis()
        assert memory.output_size_in_bytes == 2 * x.size * size // length
        assert memory.output_size_in_bytes + memory.temp_size_in_bytes < layer


PROGRAM = """
import sys
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
import numpy as np
from isocompute_jax import model, sharding
from tests.model.tiny import tiny_config

config = tiny_config(num_heads=8, num_kv_heads=4)
mesh = sharding.make_mesh(fsdp=2, tensor=4)
shapes = model.abstract_params(config)
fill = lambda leaf, where: jax.make_array_from_callback(
    leaf.shape, where, lambda index: np.arange(leaf.size, dtype=leaf.dtype).reshape(leaf.shape)[index]
)
params = jax.tree.map(fill, shapes, model.param_shardings(config, mesh))
boxes = {f"{box.name} {' '.join(map(str, box.offset))}": x for box, x in model.hf_boxes(config, params)}
np.savez(sys.argv[3], **boxes)
tensors = {name: x.astype(np.float32) for name, x in model.hf_tensors(config, params, dtype="bfloat16")}
np.savez(sys.argv[4], **tensors)
"""


@pytest.mark.slow
def test_two_processes_hold_every_number_once(tmp_path):
    """Real processes of one JAX program; each writes its own share, and what both have gathered."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    files = [tmp_path / f"{i}.npz" for i in range(2)]
    gathered = [tmp_path / f"{i}-gathered.npz" for i in range(2)]
    commands = [
        [sys.executable, "-c", PROGRAM, address, str(i), str(files[i]), str(gathered[i])] for i in range(len(files))
    ]
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
            numbers = content[key]
            boxes.append((Box(name, numbers.dtype.name, numbers.shape, tuple(map(int, offset))), numbers))
    found = assembled(boxes)
    for name, tensor in hf_tensors(config, params):
        np.testing.assert_array_equal(found[name], tensor, err_msg=name)
    assert max(sizes) < 0.7 * sum(sizes)
    for content in map(np.load, gathered):
        for name, tensor in hf_tensors(config, params, dtype="bfloat16"):
            np.testing.assert_array_equal(content[name], tensor.astype(np.float32), err_msg=name)
