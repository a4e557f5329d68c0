"""Runs of a mixture of experts: its metrics, and the sampler's experts replayed, in both layouts."""

import dataclasses

import pytest

from benchmarks.simulated_engine import SimulatedEngine
from isocompute_jax import model, tasks
from isocompute_jax.experiment import loop
from isocompute_jax.experiment.config import EvaluationConfig, MeshConfig, PackingConfig
from isocompute_jax.experiment.inputs import check_mesh
from isocompute_jax.records.errors import InputError
from isocompute_jax.service.client import member
from isocompute_jax.service.client.service_config import ServiceConfig
from tests.experiment.builders import MODEL, log_lines, make_inputs
from tests.model.tiny import random_params
from tests.service.fleet_builders import live, tensors

MIXTURE = dataclasses.replace(MODEL, attention_bias=False, qk_norm=True, num_experts=4, experts_per_token=2)
LOAD = {"expert_load_max", "expert_load_cv", "experts_unused", "router_entropy"}


@pytest.fixture
def mixture_run(tmp_path):
    """A run of `MIXTURE`, whose own routing is used."""
    config = make_inputs(tmp_path)
    tasks.save_arithmetic_tokenizer(tmp_path / "tokenizer")
    model.save_checkpoint(
        tmp_path / "mixture", MIXTURE, random_params(MIXTURE, scale=0.1), tokenizer_from=tmp_path / "tokenizer"
    )
    return dataclasses.replace(config, model=str(tmp_path / "mixture"))


def test_a_server_that_does_not_say_its_experts_leaves_nothing_behind(mixture_run, tmp_path, monkeypatch):
    monkeypatch.setattr(member, "POLL_S", 0.1)
    loss = dataclasses.replace(mixture_run.loss, kl_coef=0.0, routing="compare")
    with live(engine=SimulatedEngine(tensors(MIXTURE))) as [server]:
        config = dataclasses.replace(
            mixture_run, loss=loss, service=ServiceConfig(endpoints=server.address, push="stream")
        )
        with pytest.raises(InputError, match=r"does not say which experts it chose.*start it with --routing"):
            loop.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("row_tokens", [0, 24], ids=["padded", "packed"])
def test_replay_in_a_run(mixture_run, tmp_path, row_tokens):
    config = dataclasses.replace(
        mixture_run,
        max_compute=64 * 2,
        evaluation=EvaluationConfig(),
        packing=PackingConfig(row_tokens),
        loss=dataclasses.replace(mixture_run.loss, kl_coef=0.0, entropy_coef=0.0, routing="replay"),
    )
    own = dataclasses.replace(config, loss=dataclasses.replace(config.loss, routing="own"))
    for name, run in (("replay", config), ("own", own)):
        loop.train(run, tmp_path / name)
    replayed, alone = log_lines(tmp_path / "replay", "metrics.jsonl"), log_lines(tmp_path / "own", "metrics.jsonl")
    assert len(replayed) == len(alone) == 2
    for ours, theirs in zip(replayed, alone, strict=True):
        assert ours.keys() - theirs.keys() == {"routing_agreement"} and theirs.keys() >= LOAD
        # On-policy and in one process both sides route alike, so that replay changes next to nothing.
        assert ours["routing_agreement"] > 0.999
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
        assert 1 <= ours["expert_load_max"] <= 4 and 0 <= ours["experts_unused"] < 1


@pytest.mark.parametrize(
    ("mesh", "config", "message"),
    [
        (
            MeshConfig(expert=3),
            MIXTURE,
            "config.mesh.expert = 3 does not divide the model's 4 experts; possible: 1, 2, 4.",
        ),
        (
            MeshConfig(tensor=4),
            dataclasses.replace(MODEL, num_heads=6, num_kv_heads=2),
            "config.mesh.tensor = 4 does not divide the model's 6 heads and 2 kv heads; possible: 1, 2. Give the other "
            "devices to config.mesh.fsdp or config.mesh.data",
        ),
    ],
)
def test_meshes_that_do_not_divide_the_model(mesh, config, message):
    with pytest.raises(InputError) as error:
        check_mesh(mesh, config)
    assert message in str(error.value)
    check_mesh(MeshConfig(data=3, fsdp=5), config)
