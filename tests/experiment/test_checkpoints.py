"""What a run keeps, exports and resumes from: other meshes, damage, slow storage."""

import dataclasses
import errno
import pathlib
import re
import shutil
import threading
import time

import jax
import numpy as np
import pytest

from isocompute_jax import app, model
from isocompute_jax.experiment import checkpoints, loop
from isocompute_jax.experiment import workdir as room
from isocompute_jax.experiment.config import CheckpointsConfig, MeshConfig, RunConfig, override
from isocompute_jax.learner import checkpoint
from isocompute_jax.records import checksums, run_files
from isocompute_jax.records.errors import InputError
from tests.experiment import builders

# What checkpoints and retention do by themselves: tests/learner/test_checkpoint.py.
pytestmark = pytest.mark.slow

STEPS = 8


class Killed(BaseException):
    """Nobody catches it, as nobody catches SIGKILL."""


def kill() -> None:
    raise Killed


@pytest.fixture(scope="module")
def short(often) -> RunConfig:
    """Eight steps, evaluated after 0, 2, 4 and 8 of them, with exports after 3 and 6."""
    evaluation = dataclasses.replace(often.evaluation, points=3)
    return dataclasses.replace(
        often, max_compute=STEPS * often.rollouts_per_step, evaluation=evaluation, export_every=3
    )


@pytest.fixture(scope="module")
def whole(short, tmp_path_factory) -> pathlib.Path:
    workdir = tmp_path_factory.mktemp("runs") / "whole"
    loop.train(short, workdir)
    return workdir


# --- which are kept


def test_the_last_the_best_and_milestones_are_kept(short, whole, tmp_path):
    config = dataclasses.replace(
        short,
        checkpoint_every_s=1e9,
        checkpoints=CheckpointsConfig(keep_last=1, keep_best=1, best_metric="train/avg@2", keep_every=3),
    )
    with builders.before_step(6, kill), pytest.raises(Killed):
        loop.train(config, tmp_path / "run")
    assert (tmp_path / "run" / "exports" / "step-3").exists()
    loop.train(config, tmp_path / "run")
    scores = {line["step"]: line["avg@2"] for line in builders.log_lines(whole, run_files.EVAL)[1::2]}
    del scores[0]  # nothing was trained: there is no checkpoint
    best = max(scores, key=lambda step: (scores[step], step))
    assert builders.kept_checkpoints(tmp_path / "run") == sorted({3, 6, 8, best})
    builders.assert_same_run(tmp_path / "run", whole)


def test_a_metric_that_nobody_measures_is_named(short, tmp_path):
    def ends(metric, message):
        config = dataclasses.replace(short, checkpoints=CheckpointsConfig(keep_best=1, best_metric=metric))
        with pytest.raises(InputError, match=message):
            loop.train(config, tmp_path / "run")

    ends("hard/avg@4", "best_metric = 'hard/avg@4' is measured nowhere.*: known are validation/avg@2, .*train/worst@2")
    ends("train/metric/seconds", "'train/metric/seconds' is not among what was measured: train/avg@2, train/best@2")


def test_phases_decide_when_weights_can_be_kept(short):
    config = dataclasses.replace(short, max_staleness=2, asynchrony="phases", export_every=3)
    with pytest.raises(InputError, match=r"export_every = 3 is no multiple of config.max_staleness = 2"):
        config.resolved()
    config = dataclasses.replace(config, export_every=4, checkpoints=CheckpointsConfig(keep_every=5))
    with pytest.raises(InputError, match=r"keep_every = 5 is no multiple of config.max_staleness = 2"):
        config.resolved()


# --- exports


def test_exports_load_and_a_resumed_run_does_not_write_them_again(short, whole, tmp_path):
    workdir = tmp_path / "run"
    with builders.before_step(5, kill), pytest.raises(Killed):
        loop.train(override(short, "checkpoint_every_s", 1e9), workdir)
    before = (workdir / "exports" / "step-3").stat()
    loop.train(short, workdir)  # from the beginning: there was no checkpoint
    assert (workdir / "exports" / "step-3").stat() == before
    assert sorted(path.name for path in (workdir / "exports").iterdir()) == ["step-3", "step-6"]
    for name in ("step-3", "step-6"):
        ours, theirs = (path / "exports" / name / "model.safetensors" for path in (workdir, whole))
        assert ours.read_bytes() == theirs.read_bytes()


def test_an_export_is_a_model_for_us_and_for_transformers(short, whole, tmp_path):
    transformers = pytest.importorskip("transformers")
    exported = whole / "exports" / "step-6"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(exported)
    ours = model.load_params(exported, model.load_config(exported))
    embeddings = theirs.get_input_embeddings().weight.detach().numpy()
    assert any(np.array_equal(embeddings, x) for x in jax.tree.leaves(ours) if x.shape == embeddings.shape)
    warm = dataclasses.replace(short, model=str(exported), max_compute=short.rollouts_per_step, export_every=0)
    loop.train(warm, tmp_path / "warm")
    before, after = (model.load_params(path, model.load_config(path)) for path in (exported, tmp_path / "warm/model"))
    assert not np.array_equal(*(jax.tree.leaves(params)[0] for params in (before, after)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_checkpoint_becomes_what_the_run_would_have_exported(short, whole, tmp_path, dtype):
    workdir = whole
    if dtype != "float32":
        workdir = tmp_path / "run"
        loop.train(dataclasses.replace(short, dtype=dtype, max_compute=2 * short.rollouts_per_step), workdir)
    last = builders.kept_checkpoints(workdir)[-1]
    found = room.export_checkpoint(workdir, out=tmp_path / "last")
    assert found == tmp_path / "last"
    for name in sorted(path.name for path in (workdir / "model").iterdir()):
        assert (found / name).read_bytes() == (workdir / "model" / name).read_bytes(), name
    copy = tmp_path / "copy"
    shutil.copytree(workdir, copy)
    shutil.rmtree(copy / "exports", ignore_errors=True)
    assert room.export_checkpoint(copy, name=last) == copy / "exports" / f"step-{last}"
    builders.garble(copy / "checkpoints" / str(last))
    assert room.export_checkpoint(copy) == copy / "exports" / f"step-{last - 1}"  # the last whole one


def test_what_cannot_be_exported_is_named(whole, tmp_path):
    def ends(message, run=whole, **options):
        with pytest.raises(InputError, match=message):
            room.export_checkpoint(run, **options)

    ends("is not a run directory", run=tmp_path)
    ends("there is no such directory", run=tmp_path / "none")
    ends(f"holds no checkpoint 99; there are: {STEPS - 1}, {STEPS}", name=99)
    ends("is not a Hugging Face checkpoint", base_model=tmp_path, out=tmp_path / "out")
    (tmp_path / "thesis").mkdir()
    ends("exists and holds no model", out=tmp_path / "thesis")
    shutil.copytree(whole, tmp_path / "copy")
    kept = room.export_checkpoint(tmp_path / "copy", out=tmp_path / "kept")
    before = (kept / "model.safetensors").stat().st_mtime_ns
    ends("kept holds a model that is no export of", out=kept)  # of another run
    assert (kept / "model.safetensors").stat().st_mtime_ns == before
    assert room.export_checkpoint(tmp_path / "copy", out=kept) == kept
    builders.garble(tmp_path / "copy" / "checkpoints" / str(STEPS))
    ends("8 is damaged: .* is not what was written", run=tmp_path / "copy", name=STEPS)


def test_what_is_no_model_but_holds_one_says_how_to_get_it(short, whole, tmp_path):
    def ends(path, message):
        with pytest.raises(InputError) as caught:
            loop.train(override(short, "model", str(path)), tmp_path / "new")
        assert message in str(caught.value) and not (tmp_path / "new").exists()

    ends(whole / "checkpoints" / "8", f"`python -m isocompute_jax.export --run={whole} --checkpoint=8 --out=DIR`")
    ends(whole, f"it is a run. Its trained model is {whole}/model once it is done")
    ends(tmp_path, "it has no config.json")


# --- resuming


def test_a_run_whose_last_checkpoint_was_damaged_ends_the_same(short, whole, tmp_path, caplog):
    workdir = tmp_path / "run"
    with builders.before_step(6, kill), pytest.raises(Killed):
        loop.train(short, workdir)
    assert builders.kept_checkpoints(workdir) == [4, 5]
    builders.garble(workdir / "checkpoints" / "5")
    loop.train(short, workdir)
    assert "checkpoint 5 is damaged: state/" in caplog.text
    shutil.rmtree(workdir / "checkpoints" / "5.corrupt")
    builders.assert_same_run(workdir, whole)


def test_a_run_continues_on_another_mesh(short, whole, tmp_path, caplog):
    workdir = tmp_path / "run"
    with builders.before_step(6, kill), pytest.raises(Killed):
        loop.train(dataclasses.replace(short, mesh=MeshConfig(fsdp=2)), workdir)
    seen = []
    resume = checkpoints.resume
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "resume", lambda *args: seen.append(resume(*args)) or seen[-1])
        loop.train(short, workdir)
    assert "saved on a mesh of fsdp 2, it continues on one of one device" in caplog.text
    assert seen[0].step == 5 and not isinstance(seen[0].learner.step.sharding, jax.sharding.NamedSharding)
    counters = ("step", "compute", "tokens", "updates")
    ours, theirs = (
        [[line[name] for name in counters] for line in builders.log_lines(path, run_files.METRICS)]
        for path in (workdir, whole)
    )
    assert ours == theirs


def test_slow_storage_does_not_hold_up_steps_nor_change_them(short, whole, tmp_path, monkeypatch):
    write, late = checksums.write_sums, threading.Event()

    def slowly(directory, **options):
        assert late.wait(60)
        write(directory, **options)

    monkeypatch.setattr(checksums, "write_sums", slowly)
    workdir = tmp_path / "run"
    begun = []
    with builders.before_step(6, late.set):  # five steps are made while the first checkpoint is being written
        monkeypatch.setattr(
            checkpoint.Checkpointer,
            "save",
            lambda self, state, *args, save=checkpoint.Checkpointer.save, **options: (
                begun.append((int(state.step), time.monotonic())) or save(self, state, *args, **options)
            ),
        )
        loop.train(override(short, "checkpoint_every_s", 1e-9), workdir)
    assert [step for step, _ in begun][:2] in ([1, 6], [1, 7], [1, 8])
    builders.assert_same_run(workdir, whole)


def test_a_disk_that_fills_up_meanwhile_is_one_message(short, whole, tmp_path, monkeypatch, capsys):
    def full(directory, **_):
        raise OSError(errno.ENOSPC, "No space left on device", str(directory))

    workdir = tmp_path / "run"
    with monkeypatch.context() as patch, builders.before_step(4, lambda: patch.setattr(checksums, "write_sums", full)):
        assert app.exit_code(lambda: loop.train(short, workdir)) == app.FAILED
    message = capsys.readouterr().err
    found = re.fullmatch(rf"error: cannot write \({workdir}/checkpoints/(\d)\): No space left on device. .*\n", message)
    assert found and builders.kept_checkpoints(workdir) == [int(found[1]) - 2, int(found[1]) - 1]
    loop.train(short, workdir)
    builders.assert_same_run(workdir, whole)
