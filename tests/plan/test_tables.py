"""The layouts that configs name: they go together before anything is compiled. And plans in a table."""

import importlib.util
import math
import pathlib

import pytest

from isocompute_jax import model
from isocompute_jax.experiment.inputs import check_mesh, model_config_of
from isocompute_jax.plan.report import table
from isocompute_jax.plan.topology import parse_topology

ROOT = pathlib.Path(__file__).parents[2]
LAYOUTS = {path.stem: str(path) for path in sorted((ROOT / "configs/layouts").glob("*.py"))}


def test_the_named_layouts():
    assert set(LAYOUTS) == {
        "h200_1x8_dense8b_128k",
        "h200_1x8_dense8b_16k",
        "h200_1x8_qwen3_30b_a3b_16k",
        "h200_2x8_dense8b_32k",
        "h200_8x8_scout_16k",
        "v5p_4x4x4_dense8b_32k",
        "v6e_16x16_dense8b_16k",
    }


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_what_its_name_says(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location(name, LAYOUTS[name])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config().resolved()
    kind, shape, *_ = name.split("_")
    topology = parse_topology(config.plan.topology)
    assert (topology.device.name, "x".join(map(str, topology.shape))) == (kind, shape)
    assert math.prod(vars(config.mesh).values()) == topology.size
    tokens = 1024 * int(name.rpartition("_")[2].removesuffix("k"))
    assert config.sampling.max_prompt_tokens + config.sampling.max_tokens == config.packing.row_tokens == tokens
    shape_of_model = model_config_of(config)
    model.check_length(shape_of_model, config.sampling.max_prompt_tokens, config.sampling.max_tokens)
    check_mesh(config.mesh, shape_of_model)
    assert shape_of_model.dtype == "bfloat16"
    rows = config.recipe.microbatch_tokens // config.packing.row_tokens
    assert rows % (config.mesh.data * config.mesh.fsdp * config.mesh.expert) == 0


def test_a_table_tells_what_fits_and_what_does_not():
    fits = {
        "topology": "h200:1x8",
        "devices": 8,
        "versions": {"jax": "1.0"},
        "fits": True,
        "needed": 2.0**31,
        "mesh": {"fsdp": 8},
        "rollouts": 1024,
        "steps": 256,
        "row_tokens": 16384,
        "remat": "full",
        "compile_s": 12.4,
        "memory": dict.fromkeys(("params", "gradients", "moments", "temporaries", "peak"), 2.0**31),
        "free": 2.0**30,
        "collectives": {"all-gather": 5e9, "all-reduce": 1e9},
        "tokens": 3.21e6,
        "flops": 1.23e17,
        "step_s": [10.0, 20.0],
        "mfu": [0.25, 0.5],
        "sampling_s": [30.0, 40.0],
        "device_hours": [1000.0, 2000.0],
        "run_step_s": [40.0, 60.0],
    }
    refused = {
        "topology": "tpu:v6e:4x4",
        "devices": 16,
        "versions": {"libtpu": "2.0"},
        "fits": False,
        "needed": 2.0**35,
    }
    lines = table({"good": fits, "bad": refused})
    assert "| good | h200:1x8 | fsdp 8 | full | 2.0 | 2.0 | 2.0 | 2.0 | 2.0 | 1.0 | yes | 12 s |" in lines
    assert "| bad | tpu:v6e:4x4 |  |  |  |  |  |  | 32.0 |  | no |  |" in lines
    said = "| good | 1,024 | 3.2 M | 1.2e+17 | 6 | 10 to 20 | 25% to 50% | 30 to 40 | 256 | 1,000 to 2,000 |"
    assert said in lines
    assert lines[-1] == "Compilers: jax 1.0, libtpu 2.0."
