"""configs/start.py: three flags make a run of a model, problems and a reward of one's own; who forgets one is told."""

import json
import pathlib
import re

import pytest

from isocompute_jax.records import run_files
from isocompute_jax.tasks import read_problems
from tests import mains
from tests.tasks.files import write_rows

SHORT = (
    "--config.sampling.max_prompt_tokens=6", "--config.sampling.max_tokens=2", "--config.dtype=float32",
    "--config.packing.row_tokens=64", "--config.recipe.microbatch_tokens=256",
)  # fmt: skip
"""What the model of the tests, whose sequences have at most 64 tokens, wants in place of lengths for real ones."""


@pytest.fixture
def problems(base_run, tmp_path) -> pathlib.Path:
    """A newcomer's: prompts and answers, and neither ids nor tasks."""
    rows = [{"prompt": problem.text, "answer": problem.answer} for problem in read_problems(base_run.train_set)]
    return write_rows(tmp_path / "mine.jsonl", *rows)


def start(workdir: pathlib.Path, *flags: str):
    return mains.run("isocompute_jax.train", ["--config=configs/start.py", f"--workdir={workdir}", *flags])


def test_three_flags_make_a_run(base_run, problems, tmp_path):
    few = ("--config.group_size=8", "--config.problems_per_batch=4", "--config.max_compute=64")
    held = f"--config.evaluation.sets.held={base_run.evaluation.sets['validation']}"  # a name that the file has not
    flags = (f"--config.model={base_run.model}", f"--config.train_set={problems}", "--config.reward=numeric", held)
    done = start(tmp_path / "run", *flags, *SHORT, *few)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / run_files.DONE).exists()
    lines = [json.loads(line) for line in (tmp_path / "run" / run_files.METRICS).read_text().splitlines()]
    assert [line["compute"] for line in lines] == [32, 64]
    evaluations = [json.loads(line) for line in (tmp_path / "run" / run_files.EVAL).read_text().splitlines()]
    assert {line["eval_set"] for line in evaluations} == {"held"}


@pytest.mark.slow
def test_a_run_without_held_out_problems_says_how_to_get_some(base_run, problems, tmp_path):
    """Its own sentence, followed to the letter."""
    few = ("--config.group_size=8", "--config.problems_per_batch=4", "--config.max_compute=32")
    given = {"model": base_run.model, "train_set": problems, "reward": "numeric"}
    flags = [f"--config.{name}={value}" for name, value in given.items()]
    done = start(tmp_path / "run", *flags, *SHORT, *few)
    command, sets = re.findall(r"`python -m isocompute_jax.split (.*)` holds some out; then give (.*)", done.stderr)[0]
    split = mains.run("isocompute_jax.split", command.replace("=sets", f"={tmp_path}/sets").split())
    assert split.returncode == 0 and len(read_problems(tmp_path / "sets" / "validation.jsonl")) == 3, split.stderr
    again = sets.replace("=sets", f"={tmp_path}/sets").split()
    done = start(tmp_path / "again", *flags, *SHORT, *few, *again)
    assert done.returncode == 0 and "holds some out" not in done.stderr, done.stderr
    assert '"eval_set": "validation"' in (tmp_path / "again" / run_files.EVAL).read_text()


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        ("model", "config.model is empty: give a Hugging Face directory, --config.model=DIRECTORY"),
        ("train_set", "config.train_set is empty: give a problem set, --config.train_set=FILE.jsonl (or .parquet)"),
        ("reward", "mine.jsonl:1: task: missing; add the field, or name what grades all problems, such as numeric"),
    ],
)  # fmt: skip
def test_one_that_is_left_out_is_named(base_run, problems, tmp_path, left_out, message):
    given = {"model": base_run.model, "train_set": problems, "reward": "numeric"}
    flags = [f"--config.{name}={value}" for name, value in given.items() if name != left_out]
    done = start(tmp_path / "run", *flags, *SHORT)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and message in done.stderr, done.stderr


@pytest.mark.slow
def test_the_defaults_run_on_a_model_of_make_model(tmp_path, problems):
    """With the lengths, the rows and the dtype that the file has."""
    assert mains.run("isocompute_jax.make_model", [f"--out={tmp_path}/tiny"]).returncode == 0
    few = ("--config.group_size=8", "--config.problems_per_batch=4", "--config.max_compute=32")
    flags = (f"--config.model={tmp_path}/tiny", f"--config.train_set={problems}", "--config.reward=numeric")
    done = start(tmp_path / "run", *flags, *few)
    assert done.returncode == 0 and (tmp_path / "run" / run_files.DONE).exists(), done.stderr
