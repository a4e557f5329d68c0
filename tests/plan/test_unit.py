"""The sampler's unit in a plan: what a token costs, by hand; and how many rollouts have room."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute_jax import model, sharding
from isocompute_jax.accelerators import DEVICES, GIB
from isocompute_jax.experiment.config import EvaluationConfig, SamplingConfig
from isocompute_jax.experiment.samplers import ELSEWHERE, device_of, rollouts_per_dispatch
from isocompute_jax.plan.compile import Memory
from isocompute_jax.plan.cost import price
from isocompute_jax.plan.dry_run import together
from isocompute_jax.plan.hlo import token_loop
from isocompute_jax.plan.roofline import Range
from isocompute_jax.plan.topology import parse_topology
from isocompute_jax.plan.unit import LAUNCH, UnitFacts, keys_bytes, unit_time
from isocompute_jax.plan.work import Lengths
from isocompute_jax.records.errors import InputError
from isocompute_jax.sampling.in_process import MARGIN, UnitShape, largest_unit, unit_bytes, unit_shape
from tests.model.tiny import tiny_config
from tests.plan.builders import run_config

H200 = DEVICES["h200"]
SHAPE = dataclasses.replace(tiny_config(), num_layers=32, num_kv_heads=8, head_dim=128, num_heads=32, dtype="bfloat16")
CONFIG = dataclasses.replace(run_config("unread"), sampling=SamplingConfig(max_prompt_tokens=1000, max_tokens=8001))
FACTS = UnitFacts(
    problems=8, rollouts=4, shards=8, weights=1e9, temporaries=50e9, moved=1e6, wire_bytes=9e9, wire_s=0.02,
    launches=1000, compile_s=1.0,
)  # fmt: skip


def test_a_token_reads_all_positions():
    keys = 2 * 2 * 32 * 8 * 128 * (4 * 8000 + 1000)  # of the one problem that a device has
    assert keys_bytes(CONFIG, SHAPE, FACTS) == keys
    lengths = Lengths(median=501, sigma=0.0, limit=8001, prompt=100)
    found = unit_time(CONFIG, SHAPE, H200, lengths, FACTS)
    read = found.low - 500 * (0.02 / 0.9 + 1000 * LAUNCH[0])  # links are the slowest; the prompts are read once
    assert 0 <= read < 1e-3
    scores = 16 * 4 * 32 * 32 * 9001  # of four rollouts, layers, heads and positions
    moved = (keys + scores + 2 * model.count_params(SHAPE)) / (4.8e12 * 0.6)
    assert found.high == pytest.approx(500 * (moved + 0.02 / 0.6 + 1000 * LAUNCH[1]), rel=0.01)


def test_a_unit_waits_for_its_longest_and_a_step_for_its_units():
    config = dataclasses.replace(CONFIG, problems_per_batch=20, max_compute=800)
    sampling, cost = price(config, parse_topology("h200:1x8"), SHAPE, update=Range(1.0, 1.0), unit=FACTS)
    lengths = Lengths(median=2000, sigma=1.0, limit=8001, prompt=500)
    once = unit_time(config, SHAPE, H200, lengths, FACTS)
    assert sampling.seconds == once.times(3)  # 20 problems x 4, 32 rollouts at once
    assert cost.step.low == pytest.approx(1 + 3 * once.low)
    assert lengths.sample(32).max() > 2.5 * lengths.mean


def test_what_lives_together():
    memory = Memory(4 * GIB, 4 * GIB, 8 * GIB, 0, 40 * GIB, 0, 60 * GIB, 0)
    both = together(CONFIG, memory, FACTS)
    assert (both.updating, both.sampling) == (60 * GIB + 1e9, 12 * GIB + 1e9 + 50e9 + 1e6)
    kept = dataclasses.replace(CONFIG, loss=dataclasses.replace(CONFIG.loss, kl_coef=0.1, kl_in="reward"))
    assert together(kept, memory, FACTS).updating == both.updating + 4 * GIB  # the step does not read the reference
    assert together(kept, memory, FACTS).peak == both.updating + 4 * GIB
    assert together(CONFIG, memory, None).sampling == 0


@given(st.integers(1, 40), st.sampled_from([1, 2, 8]), st.integers(1, 400), st.floats(0, 1e12))
def test_no_unit_of_the_largest_budget_takes_more_than_there_is(group_size, shards, groups, room):
    """Whatever the number of groups, and for larger groups, too; one rollout a shard more would not fit."""
    lengths = {"prompt": 1000, "tokens": 8000, "batch_shards": shards}
    found = largest_unit(SHAPE, room, group_size=group_size, **lengths)
    assert found % shards == 0

    def needed(rollouts, size):
        shape = unit_shape(groups, size, rollouts, batch_shards=shards)
        return MARGIN * unit_bytes(SHAPE, shape, **lengths)

    if found:
        assert needed(found, group_size) <= room and needed(found, 2 * group_size) <= room
    else:
        assert MARGIN * unit_bytes(SHAPE, UnitShape(shards, 1), **lengths) > room


def test_keys_are_counted_once():
    """One rollout of 8,000 tokens more is its keys and values, a layer's copy, and what was drawn."""
    of = [unit_bytes(SHAPE, UnitShape(1, rollouts), prompt=0, tokens=8000) for rollouts in (1, 2)]
    token = 2 * 2 * 8 * 128
    scores, logits = 4 * 2 * 32 * 8000, 4 * 3 * SHAPE.vocab_size
    assert of[1] - of[0] == 33 * token * 8000 + 12 * 8000 + scores + logits


def test_rollouts_at_once_follow_from_memory_unless_set():
    mesh = sharding.make_mesh(fsdp=8)
    assert device_of(mesh) is None  # of CPUs nothing is known
    assert rollouts_per_dispatch(CONFIG, SHAPE, mesh, None) == ELSEWHERE
    wide = dataclasses.replace(CONFIG, problems_per_batch=512, max_compute=10**6)
    shape = unit_shape(512, 4, rollouts_per_dispatch(wide, SHAPE, mesh, H200), batch_shards=8)
    assert 8 * 80 < shape.problems * shape.rollouts < 8 * 114  # 1.08 GB each and 15% more, of 141
    evaluated = dataclasses.replace(wide, group_size=64, evaluation=EvaluationConfig(sets={"a": "a"}, samples=1, k=1))
    alone = dataclasses.replace(evaluated, evaluation=EvaluationConfig())
    fewer, more = (rollouts_per_dispatch(each, SHAPE, mesh, H200) for each in (evaluated, alone))
    assert fewer < more  # each rollout of an evaluation has a prompt of its own
    said = dataclasses.replace(wide, sampling=dataclasses.replace(wide.sampling, max_rollouts_per_dispatch=64))
    assert rollouts_per_dispatch(said, SHAPE, mesh, H200) == 64


def test_what_has_no_room_is_refused_before_it_starts():
    mesh = sharding.make_mesh(fsdp=8)
    long = dataclasses.replace(CONFIG, sampling=SamplingConfig(max_prompt_tokens=1000, max_tokens=1_200_000))
    with pytest.raises(
        InputError, match=r"max_tokens = 1200000: .* no room to sample one rollout .*vLLM servers.*endp"
    ):
        rollouts_per_dispatch(long, SHAPE, mesh, H200)
    many = dataclasses.replace(CONFIG.sampling, max_rollouts_per_dispatch=2048)
    with pytest.raises(InputError, match=r"max_rollouts_per_dispatch = 2048: .* Set it to 0, .*vLLM servers"):
        rollouts_per_dispatch(dataclasses.replace(CONFIG, sampling=many), SHAPE, mesh, H200)


# As the GPU's compiler prints it, shortened: the prompt's layers count, the loop over tokens looks at who has stopped.
PROGRAM = """
%layer (p: (s32[], bf16[8])) -> (s32[], bf16[8]) {
  %p = (s32[], bf16[8]) parameter(0)
  %w = bf16[8,512]{1,0} all-gather(%x), replica_groups=[1,8]<=[8]
  %copied = bf16[64]{0} fusion(%k), kind=kLoop, calls=%fused
  ROOT %t = (s32[], bf16[8]) tuple(%i, %v)
}

%fused (k: bf16[64]) -> bf16[64] {
  ROOT %c = bf16[64]{0} copy(%k)
}

%token (p: (s32[], pred[8])) -> (s32[], pred[8]) {
  %p = (s32[], pred[8]) parameter(0)
  %layers = (s32[], bf16[8]) while(%p), condition=%few, body=%layer, backend_config={"known_trip_count":{"n":"4"}}
  %drawn = s32[8]{0} fusion(%layers), kind=kLoop, calls=%fused
  ROOT %t = (s32[], pred[8]) tuple(%i, %v)
}

%few (p: (s32[], bf16[8])) -> pred[] {
  %p = (s32[], bf16[8]) parameter(0)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

%going (p: (s32[], pred[8])) -> pred[] {
  %p = (s32[], pred[8]) parameter(0)
  %n = s32[] constant(24)
  %lt = pred[] compare(%i, %n), direction=LT
  %any = pred[] reduce(%r, %f), dimensions={0}, to_apply=%or
  ROOT %both = pred[] and(%lt, %any)
}

ENTRY %main (a: bf16[8]) -> bf16[8] {
  %a = bf16[8]{0} parameter(0)
  %read = (s32[], bf16[8]) while(%a), condition=%few, body=%layer
  %draw = (s32[], pred[8]) while(%read), condition=%going, body=%token
  ROOT %r = bf16[8]{0} get-tuple-element(%draw), index=1
}
"""


def test_the_loop_over_tokens_is_told_from_those_over_layers():
    [gather], launches = token_loop(PROGRAM, num_devices=8)
    assert (gather.count, gather.wire_bytes) == (4, 8 * 512 * 2 * 7 / 8)
    assert launches == 4 * 2 + 1
    with pytest.raises(ValueError, match="has 0 loops"):
        token_loop(PROGRAM.replace("%draw = (s32[], pred[8]) while", "%draw = (s32[], pred[8]) call"), num_devices=8)
