"""Collectives read from a program's text: those of known products, and lines of the accelerators' compilers."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from isocompute_jax import sharding
from isocompute_jax.plan.hlo import collectives, parse, replica_groups, trip_count


def compiled_text(function, *shapes_and_specs):
    mesh = sharding.make_mesh(fsdp=8)
    arrays = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec)) for shape, spec in shapes_and_specs
    ]
    out = NamedSharding(mesh, PartitionSpec())
    text = jax.jit(function, out_shardings=out).lower(*arrays).compile().as_text()
    assert text is not None
    return text


ROWS, COLUMNS = PartitionSpec("fsdp"), PartitionSpec(None, "fsdp")


def test_a_product_over_a_sharded_dimension_is_one_all_reduce():
    text = compiled_text(lambda x, y: x @ y, ((64, 256), COLUMNS), ((256, 32), ROWS))
    [found] = collectives(text, num_devices=8, microbatches=1)
    assert (found.kind, found.count, found.groups) == ("all-reduce", 1, (tuple(range(8)),))
    assert found.wire_bytes == 2 * 64 * 32 * 4 * 7 / 8


def test_gathering_rows_is_one_all_gather():
    text = compiled_text(lambda x: x, ((64, 256), ROWS))
    [found] = collectives(text, num_devices=8, microbatches=1)
    assert (found.kind, found.wire_bytes) == ("all-gather", 64 * 256 * 4 * 7 / 8)


def test_a_loops_body_counts_as_often_as_it_runs():
    def known(x, w):
        return jax.lax.fori_loop(0, 5, lambda i, x: jnp.tanh(x @ w) @ w.T, x)

    def unknown(x, w, n):
        return jax.lax.fori_loop(0, n.astype(int), lambda i, x: jnp.tanh(x @ w) @ w.T, x)

    arrays = ((64, 256), PartitionSpec()), ((256, 64), ROWS)
    found = collectives(compiled_text(known, *arrays), num_devices=8, microbatches=3)
    assert [one.count for one in found if one.kind == "all-reduce"] == [5]
    text = compiled_text(unknown, *arrays, ((), PartitionSpec()))
    found = collectives(text, num_devices=8, microbatches=3)
    assert [one.count for one in found if one.kind == "all-reduce"] == [3]


GROUPS = {
    "replica_groups={{0,1},{2,3}}, dimensions={0}": ((0, 1), (2, 3)),
    "replica_groups=[2,4]<=[8], dimensions={0}": ((0, 1, 2, 3), (4, 5, 6, 7)),
    "replica_groups=[4,2]<=[2,4]T(1,0), channel_id=1": ((0, 4), (1, 5), (2, 6), (3, 7)),
    "replica_groups=mesh['axis_0'=2,'axis_1'=2] {'axis_0'}, use": ((0, 2), (1, 3)),
    "replica_groups=mesh['axis_0'=2,'axis_1'=2] {'axis_0','axis_1'}, use": ((0, 1, 2, 3),),
    "replica_groups=mesh['a'=2,'b'=1,'c'=4], device_ids=([4,2]T(1,0)) {'a'}, d": ((0, 1), (2, 3), (4, 5), (6, 7)),
    "source_target_pairs={{0,1},{1,0}}": ((0, 1), (1, 0)),
    "replica_groups={}, to_apply=%add": (tuple(range(8)),),
}


@pytest.mark.parametrize("rest", GROUPS)
def test_groups_in_every_spelling(rest):
    assert replica_groups(rest, 8) == GROUPS[rest]


def test_an_unknown_spelling_is_not_guessed():
    with pytest.raises(ValueError, match="spelled in an unknown way"):
        replica_groups("replica_groups=<something new>, dimensions={0}", 8)


# As the GPU's and the TPU's compilers print them, shortened.
STARTED = """
HloModule jit_step, num_partitions=8

%body (p: (s32[], bf16[8])) -> (s32[], bf16[8]) {
  %p = (s32[], bf16[8]) parameter(0)
  %all-gather-start.1 = (bf16[1,512]{1,0}, bf16[8,512]{1,0}) all-gather-start(%x), replica_groups=[1,8]<=[8]
  %all-gather-done.1 = bf16[8,512]{1,0} all-gather-done(%all-gather-start.1)
  %rs = ((f32[8,4], f32[8,2]), (f32[1,4], f32[1,2])) reduce-scatter-start(%y, %z), replica_groups=[1,8]<=[8]
  %a2a = ((bf16[1,64,4]{2,1,0}), bf16[1,64,4]{2,1,0}) all-to-all-start(%w), replica_groups={{0,1,2,3,4,5,6,7}}
  ROOT %t = (s32[], bf16[8]) tuple(%i, %v)
}

%condition (p: (s32[], bf16[8])) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(32)
  %p = (s32[], bf16[8]) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %constant.1), direction=LT
}

ENTRY %main (a: bf16[8]) -> bf16[8] {
  %a = bf16[8]{0:T(1024)} parameter(0)
  %while.1 = (s32[], bf16[8]) while(%a), condition=%condition, body=%body
  %pass = bf16[8]{0} collective-permute(%a), source_target_pairs={{0,1},{1,0}}
  ROOT %r = bf16[8]{0} get-tuple-element(%while.1), index=1
}
"""


def test_started_collectives_count_once():
    entry, computations = parse(STARTED)
    assert entry == "main"
    [loop] = [one for one in computations["main"] if one.operation == "while"]
    assert trip_count(loop, computations) == 32
    found = {one.kind: one for one in collectives(STARTED, num_devices=8, microbatches=1)}
    assert found["all-gather"].wire_bytes == 8 * 512 * 2 * 7 / 8
    assert found["reduce-scatter"].wire_bytes == (4 + 2) * 4 * 7
    assert found["all-to-all"].wire_bytes == 64 * 4 * 2 * 7 / 8
    assert found["collective-permute"].wire_bytes == 16
    kinds = ("all-gather", "reduce-scatter", "all-to-all", "collective-permute")
    assert [found[kind].count for kind in kinds] == [32, 32, 32, 1]
