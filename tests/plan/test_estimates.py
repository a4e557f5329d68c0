"""FLOPs against XLA's own count, and rooflines against sums by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isocompute_jax import model
from isocompute_jax.accelerators import DEVICES
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.learner import PackShape
from isocompute_jax.model.flops import Flops, Work, active_matrices, head_matrix, matrices_again, step_flops
from isocompute_jax.plan.compile import Memory
from isocompute_jax.plan.hlo import Collective
from isocompute_jax.plan.roofline import Range, sampling_time, step_time, wire_seconds
from isocompute_jax.plan.work import Lengths, work_of

CONFIG = model.ModelConfig(
    vocab_size=512,
    embed_dim=256,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    mlp_dim=768,
    tied_embeddings=False,
    rope_theta=1e4,
    norm_eps=1e-6,
    max_positions=256,
    attention_bias=False,
)
EXPERTS = dataclasses.replace(CONFIG, num_experts=8, experts_per_token=2, mlp_dim=128, qk_norm=True)


def test_flops_are_xlas_of_one_unrolled_layer():
    tokens = jnp.zeros((1, 128), jnp.int32)

    def loss(params):
        hidden, _ = model.prefill(CONFIG, params, tokens, jnp.ones(tokens.shape, bool))
        return jnp.sum(model.logits(CONFIG, params, hidden))

    costs = jax.jit(jax.grad(loss)).lower(model.abstract_params(CONFIG)).compile().cost_analysis()
    counted = (costs or {})["flops"]
    pairs = 128.0**2  # masked ones are computed, too
    found = step_flops(CONFIG, Work(1, 128, 128, pairs, pairs, 1))
    assert found.body + found.attention + found.head == found.model
    assert counted == pytest.approx(found.model, rel=0.05)  # the rest is norms, softmax, RoPE


@pytest.mark.slow
def test_flops_of_adapters_are_xlas_without_gradients_of_weights():
    tokens, config = jnp.zeros((1, 128), jnp.int32), dataclasses.replace(CONFIG, num_layers=6)
    lora = model.LoraConfig(rank=1)

    def loss(adapters, params):
        hidden, _ = model.prefill(config, model.with_adapters(params, adapters), tokens, jnp.ones(tokens.shape, bool))
        return jnp.sum(model.logits(config, params, hidden))

    given = model.abstract_adapters(config, lora), model.abstract_params(config)
    costs = jax.jit(jax.grad(loss)).lower(*given).compile().cost_analysis()
    pairs = 128.0**2
    found = step_flops(config, Work(1, 128, 128, pairs, pairs, 1), adapters=True)
    assert found.body == 4 * active_matrices(config) * 128
    assert (costs or {})["flops"] == pytest.approx(found.model, rel=0.05)


def test_flops_by_hand():
    d, f, heads = 256, 768, (2 * 4 + 2 * 2) * 64
    assert active_matrices(CONFIG) == d * heads + 3 * d * f
    assert active_matrices(EXPERTS) == d * heads + 2 * 3 * d * 128 + d * 8
    shared = dataclasses.replace(
        EXPERTS, qk_norm=False, shared_expert=True, sigmoid_routing=True, attention_chunk=8, experts_per_token=1
    )
    assert active_matrices(shared) == active_matrices(EXPERTS)  # one of the experts, and the shared one
    # Where a layer is computed again, nobody reads what its last matrix gives, nor what the shared expert's gives.
    assert matrices_again(CONFIG) == d * heads + 2 * d * f
    assert matrices_again(EXPERTS) == active_matrices(EXPERTS)
    assert matrices_again(shared) == active_matrices(shared) - d * 128
    assert head_matrix(CONFIG) == 256 * 512
    work = Work(rollouts=4, tokens=1000, positions=1100, pairs=5e5, computed_pairs=6e5, microbatches=2)
    found = step_flops(CONFIG, work)
    assert found.body == 6 * active_matrices(CONFIG) * 1000
    assert found.attention == 12 * 4 * 64 * 5e5
    assert found.head == 6 * head_matrix(CONFIG) * 1000
    layers = 6 * active_matrices(CONFIG) * 1100 + 12 * 4 * 64 * 6e5
    assert (found.computed, found.computed_float32) == (0, layers + 8 * head_matrix(CONFIG) * 1100)
    adapters = step_flops(CONFIG, work, adapters=True)
    assert adapters.computed_float32 == layers - 2 * active_matrices(CONFIG) * 1100 + 6 * head_matrix(CONFIG) * 1100
    narrow = dataclasses.replace(CONFIG, dtype="bfloat16", remat="full")
    found = step_flops(narrow, work)
    again = 2 * matrices_again(CONFIG) * 1100 + 4 * 4 * 64 * 6e5
    assert found.computed == pytest.approx(layers + again + 12 * head_matrix(CONFIG) * 1100)
    assert found.computed_float32 == 0
    wide_head = step_flops(dataclasses.replace(narrow, head="float32"), work)
    assert wide_head.computed_float32 == pytest.approx(8 * head_matrix(CONFIG) * 1100)


def test_chunks_are_seen_by_themselves():
    """Sequences of 500 + 1,100 tokens in chunks of 600: 600, 600 and 400."""
    lengths = Lengths(median=1100, sigma=0.0, limit=2000, prompt=500)
    assert lengths.pairs_within(600) == pytest.approx((2 * 600**2 + 400**2) / 2)
    assert lengths.pairs_within(1600) == pytest.approx(lengths.pairs)
    shape = PackShape(rows=2, row_tokens=2048, microbatches=4)
    config = RunConfig(group_size=4, problems_per_batch=1)
    llama4 = dataclasses.replace(
        EXPERTS, qk_norm=False, shared_expert=True, sigmoid_routing=True, attention_chunk=600, num_layers=4,
        global_interval=4,
    )  # fmt: skip
    found = work_of(config, shape, lengths, llama4)
    assert found.pairs == pytest.approx(4 * (0.25 * 1600**2 + 0.75 * (2 * 600**2 + 400**2)) / 2)
    assert work_of(config, shape, lengths, EXPERTS).pairs == 4 * lengths.pairs


def test_lengths_are_those_of_a_cut_log_normal():
    lengths = Lengths(median=2048, sigma=1.0, limit=14_000, prompt=500)
    drawn = np.minimum(np.exp(np.log(2048) + np.random.default_rng(0).standard_normal(1_000_000)), 14_000)
    assert lengths.mean == pytest.approx(drawn.mean(), rel=5e-3)
    assert lengths.pairs == pytest.approx(((500 + drawn) ** 2).mean() / 2, rel=5e-3)
    assert lengths.context == pytest.approx(500 + (drawn**2).mean() / 2 / drawn.mean(), rel=5e-3)
    assert lengths.sample(4096).mean() == pytest.approx(lengths.mean, rel=5e-3)
    assert lengths.sample(4096).max() <= 14_000
    assert Lengths(median=20, sigma=0.0, limit=10, prompt=0).mean == 10


def test_an_update_by_hand():
    h200 = DEVICES["h200"]
    flops = Flops(body=6e16, attention=1e16, head=1e16, computed=1.2e17, computed_float32=0)
    memory = Memory(4e9, 4e9, 8e9, 0, 0, 0, 16e9, 0)
    gathers = [Collective("all-gather", 45e9, 10, (tuple(range(8)),))]
    found = step_time(h200, 8, flops, memory, gathers, [0] * 8, gathered_bytes=20e9)
    at_peak = 1.2e17 / 8 / 989e12
    assert found.products == Range(at_peak / 0.75, at_peak / 0.45)
    assert found.links.low == pytest.approx(10 * 45 / 450 / 0.9)
    moved = (4e9 + 2 * 12e9 + 20e9) / 4.8e12
    assert found.memory.high == pytest.approx(moved / 0.6)
    assert found.total.low == pytest.approx(at_peak / 0.75 + moved / 0.9)  # links are hidden behind products
    assert found.total.high == pytest.approx(at_peak / 0.45 + moved / 0.6 + 1 / 0.6)
    assert found.mfu.high == pytest.approx(8e16 / 8 / 989e12 / found.total.low)


def test_links_between_hosts():
    h200 = DEVICES["h200"]
    hosts = [0] * 8 + [1] * 8
    within = Collective("all-gather", 9e9, 1, (tuple(range(8)), tuple(range(8, 16))))
    across = Collective("all-gather", 9e9, 1, (tuple(range(16)),))
    pairs = Collective("all-reduce", 9e9, 1, tuple((i, i + 8) for i in range(8)))
    assert wire_seconds(within, h200, hosts) == pytest.approx(9 / 450)
    assert wire_seconds(across, h200, hosts) == pytest.approx(9 / (8 * 50))
    assert wire_seconds(pairs, h200, hosts) == pytest.approx(9 / 50)


def test_decoding_by_hand():
    """Equal lengths, one wave: each token reads the weights and every rollout's keys."""
    h200 = DEVICES["h200"]
    config = dataclasses.replace(CONFIG, num_layers=100, embed_dim=4096, mlp_dim=16384, dtype="bfloat16")
    lengths = Lengths(median=640, sigma=0.0, limit=640, prompt=100)
    found = sampling_time(config, h200, lengths, rollouts=16, devices=2, tensor=1, in_flight=0)
    weights, token = 2.0 * model.count_params(config), 2 * 2 * 100 * 2 * 64
    assert (found.copies, found.in_flight, found.weight_bytes, found.token_bytes) == (2, 16, weights, token)
    context = 100 + np.arange(0, 640, 64).mean()  # as it is at each look
    decode = 640 * (weights + 8 * context * token) / (4.8e12 * 0.9)
    prefill = 2 * active_matrices(config) * 100 * 8 / (989e12 * 0.75)
    assert found.seconds.low == pytest.approx(decode + prefill)
    assert found.room == 2 * int((0.9 * 150e9 - weights) / (token * (100 + 320)))


def test_few_rollouts_touch_few_experts():
    config = dataclasses.replace(EXPERTS, num_layers=48, embed_dim=2048, mlp_dim=768, num_experts=128, dtype="bfloat16")
    lengths = Lengths(median=640, sigma=0.0, limit=640, prompt=100)
    rates = [
        sampling_time(config, DEVICES["h200"], lengths, rollouts=n, devices=1, tensor=1, in_flight=n).tokens_per_s.high
        for n in (1, 256)
    ]
    experts = 2 * 3 * 48 * 128 * 2048 * 768
    rest = 2.0 * model.count_params(config) - experts
    keys = 420 * 2 * 2 * 48 * 2 * 64
    assert rates[0] == pytest.approx(4.8e12 * 0.9 / (rest + experts * 2 / 128 + keys))
    assert rates[1] < 256 * rates[0] / 10  # nearly all experts are read for 256


def test_long_rollouts_leave_a_tail():
    lengths = Lengths(median=1000, sigma=1.0, limit=16_000, prompt=100)
    config = dataclasses.replace(CONFIG, num_layers=100, embed_dim=4096, mlp_dim=16384, dtype="bfloat16")
    found = sampling_time(config, DEVICES["h200"], lengths, rollouts=256, devices=1, tensor=1, in_flight=64)
    assert found.seconds.low > 1.2 * found.steady.low
