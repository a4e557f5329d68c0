"""Run by test_unit.py where the compilers are."""

from isocompute_jax.experiment.config import override
from isocompute_jax.experiment.inputs import model_config_of
from isocompute_jax.plan import unit
from isocompute_jax.plan.compile import compiled_for, plan_mesh
from isocompute_jax.plan.topology import parse_topology
from isocompute_jax.plan.unit import compile_unit, keys_bytes
from isocompute_jax.sampling.in_process import UnitShape, unit_bytes
from tests.aot import traffic
from tests.aot.layout_programs import _config


def unit_of(path):
    """Facts of a config's unit, and bytes: of its keys, of what it is allowed, and of what a token moves."""
    texts = []

    def keeping(lowered):
        program = compiled_for(lowered)
        texts.append(program.as_text())
        return program

    unit.compiled_for = keeping
    config = override(_config(path), "plan.sampler_devices", 0)
    topology, model_config = parse_topology(config.plan.topology), model_config_of(config)
    facts = compile_unit(config, topology, model_config, plan_mesh(config, topology))
    lengths = {"prompt": config.sampling.max_prompt_tokens, "tokens": config.sampling.max_tokens}
    shape = UnitShape(facts.problems, facts.rollouts)
    return {
        "temporaries": facts.temporaries,
        "moved": facts.moved,
        "keys": keys_bytes(config, model_config, facts),
        "counted": unit_bytes(model_config, shape, **lengths, batch_shards=facts.shards),
        "wire_bytes": facts.wire_bytes,
        "launches": facts.launches,
        "token_bytes": traffic.token_bytes(texts[0]),
        "rollouts": facts.together,
    }
