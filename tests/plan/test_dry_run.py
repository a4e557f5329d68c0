"""A plan on fake devices: what it says of memory, collectives and work, by hand; and the command, end to end."""

import dataclasses
import json
import math
import subprocess
import sys

import jax
import numpy as np
import pytest

from isocompute_jax import learner, model
from isocompute_jax.allocation.schedule import ScheduleConfig
from isocompute_jax.experiment.layouts import make_lay_out, shape_of
from isocompute_jax.plan import dry_run
from isocompute_jax.plan.compile import DoesNotCompile, abstract_batch, plan_mesh
from isocompute_jax.plan.courses import price_again
from isocompute_jax.plan.report import figures, report
from isocompute_jax.plan.topology import parse_topology
from isocompute_jax.plan.work import lengths_of
from isocompute_jax.records.errors import InputError
from tests.learner.builders import make_group
from tests.plan.builders import SIZES, run_config, write_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return run_config(write_model(tmp_path_factory.mktemp("plan") / "model")).resolved()


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """(what the command printed, its figures): no weights, no tokenizer, no problems are there, config.json alone."""
    folder = tmp_path_factory.mktemp("command")
    directory = write_model(folder / "model")
    (folder / "config.py").write_text(
        f"from tests.plan.builders import run_config\ndef get_config():\n    return run_config({directory!r})\n"
    )
    command = [sys.executable, "-m", "isocompute_jax.train", f"--config={folder / 'config.py'}", "--dry_run"]
    command += ["--topology=fake:8", f"--plan_out={folder / 'plan.json'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["model"]  # no run directory
    return done.stdout, json.loads((folder / "plan.json").read_text())


def test_memory_by_hand(planned, config):
    s = SIZES
    matrices = 2 * s["vocab"] * s["embed"] + s["layers"] * (
        s["embed"] * (2 * s["heads"] + 2 * s["kv_heads"]) * s["head"] + 3 * s["embed"] * s["mlp"]
    )
    norms = (2 * s["layers"] + 1) * s["embed"]
    assert model.count_params(model.load_config(config.model)) == matrices + norms
    share = 4 * (matrices / 8 + norms)  # float32; every matrix has a dimension over fsdp
    memory = planned[1]["memory"]
    assert memory["params"] == memory["gradients"] == share
    assert memory["moments"] == 2 * share + 4  # and Adam's counter
    parts = ("params", "gradients", "moments", "batch", "temporaries", "outputs")
    assert memory["peak"] == pytest.approx(sum(memory[name] for name in parts))
    assert memory["outputs"] < share / 10  # the state is donated, as on accelerators: its memory is used again
    assert planned[1]["free"] == parse_topology("fake:8").device.memory - 2**30 - planned[1]["needed"]


def test_the_sampler_is_compiled_beside_the_step(planned, config):
    """It samples with a copy that is whole on each device, and holds keys and values of 24 tokens of four rollouts."""
    text, found = planned
    unit, both, memory = found["unit"], found["together"], found["memory"]
    assert (unit["problems"], unit["rollouts"], unit["shards"]) == (8, 4, 8)
    assert unit["weights"] == 4 * model.count_params(model.load_config(config.model))
    keys = 4 * 2 * SIZES["layers"] * SIZES["kv_heads"] * SIZES["head"] * (4 * 23 + 8)
    assert keys <= unit["temporaries"] < 40 * keys
    parts = (memory["params"], memory["moments"], unit["weights"], unit["temporaries"], unit["moved"])
    assert both["sampling"] == sum(parts)
    assert both["updating"] == memory["peak"] + unit["weights"]
    larger = "sampling" if both["sampling"] > both["updating"] else "updating"
    assert f"The larger is {larger}; units of 8 problems x 4 rollouts, as memory has it, 1 for a step" in text
    assert found["needed"] == max(both.values())
    assert unit["wire_bytes"] == 0  # the copy was gathered before the first token


def test_the_report_says_what_was_found(planned, config):
    text, found = planned
    assert "Plan of" in text and "on fake:8: 8 devices, fsdp 8" in text and "It fits." in text
    assert "ESTIMATES" in text and "all-gather" in text
    assert (found["devices"], found["fits"]) == (8, True)
    lengths = lengths_of(config)
    assert found["tokens"] == pytest.approx(32 * (4 + lengths.mean))
    assert f"{math.ceil(found['tokens'] / 0.97 / 256)} micro-batches" in text
    assert found["collectives"]["all-gather"] > 0
    hours = 10 * (np.array(found["step_s"]) + np.array(found["sampling_s"])) / 3600  # of ten steps, in turns
    np.testing.assert_allclose(found["parts"]["steps"], 8 * hours)
    np.testing.assert_allclose(found["device_hours"], np.sum(list(found["parts"].values()), axis=0))
    again = price_again(config, found)  # compiling nothing
    np.testing.assert_allclose([again.device_hours.low, again.device_hours.high], found["device_hours"])


def test_the_batch_is_what_training_places(config):
    mesh = plan_mesh(config, parse_topology("fake:8"))
    groups = [make_group(np.random.default_rng(0), [1.0, 0.0, 0.0, 1.0]) for _ in range(2)]
    for row_tokens in (32, 0):
        changed = dataclasses.replace(config, packing=dataclasses.replace(config.packing, row_tokens=row_tokens))
        sizes = model.load_config(config.model), 2, config.group_size, mesh
        shape = shape_of(changed, *sizes)
        placed = learner.place_batch(make_lay_out(changed, *sizes)(groups, None), mesh)
        found, expected = abstract_batch(shape, mesh), placed
        assert type(found) is type(expected)
        for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert ours.dtype == theirs.dtype and ours.sharding == theirs.sharding
            assert ours.shape[1:] == theirs.shape[1:]  # a batch has as many micro-batches as it needs


def test_meshes_that_are_not_the_topology(config):
    with pytest.raises(InputError, match=r"config.mesh: .*fsdp=8.* are 8 devices, and --topology=fake:4 has 4"):
        plan_mesh(config, parse_topology("fake:4"))


def test_what_does_not_fit_is_told_by_how_much_and_what_would(config, monkeypatch):
    """Each knob is compiled; here the compiler's answers are given, so that the sums can be checked."""
    device = parse_topology("h200:1x8").device
    budget = device.usable
    needs = {"none": budget + 10e9, "dots": budget + 7e9, "attention_output": budget + 4e9, "full": budget - 1e9}

    def compiled(config, topology):
        raise DoesNotCompile(needs[config.compute.remat] - (2e9 if config.optimizer.moments != "float32" else 0), "")

    monkeypatch.setattr(dry_run, "compile_step", compiled)
    config = dataclasses.replace(
        config,
        compute=dataclasses.replace(config.compute, remat="none"),
        recipe=dataclasses.replace(config.recipe, microbatch_tokens=32),
    )
    found = dry_run.dry_run(config, parse_topology("h200:1x8"))
    assert [(knob.flags, round(knob.saves / 1e9, 3), knob.fits) for knob in found.knobs] == [
        (("--config.compute.remat=dots",), 3.0, False),
        (("--config.compute.remat=attention_output",), 6.0, False),
        (("--config.compute.remat=full",), 11.0, True),
    ]
    text = report(found)
    assert not found.fits
    assert "IT DOES NOT FIT: 9.31 GiB a device are missing, the reserve included." in text
    assert "--config.compute.remat=full: 10.24 GiB less, and it fits" in text


def test_rows_are_cut_where_one_is_too_long_for_a_device(config):
    """The weights stay divided by eight, and as many tokens fewer are computed at once."""
    cut = [changes for changes in dry_run.candidates(config) if "mesh.context" in changes]
    assert cut == [
        {"mesh.fsdp": 8 // share, "mesh.context": share, "recipe.microbatch_tokens": 8 // share * 32}
        for share in (2, 4, 8)
    ]
    two_rows = dataclasses.replace(config, recipe=dataclasses.replace(config.recipe, microbatch_tokens=16 * 32))
    assert not any("mesh.context" in changes for changes in dry_run.candidates(two_rows))


def test_a_bad_topology_or_config_is_refused_before_anything_is_compiled(config):
    with pytest.raises(InputError, match="--topology='h200:9' is unknown"):
        dry_run.run(config, "h200:9", arguments=[], out=None)
    with pytest.raises(InputError, match=r"config\.train_set is empty"):
        dry_run.run(dataclasses.replace(config, train_set=""), "fake:8", arguments=[], out=None)


def test_a_schedule_is_planned_by_its_sizes(config):
    """4 steps of 8 x 4, then 3 of 8 x 8: memory of the larger, and each step at its own price."""
    run = dataclasses.replace(config, schedule=ScheduleConfig(group_size="4@0,8@128")).resolved()
    plan = dry_run.dry_run(run, parse_topology("fake:8"))
    small, large = plan.sizes
    assert (small.config.group_size, large.config.group_size) == (4, 8)
    assert plan.needed == max(small.needed, large.needed) and plan.fits
    assert plan.cost is not None and small.cost is not None and large.cost is not None
    steps = 4 * small.cost.step.low + 3 * large.cost.step.low
    assert plan.cost.parts[0].seconds.low == pytest.approx(steps)
    text = report(plan)
    assert "n 4@0,8@128; steps: 4 of 8 x 4; 3 of 8 x 8" in text and "; 7 steps" in text
    assert "2 sizes, each compiled" in text
    for field, said in (("teacher", "teacher     not in this plan"), ("supervised", "leave out what this plan says")):
        changed = dataclasses.replace(plan, config=dataclasses.replace(plan.config, **{field: "text"}))
        assert said in report(changed) and said not in text
    again = price_again(run, json.loads(json.dumps(figures(plan))))
    assert again.device_hours.high == pytest.approx(plan.cost.device_hours.high)
