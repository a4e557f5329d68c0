"""Bad input, tried one by one: one clear message, the right exit code, and nothing damaged."""

import dataclasses
import json
import os
import pathlib
import resource
import shutil
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from isocompute_jax import app, model
from isocompute_jax.experiment import loop, workdir
from isocompute_jax.experiment.config import from_dict, override
from isocompute_jax.records import run_files
from isocompute_jax.tasks import make_problems, write_problems
from tests import mains
from tests.experiment import builders
from tests.model.tiny import random_params

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def ends_with(capsys, base_run, tmp_path):
    """Runs `base_run` with changed fields in this process, and checks code, message and that nothing was begun."""

    def check(code: int, *parts: str, workdir: pathlib.Path | None = None, **fields):
        def start():
            config = base_run
            for name, value in fields.items():
                config = override(config, name.replace("__", "."), value)
            loop.train(config, workdir or tmp_path / "run")

        capsys.readouterr()
        assert app.exit_code(start) == code
        message = capsys.readouterr().err
        assert message.startswith("error: ") and message.count("\n") == 1, message
        for part in parts:
            assert part in message, message
        if workdir is None and code == app.BAD_INPUT:
            assert not (tmp_path / "run").exists()
        return message

    return check


# --- fields


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"group_size": 1}, "config.group_size = 1 must be at least 2: a rollout is compared with the mean"),
        ({"loss__policy_loss": "gspo"}, "and it is 'token_mean': its ratio is one number for a whole completion"),
        ({"group_size": 0}, "config.group_size = 0"),
        ({"problems_per_batch": 0}, "config.problems_per_batch = 0"),
        ({"problems_per_batch": 17}, "config.problems_per_batch = 17, but the training set has only 16 problems"),
        ({"mesh__expert": 2}, "config.mesh.expert = 2: the model has no experts"),
        ({"mesh__tensor": 2}, "config.mesh.tensor = 2 does not divide the model's 1 kv heads"),
        ({"mesh__context": 2}, "config.mesh.context = 2 cuts packed rows, and there are none: set config.packing"),
        (
            {"mesh__context": 2, "packing__row_tokens": 16, "packing__trees": "on"},
            "config.mesh.context = 2 cuts packed rows, and config.packing.trees = 'on' makes none",
        ),
        ({"mesh__context": 2, "packing__row_tokens": 17}, "config.packing.row_tokens = 17 is no multiple of config.me"),
        (
            {"mesh__context": 4, "packing__row_tokens": 16},
            "config.mesh.context = 4 devices cannot share the model's 2 ",
        ),
        ({"loss__routing": "replay"}, "config.loss.routing = 'replay': "),
        ({"problem_set_size": 17}, "config.problem_set_size = 17, but"),
        (
            {"curriculum__dynamic_sampling": True, "recipe__zero_variance_groups": "keep"},
            "config.recipe.zero_variance_groups = 'keep' with curriculum.dynamic_sampling",
        ),
        ({"curriculum__max_sampled_batches": 0.5}, "config.curriculum.max_sampled_batches = 0.5 must be at least 1"),
        (
            {"curriculum__train_sets": {"a": "a.jsonl", "b": "b.jsonl"}},
            "config.train_set and config.curriculum.train_sets are both given",
        ),
        (
            {"curriculum__train_sets": {"a": 3, "b": 4}},
            "config.curriculum.train_sets = {'a': 3, 'b': 4}: must map names",
        ),
        ({"curriculum__pools": 0.5}, "config.curriculum.pools = 0.5: must be several values, such as (0.1, 0.5)"),
        ({"curriculum__order": "easy_to_hard"}, "config.curriculum.rate_column = 'avg@16': problem 'p0' was not"),
        (
            {"length__overlong": "all", "length__overlong_tokens": 3},
            "config.length.overlong_tokens = 3 is more than the limit of 2 tokens",
        ),
        ({"length__overlong": "all", "length__overlong_limit": 3}, "config.length.overlong_limit = 3, but completions"),
        (
            {"schedule__group_size": "4@0,8@512,16@256"},
            "'4@0,8@512,16@256' goes back in C, from 512 to 256: give",
        ),
        ({"schedule__group_size": "1@0,8@512"}, "config.schedule.group_size = '1@0,8@512': 1 must be at least 2"),
        ({"group_size": 2**33, "max_compute": 2**40}, "config.group_size = 8589934592: a step of 4 x 8,589,934,592 ro"),
        ({"schedule__group_size": "frontier:no.json"}, "config.schedule.group_size: no.json does not exist; `python"),
        ({"schedule__group_size": "frontier:"}, "config.schedule.group_size: '' cannot be read"),
        (
            {"schedule__group_size": "auto", "curriculum__order": "easy_to_hard"},
            "config.curriculum.order = 'easy_to_hard' has other problems there: leave it shuffled",
        ),
        ({"schedule__group_size": "auto", "evaluation__sets": {}}, "and config.evaluation.sets is empty: name a set"),
        (
            {"schedule__per_problem": "knapsack", "curriculum__dynamic_sampling": True},
            "a step that draws further problems has no fixed number of rollouts to deal; choose one of them",
        ),
        ({"max_compute": 63}, "config.max_compute = 63 is less than one step of 4 x 16 rollouts"),
        ({"sampling__top_p": 0.9}, "config.sampling.top_p = 0.9: truncated sampling has another"),
        ({"sampling__temperature": 0.0}, "config.sampling.temperature = 0.0"),
        ({"sampling__max_prompt_tokens": 5}, "max_prompt_tokens = 5 are possible: raise it, or leave the problem out"),
        ({"sampling__max_tokens": 59}, "config.sampling.max_tokens = 59 make sequences of up to 65"),
        ({"evaluation__k": 5}, "config.evaluation.k = 5 must be at most config.evaluation.samples = 4"),
        ({"evaluation__max_problems": -1}, "config.evaluation.max_problems = -1"),
        ({"evaluation__sets": {"v": "no.jsonl"}}, "no.jsonl: no such problem set"),
        ({"recipe__healthy": "easy", "loss__kl_coef": 0.0}, "Set loss.kl_coef too, or recipe.healthy=none"),
        ({"recipe__healthy": "hard"}, "Set both to 0, or recipe.healthy=none"),
        ({"optimizer__base_lr": float("nan")}, "config.optimizer.base_lr = nan must be above 0"),
        ({"loss__chunk_tokens": 0}, "config.loss.chunk_tokens = 0"),
        ({"mesh__data": 16}, "config.mesh: "),
        ({"max_staleness": -1}, "config.max_staleness = -1 must be at least 0"),
        ({"max_staleness": 8}, "config.max_staleness = 8 with asynchrony = 'in_flight' needs service.endpoints"),
        ({"agreement__every": -1}, "config.agreement.every = -1 must be at least 0"),
        ({"agreement__warn": 0.3}, "config.agreement.warn = 0.3 and config.agreement.stop = 0.2: 0 < warn <= stop"),
        ({"agreement__problems": 0}, "config.agreement.problems = 0 must be at least 1"),
        ({"agreement__samples": 0}, "config.agreement.samples = 0 must be at least 1"),
        ({"service__endpoints": "host"}, "config.service.endpoints"),
        ({"dtype": "float8"}, "config.dtype = 'float8': did you mean 'float32'?"),
        ({"model": ""}, "config.model is empty: give a Hugging Face directory"),
        ({"model": "no/such/model"}, "no/such/model is not a Hugging Face checkpoint: there is no such"),
        ({"train_set": "no/such/set.jsonl"}, "no/such/set.jsonl: no such problem set"),
        ({"train_set": "set.csv"}, "problem sets are .jsonl or .parquet files"),
    ],
)
def test_a_bad_field_is_named(ends_with, fields, message):
    ends_with(app.BAD_INPUT, message, **fields)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"optimizer": 3}, "config.optimizer = 3: is a group of fields; set config.optimizer.FIELD"),
        ({"evaluation": {"sets": "v.jsonl"}}, "config.evaluation.sets = 'v.jsonl': must map names to files"),
        ([], "config = []: is a group of fields"),
    ],
)
def test_a_config_file_with_a_bad_field_is_named(capsys, values, message):
    """Other fields: `test_config.test_a_bad_override_is_named_as_in_a_file`."""
    assert app.exit_code(lambda: from_dict(values) and None) == app.BAD_INPUT
    assert message in capsys.readouterr().err


# --- files


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["set.jsonl: the problem set is empty", "give at least one problem"]),
        ('{"id": "a", "prompt": "1+1=", "task": "numeric"}\n', ["set.jsonl:1", "answer"]),
        ('{"id": "a", "prompt": "1+1=", "answer": "2", "task": "numeric"}\n{"id":\n', ["set.jsonl:2: not JSON"]),
        ('{"id": "a", "prompt": "1+1=", "answer": "2", "task": "chess"}\n', ["set.jsonl:1: task", "chess"]),
    ],
)
def test_a_bad_problem_set_is_named_with_its_line(ends_with, tmp_path, text, parts):
    (tmp_path / "set.jsonl").write_text(text)
    ends_with(app.BAD_INPUT, *parts, train_set=str(tmp_path / "set.jsonl"))
    ends_with(app.BAD_INPUT, *parts, evaluation__sets={"v": str(tmp_path / "set.jsonl")})


def test_a_damaged_model_is_named_with_its_file(ends_with, base_run, tmp_path):
    def damaged(name: str) -> tuple[pathlib.Path, str]:
        path = tmp_path / name
        shutil.copytree(base_run.model, path)
        return path, str(path)

    path, name = damaged("corrupt")
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    ends_with(app.BAD_INPUT, "corrupt/model.safetensors: corrupt safetensors file", model=name)
    path, name = damaged("garbage")
    (path / "model.safetensors").write_bytes(b"garbage")
    ends_with(app.BAD_INPUT, "garbage/model.safetensors: corrupt safetensors file", model=name)
    path, name = damaged("no-weights")
    (path / "model.safetensors").unlink()
    ends_with(app.BAD_INPUT, "no-weights: model.safetensors is missing; the checkpoint is incomplete", model=name)
    path, name = damaged("no-tokenizer")
    (path / "tokenizer.json").unlink()
    ends_with(app.BAD_INPUT, "no-tokenizer has no tokenizer.json", model=name)
    small = dataclasses.replace(builders.MODEL, vocab_size=16)  # the tokenizer has 18 ids
    model.save_checkpoint(tmp_path / "small", small, random_params(small), tokenizer_from=base_run.model)
    ends_with(app.BAD_INPUT, "token ids up to 16, and the model embeds vocab_size = 16", model=str(tmp_path / "small"))
    path, name = damaged("no-config")
    (path / "config.json").unlink()
    ends_with(app.BAD_INPUT, "config.json", model=name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (None, "config.json: not JSON"),
        ({"model_type": "qwen4"}, "config.json: model_type = 'qwen4': "),
        ({"rope_parameters": {"rope_type": "yarn"}}, "config.json: rope_parameters.rope_type = 'yarn' is not"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"rope_parameters": [1]}, "config.json: rope_parameters = [1] is not implemented"),
        ({"max_position_embeddings": 0}, "config.json: ModelConfig.max_positions = 0 must be at least 1"),
    ],
)
def test_a_model_config_is_not_blamed_on_its_tokenizer(ends_with, base_run, tmp_path, changes, message):
    path = shutil.copytree(base_run.model, tmp_path / "model") / "config.json"
    values = json.loads(path.read_text())
    path.write_text("{" if changes is None else json.dumps({**values, **changes}))
    assert "tokenizer" not in ends_with(app.BAD_INPUT, "config.json: ", message, model=str(path.parent))


# --- run directories


def test_a_workdir_of_another_config_is_refused_and_left_alone(ends_with, undisturbed):
    before = {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*")}
    ends_with(
        app.BAD_INPUT,
        "holds a run of another config (config.seed: 0 there, 7 here). Choose another --workdir, or remove it",
        workdir=undisturbed,
        seed=7,
    )
    assert {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*")} == before


def test_a_workdir_that_is_no_run_is_refused_and_left_alone(ends_with, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    (work / "thesis.tex").write_text("years of work")
    ends_with(app.BAD_INPUT, "is not empty and holds no run: choose another --workdir", workdir=work)
    assert [path.name for path in work.iterdir()] == ["thesis.tex"]
    ends_with(app.BAD_INPUT, "there is a file in its place", workdir=work / "thesis.tex")
    ends_with(app.BAD_INPUT, "there is a file in its place", workdir=work / "thesis.tex" / "run")
    nested = '{"config": ' + '{"a": ' * 100_000 + "1" + "}" * 100_001
    for text in ("[]", '{"config": 5}', '{"config": {"evaluation": 3}}', nested):
        (work / "config.json").write_text(text)
        ends_with(app.BAD_INPUT, "config.json: not a run's config", workdir=work)


# --- runs that fail


@pytest.mark.slow
def test_a_diverged_run_fails_with_a_message(ends_with, base_run, tmp_path):
    """With evaluation, and without it where every reward is 0, so that the learner sees no tokens at all."""
    for number, less in enumerate(({}, {"evaluation__sets": {}, "loss__kl_coef": 0.0, "loss__entropy_coef": 0.0})):
        fields, workdir = {"optimizer__base_lr": 1e30, "checkpoint_every_s": 0.0} | less, tmp_path / f"run{number}"
        message = ends_with(app.FAILED, "not finite at step", workdir=workdir, **fields)
        assert "the learning rate is probably too high" in message
        assert not (workdir / run_files.DONE).exists() and not (workdir / "model").exists()


@pytest.mark.parametrize(
    ("step", "written", "busy", "said"),
    [
        (0, False, False, "nothing was trained yet"),
        (3, False, False, "No checkpoint was written yet"),
        (3, False, True, "The last checkpoint is kept"),
        (3, True, False, "The last checkpoint is kept"),
    ],
)
def test_what_is_said_of_the_checkpoint_of_a_diverged_run_is_true(tmp_path, step, written, busy, said):
    if written:
        (tmp_path / run_files.CHECKPOINTS / "2").mkdir(parents=True)
    config, checkpointer = types.SimpleNamespace(model="m"), types.SimpleNamespace(busy=busy)
    parts: Any = types.SimpleNamespace(path=tmp_path, config=config, checkpointer=checkpointer)
    state: Any = types.SimpleNamespace(step=step)
    assert said in str(workdir.Diverged(parts, state, "loss"))


def test_a_model_of_nan_is_not_blamed_on_the_learning_rate(ends_with, base_run, tmp_path):
    config = model.load_config(base_run.model)
    params = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), model.load_params(base_run.model, config))
    model.save_checkpoint(tmp_path / "nan", config, params, tokenizer_from=base_run.model)
    message = ends_with(app.FAILED, "not finite at step 0", workdir=tmp_path / "run", model=str(tmp_path / "nan"))
    assert f"look at the weights of {tmp_path / 'nan'}" in message and "learning rate" not in message


# --- a full disk


@pytest.mark.slow
def test_a_full_disk_is_one_message_and_room_ends_it_the_same(ends_with, often, undisturbed, monkeypatch, tmp_path):
    with builders.small_disk(tmp_path / "disk") as make_room:
        workdir = tmp_path / "disk" / "run"
        with monkeypatch.context() as patch:
            if make_room is None:  # the same, by another way: checkpoints find no room
                patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 20, 1 << 20, 0))
            ends_with(
                app.FAILED,
                "No space left on device",
                "make room, then run the same",
                workdir=workdir,
                checkpoint_every_s=0.0,
            )
        if make_room is not None:
            make_room()
        assert not (workdir / run_files.DONE).exists()
        loop.train(often, workdir)
        builders.assert_same_run(workdir, undisturbed)


def test_a_log_that_cannot_grow_is_one_message_and_room_ends_it_the_same(ends_with, base_run, undisturbed, tmp_path):
    """A limit on the size of files: a write stops within a line, as on a full disk, and needs no privileges."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    workdir = tmp_path / "run"
    try:
        # Lines differ in length by what the clock says in them.
        resource.setrlimit(resource.RLIMIT_FSIZE, ((undisturbed / run_files.METRICS).stat().st_size * 4 // 5, hard))
        ends_with(app.FAILED, "cannot write: File too large", workdir=workdir)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    logs = [workdir / name for name in (run_files.METRICS, run_files.ROLLOUTS)]
    assert not all(log.read_bytes().endswith(b"\n") for log in logs)
    loop.train(base_run, workdir)
    builders.assert_same_run(workdir, undisturbed)


# --- the command line


def ends(arguments: list[str], code: int) -> str:
    done = mains.run("isocompute_jax.train", arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr
    assert done.stderr.count("error: ") == 1
    return done.stderr


CONFIG = "--config=configs/arithmetic_hard.py"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([CONFIG, "--config.grop_size=4"], "unknown config field config.grop_size: did you mean 'group_size'?"),
        ([CONFIG, "--config.mesh.xyz=3"], "config.mesh.xyz: config.mesh has: context, data, expert, fsdp, tensor"),
        (
            [CONFIG, "--config.group_size=four"],
            "--config.group_size=four: must be a whole number, with no spaces around =\n  `python",
        ),
        ([CONFIG, "--wrkdir=x"], "Unknown command line flag 'wrkdir'. Did you mean: workdir ?"),
        ([CONFIG, "run"], "unexpected argument 'run': flags start with --"),
        ([CONFIG], "--workdir is missing: say where the run's files go"),
        (["--config=configs/no.py", "--workdir=x"], "--config=configs/no.py: there is no such file in the working "),
        (["--resolved_config=no.json", "--workdir=x"], "--resolved_config=no.json: not a run's config.json"),
        (["--workdir=x"], "--config is missing: name the config file to start from; --config=configs/start.py"),
    ],
)
def test_a_bad_command_line_is_one_message(arguments, message):
    assert message in ends(arguments, app.BAD_INPUT)
    assert not (ROOT / "x").exists()


def test_a_bad_field_from_the_command_line_is_one_message(base_run, tmp_path):
    values = {**dataclasses.asdict(base_run), "group_size": 1}
    config = tmp_path / "c.json"
    config.write_text(json.dumps({"config": values}))
    arguments = [f"--resolved_config={config}", f"--workdir={tmp_path / 'run'}"]
    message = ends(arguments, app.BAD_INPUT)
    assert message.startswith("error: config.group_size = 1 must be at least 2: ") and message.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_curate_needs_its_flags_and_128_samples_for_extremely_hard(base_run, tmp_path):
    write_problems(tmp_path / "p.jsonl", make_problems(4, seed=0))
    command = [sys.executable, "-m", "isocompute_jax.curate"]
    done = builders.run(command)
    assert done.returncode == app.BAD_INPUT and done.stderr.startswith("error: --problems is missing: Problem set, ")
    command += [f"--problems={tmp_path / 'p.jsonl'}", f"--model={base_run.model}", f"--out={tmp_path / 'out'}"]
    done = builders.run([*command, "--sets=extremely_hard"], env={**os.environ})
    assert done.returncode == app.BAD_INPUT
    assert "needs 128 samples per problem, not 16" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
