"""The mesh and its rules: which dimension lies where, and what is replicated because it does not divide."""

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import PartitionSpec

from isocompute_jax import sharding


@pytest.fixture(scope="module")
def mesh():
    return sharding.make_mesh(data=2, fsdp=2, tensor=2)


def test_meshes_always_have_five_axes(mesh):
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "expert": 1, "context": 1, "tensor": 2}
    assert set(sharding.make_mesh().shape.values()) == {1}
    last = sharding.make_mesh(fsdp=2, devices=jax.devices()[-2:])
    assert last.devices.ravel().tolist() == jax.devices()[-2:]
    assert sharding.shards(mesh, "batch") == 4
    assert sharding.shards(sharding.make_mesh(tensor=8), "batch") == 1
    assert sharding.shards(sharding.make_mesh(fsdp=2, expert=4), "batch") == 8
    assert sharding.shards(None, "batch") == 1


def test_a_mesh_larger_than_the_machine_says_so():
    with pytest.raises(ValueError, match="a 4 x 2 x 1 x 1 x 3 mesh needs 24 devices, 8 are present"):
        sharding.make_mesh(data=4, fsdp=2, tensor=3)


@pytest.mark.parametrize(
    ("shape", "axes", "spec"),
    [
        ((12, 16), ("vocab", "embed"), PartitionSpec(("tensor",), ("fsdp",))),
        ((2, 16, 2, 8), (None, "embed", "heads", None), PartitionSpec(None, ("fsdp",), ("tensor",), None)),
        ((16, 1, 8), ("embed", "kv_heads", None), PartitionSpec(("fsdp",), None, None)),  # one head on two devices
        ((13, 16), ("vocab", "embed"), PartitionSpec(None, ("fsdp",))),  # an odd vocabulary
        ((8, 5), ("batch", None), PartitionSpec(("data", "fsdp"), None)),
        ((6, 5), ("batch", None), PartitionSpec(None, None)),  # 6 rows on 4 parts
        ((4,), ("no such axis",), PartitionSpec(None)),
        ((), (), PartitionSpec()),
    ],
)
def test_rules(mesh, shape, axes, spec):
    assert sharding.partition_spec(mesh, shape, axes) == spec
    assert sharding.named_sharding(mesh, shape, axes).spec == spec


def test_experts_lie_over_their_axis():
    mesh = sharding.make_mesh(fsdp=2, expert=2, tensor=2)
    shape, axes = (2, 4, 16, 24), (None, "experts", "embed", "mlp")
    assert sharding.partition_spec(mesh, shape, axes) == PartitionSpec(None, ("expert",), ("fsdp",), ("tensor",))
    assert sharding.partition_spec(mesh, (4, 5), ("batch", None)) == PartitionSpec(("fsdp", "expert"), None)


def test_packed_rows_are_cut_where_weights_and_batches_are():
    """No device holds what another of the same context has: neither tokens nor weights."""
    mesh = sharding.make_mesh(fsdp=2, context=4)
    assert sharding.partition_spec(mesh, (2, 8), ("rows", "tokens")) == PartitionSpec(("fsdp",), ("context",))
    assert sharding.partition_spec(mesh, (16, 3), ("embed", None)) == PartitionSpec(("fsdp", "context"), None)
    assert sharding.partition_spec(mesh, (8, 3), ("batch", None)) == PartitionSpec(("fsdp", "context"), None)
    assert [sharding.shards(mesh, axis) for axis in ("batch", "rows", "tokens")] == [8, 2, 4]


def test_one_device_replicates_everything():
    mesh = sharding.make_mesh()
    assert sharding.partition_spec(mesh, (12, 16), ("vocab", "embed")) == PartitionSpec(None, None)


def test_a_rank_without_axes_is_an_error(mesh):
    with pytest.raises(ValueError, match=r"shape \(2, 3\) has another rank than axes \('embed',\)"):
        sharding.partition_spec(mesh, (2, 3), ("embed",))


def test_optimizer_states_follow_their_parameters(mesh):
    """Moments lie where their parameters lie; counters and scalars are on every device. Nothing is allocated."""
    params = {"w": jax.ShapeDtypeStruct((8, 4), jnp.float32), "b": jax.ShapeDtypeStruct((4,), jnp.float32)}
    shardings = {
        "w": sharding.named_sharding(mesh, (8, 4), ("embed", "mlp")),
        "b": sharding.named_sharding(mesh, (4,), ("mlp",)),
    }
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam())
    state = jax.eval_shape(tx.init, params)
    got = sharding.like_params(mesh, state, params, shardings)
    assert jax.tree.structure(got) == jax.tree.structure(state)
    adam = got[1]
    assert adam.mu == shardings and adam.nu == shardings
    assert adam.count == sharding.replicated(mesh)


def test_without_shardings_moments_would_stay_on_one_device(mesh):
    """Why `like_params` exists: on this mesh a jitted init leaves new arrays off the parameters' devices."""
    wanted = sharding.named_sharding(mesh, (8, 4), ("embed", "mlp"))
    params = {"w": jax.device_put(jnp.ones((8, 4)), wanted)}
    tx = optax.scale_by_adam()
    naive = jax.jit(tx.init)(params)
    assert not naive.mu["w"].sharding.is_equivalent_to(wanted, 2)
    shardings = sharding.like_params(mesh, jax.eval_shape(tx.init, params), params, {"w": wanted})
    placed = jax.jit(tx.init, out_shardings=shardings)(params)
    assert placed.mu["w"].sharding.is_equivalent_to(wanted, 2)
