"""A plan on fake devices: what it says of memory, collectives and work, by hand; and the command, end to end."""

import dataclasses
import json
import math
import subprocess
import sys

import jax
import numpy as np
import pytest

from isocompute_jax import learner, model, sharding
from isocompute_jax.experiment.config import MeshConfig
from isocompute_jax.experiment.layouts import make_lay_out, shape_of
from isocompute_jax.plan import advice, command, dry_run
from isocompute_jax.plan.compile import DoesNotCompile, abstract_batch, plan_mesh
from isocompute_jax.plan.report import figures, report
from isocompute_jax.plan.topology import parse_topology
from isocompute_jax.records.errors import InputError
from tests.learner.builders import make_group
from tests.plan.builders import SIZES, run_config, write_model


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return run_config(write_model(tmp_path_factory.mktemp("plan") / "model")).resolved()


@pytest.fixture(scope="module")
def plan(config):
    return dry_run.dry_run(config, parse_topology("fake:8"))


def test_memory_by_hand(plan):
    s = SIZES
    matrices = 2 * s["vocab"] * s["embed"] + s["layers"] * (
        s["embed"] * (2 * s["heads"] + 2 * s["kv_heads"]) * s["head"] + 3 * s["embed"] * s["mlp"]
    )
    norms = (2 * s["layers"] + 1) * s["embed"]
    assert model.count_params(plan.model_config) == matrices + norms
    share = 4 * (matrices / 8 + norms)  # float32; every matrix has a dimension over fsdp
    assert plan.memory.params == plan.memory.gradients == share
    assert plan.memory.moments == 2 * share + 4  # and Adam's counter
    assert plan.memory.peak == pytest.approx(
        sum(
            getattr(plan.memory, name) for name in ("params", "gradients", "moments", "batch", "temporaries", "outputs")
        )
    )
    stats = plan.compiled.program.memory_analysis()
    used = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    assert plan.memory.peak == used - stats.alias_size_in_bytes
    assert stats.alias_size_in_bytes >= plan.memory.params + plan.memory.moments  # donated, as on accelerators
    assert plan.fits and not plan.knobs


def test_the_batch_is_what_training_places(config):
    mesh = plan_mesh(config, parse_topology("fake:8"))
    groups = [make_group(np.random.default_rng(0), [1.0, 0.0, 0.0, 1.0]) for _ in range(2)]
    for row_tokens in (32, 0):
        changed = dataclasses.replace(config, packing=dataclasses.replace(config.packing, row_tokens=row_tokens))
        shape = shape_of(changed, 2, config.group_size, mesh)
        placed = learner.place_batch(make_lay_out(changed, 2, config.group_size, mesh)(groups, None), mesh)
        found, expected = abstract_batch(shape, mesh), placed
        assert type(found) is type(expected)
        for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert ours.dtype == theirs.dtype and ours.sharding == theirs.sharding
            assert ours.shape[1:] == theirs.shape[1:]  # a batch has as many micro-batches as it needs


def test_work_and_cost(plan, config):
    assert plan.work.rollouts == 32
    assert plan.work.tokens == pytest.approx(32 * (4 + plan.lengths.mean))
    assert plan.work.microbatches == math.ceil(plan.work.tokens / 0.97 / 256)
    assert plan.config.num_steps == 10
    hours = plan.cost.wall_hours
    assert plan.cost.device_hours.low == pytest.approx(8 * hours.low)
    assert hours.high == pytest.approx(10 * (plan.time.total.high + plan.sampling.seconds.high) / 3600)
    assert {one.kind for one in plan.collectives} >= {"all-gather"}


def test_the_report_says_what_was_found(plan):
    text = report(plan)
    assert "It fits." in text and "ESTIMATES" in text and "all-gather" in text
    assert f"{plan.work.microbatches} micro-batches" in text
    found = figures(plan)
    assert found["fits"] is True and found["needed"] == plan.memory.peak
    assert json.loads(json.dumps(found)) == found


def test_meshes_that_are_not_the_topology(config):
    with pytest.raises(InputError, match=r"config.mesh: .*fsdp=8.* are 8 devices, and --topology=fake:4 has 4"):
        plan_mesh(config, parse_topology("fake:4"))


def test_what_does_not_fit_is_told_by_how_much_and_what_would(config, monkeypatch):
    """Each knob is compiled; here the compiler's answers are given, so that the sums can be checked."""
    device = parse_topology("h200:1x8").device
    budget = device.memory - device.reserve
    needs = {"none": budget + 10e9, "attention_output": budget + 4e9, "full": budget - 1e9}

    def compiled(config, topology):
        raise DoesNotCompile(needs[config.compute.remat] - (2e9 if config.optimizer.moments != "float32" else 0), "")

    monkeypatch.setattr(advice, "compile_step", compiled)
    monkeypatch.setattr(dry_run, "compile_step", compiled)
    config = dataclasses.replace(
        config,
        compute=dataclasses.replace(config.compute, remat="none"),
        recipe=dataclasses.replace(config.recipe, microbatch_tokens=32),
    )
    found = dry_run.dry_run(config, parse_topology("h200:1x8"))
    assert [(knob.flags, round(knob.saves / 1e9, 3), knob.fits) for knob in found.knobs] == [
        (("--config.compute.remat=attention_output",), 6.0, False),
        (("--config.compute.remat=full",), 11.0, True),
    ]
    text = report(found)
    assert not found.fits
    assert "IT DOES NOT FIT: 9.31 GiB a device are missing, the reserve included." in text
    assert "--config.compute.remat=full: 10.24 GiB less, and it fits" in text


def test_end_to_end(tmp_path):
    """No weights, no tokenizer, no problems: config.json alone is read."""
    directory = write_model(tmp_path / "model")
    config = tmp_path / "config.py"
    config.write_text(
        "from tests.plan.builders import run_config\n"
        f"def get_config():\n    return run_config({directory!r}).editable()\n"
    )
    arguments = [sys.executable, "-m", "isocompute_jax.train", f"--config={config}", "--dry_run", "--topology=fake:8"]
    done = subprocess.run(
        [*arguments, f"--plan_out={tmp_path / 'plan.json'}"], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Plan of" in done.stdout and "on fake:8: 8 devices, fsdp 8" in done.stdout and "It fits." in done.stdout
    found = json.loads((tmp_path / "plan.json").read_text())
    assert found["devices"] == 8 and found["fits"] is True and np.all(np.array(found["device_hours"]) > 0)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["model"]  # no run directory


def test_a_bad_topology_or_config_is_refused_before_anything_is_compiled(config):
    with pytest.raises(InputError, match="--topology='h200:9' is unknown"):
        command.run(config, "h200:9", arguments=[], out=None)
    with pytest.raises(InputError, match="config.train_set is empty"):
        command.run(dataclasses.replace(config, train_set=""), "fake:8", arguments=[], out=None)
