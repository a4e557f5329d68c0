"""Wrong first commands: each ends with exit code 2 and a sentence that says what is wrong and what to do.

The real mains, as a newcomer calls them. What is known before anything heavy is imported is said before.
"""

import json
import pathlib
import re

import pytest

from tests import mains
from tests.experiment import builders

SLOW = [pytest.mark.slow]  # a tokenizer is read first, or pandas, whose import takes seconds
START = "train --config=configs/start.py --workdir={here}/run"
MINE = (
    f"{START} --config.model={{here}}/model --config.train_set={{here}}/train.jsonl "
    "--config.sampling.max_prompt_tokens=6 --config.sampling.max_tokens=2"  # the model's sequences are short
)

COMMANDS = [
    # The config file.
    ("train", "--config is missing: name the config file to start from; --config=configs/start.py trains a model of"),
    ("train --config.model=DIR", "--config.model changes a field of a config file, and --config is missing: name the"),
    ("sweep --config.seed=1", "--config.seed changes a field of a config file, and --config is missing: name the conf"),
    ("ablate --config.seed 1", "--config.seed changes a field of a config file, and --config is missing: name the"),
    ("train --config.evaluation.sets.v=F", "--config.evaluation.sets.v changes a field of a config file, and --config"),
    ("train --resolved_config=c.json --config.seed=1", "--resolved_config repeats a run as it was"),
    ("curate --config=configs/start.py", "--config: this command reads no config; it has flags of its own (--help), o"),
    ("curate --config.model=DIR", "--config.model: this command reads no config; it has flags of its own (--help), or"),
    ("train --config=configs/strat.py", "): did you mean configs/start.py?"),
    ("train --config=configs", "): name one, such as configs/start.py of the repository"),
    ("train configs/start.py", "unexpected argument 'configs/start.py': did you mean --config=configs/start.py?"),
    ("train --config={here}/rewards.py", "rewards.py cannot be loaded: it has no function get_config, which returns R"),
    ("train --config={here}/broken.py", "broken.py:2 cannot be loaded: ModuleNotFoundError: No module named 'nothing'"),
    # Flags.
    (f"{START} --config.groupsize=4", "unknown config field config.groupsize: did you mean 'group_size'?"),
    (f"{START} --config.learning_rate=1e-5", "config.learning_rate: did you mean config.optimizer.base_lr?"),
    (f"{START} --config.max_tokens=99", "config.max_tokens: did you mean config.sampling.max_tokens?"),
    (f"{START} --group_size=4", "unknown flag --group_size: did you mean --config.group_size?"),
    (f"{START} group_size=4", "unexpected argument 'group_size=4': did you mean --config.group_size=4?"),
    (f"{START} --dry_run true", "unexpected argument 'true': a switch takes its value behind =, --NAME=true."),
    (f"{START} --config.group_size=four", "--config.group_size=four: must be a whole number"),
    (f"{START} --config.group_size = 4", "--config.group_size==: must be a whole number, with no spaces around ="),
    (f"{START} --config.optimizer=1e-5", "it is a group of fields; set --config.optimizer.FIELD=VALUE"),
    (f"{START} --config.evaluation.sets=v.jsonl", "it maps names to values; set --config.evaluation.sets.NAME=VALUE"),
    (f"{START} --config.dtype=bf16", "config.dtype = 'bf16': did you mean 'bfloat16'? known: 'float32', 'bfloat16'"),
    ("train --config=configs/start.py", "--workdir is missing: say where the run's files go, such as --workdir="),
    # The model.
    (START, "config.model is empty: give a Hugging Face directory, --config.model=DIRECTORY"),
    (f"{MINE} --config.model=Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B is not a Hugging Face checkpoint: there is no such "
     "directory, and nothing is downloaded here: `hf download NAME --local-dir DIRECTORY` fetches a model"),
    (f"{MINE} --config.model={{here}}", "is not a Hugging Face checkpoint: it has no config.json"),
    # Problems.
    (f"{START} --config.model={{here}}/model", "config.train_set is empty: give a problem set, --config.train_set="),
    (f"{MINE} --config.max_compute=10", "config.max_compute = 10 is less than one step of 32 x 16 rollouts"),
    (f"{MINE} --config.recipe.minibatches=5", "does not divide config.problems_per_batch = 32 into equal parts; possi"),
    ("curate --problems={here}/train.jsonl", "--out is missing: Directory to write the record and the cut sets to"),
    ("convert --source={here}/train.jsonl --out={here}/run.jsonl --columns=prompt:question", "--columns"),
    ("split --source={here}/train.jsonl --out={here}/run", "--validation=300: cannot split 16 problems"),
    # Where it goes.
    (f"{MINE} --workdir={{here}}/rewards.py", "there is a file in its place; choose another --workdir"),
    (f"{MINE} --workdir={{here}}/tokenizer", "is not empty and holds no run: choose another --workdir"),
    (f"{MINE} --workdir={{here}}/model", "not a run's config (KeyError('config')); choose another --workdir"),
    # Other commands.
    ("sweep --workdir={here}/run --config=configs/start.py", "--grid is missing: say which fields take which values"),
    ("sweep --workdir={here}/run --config=configs/start.py --grid=group_size", "'group_size' is not FIELD=VALUE,VALUE"),
    ("sweep --workdir={here}/run --config=configs/start.py --grid=group_size=[4,8]", "must be a whole number, values"),
    (f"{MINE} --vary=learning_rate".replace("train", "ablate", 1), "config.evaluation.sets is empty: no problems are"),
    ("plan configs/start.py", "unexpected argument 'configs/start.py': did you mean --configs=configs/start.py?"),
    ("sweep status --workdir={here}/run", "is no sweep's directory: it has no sweep.json and no configs"),
    ("study --preset=quik", "--preset=quik: value should be one of <smoke|quick|full|other_base|other_size|llm|llm_"),
    ("fit", "--runs is missing: "),
    ("fit --runs={here}/table.csv --out={here}/run", "no column avg@4. Its columns with numbers are "),
    ("watch --runs={here}/nowhere", "is no directory: give one that holds run directories"),
    ("serve", "--engine is missing: --engine=jax needs nothing more, --engine=vllm an environment of its own"),
    ("theory", "--pass_rates is missing: give a problem set that was measured, by `isocompute_jax.curate`"),
    ("make_model", "--out is missing: say where the model goes, such as --out=runs/tiny"),
]  # fmt: skip
LATER = [
    ("fit --runs={here}/nowhere --out={here}/run", "nowhere does not exist; give run directories, folders of them, ta"),
    ("fit --runs={here}/model --out={here}/run", "neither a run directory (a folder with config.json and eval.jsonl)"),
    ("fit {here}/train.jsonl", "/train.jsonl': did you mean --runs="),
    ("fit --runs={here}/rewards.py --out={here}/run", "rewards.py is neither a directory nor a table (.csv, .tsv, .js"),
    ("curate --problems={here}/nowhere.jsonl --out={here}/run --model={here}/model", "no such problem set; check the"),
    (f"{MINE} --config.train_set=openai/gsm8k", "problem sets are .jsonl or .parquet files of this machine, which `py"),
    (f"{MINE} --config.train_set={{here}}/fields.jsonl", "fields.jsonl:1: prompt: missing or empty; add it, or delete "
     "the row (is it question? python -m isocompute_jax.convert --columns=theirs:prompt renames it)"),
    (f"{MINE} --config.train_set={{here}}/bad.jsonl", "bad.jsonl:1: not JSON in UTF-8 (Expecting value: "),
    (f"{MINE} --config.train_set={{here}}/empty.jsonl", "the problem set is empty; give at least one problem"),
    (f"{MINE} --config.reward=numerc", "did you mean 'numeric'? known: 'arithmetic'"),
    (f"{MINE} --config.reward=rewards.py", "'rewards.py' is a file: name a function in it, rewards:FUNCTION"),
    (f"{MINE} --config.reward=nowhere:f", "there is no module 'nowhere'; it is looked for in the working directory ("),
    (MINE, "problems_per_batch = 32, but the training set has only 16 problems: lower problems_per_batch or train on"),
    (f"{MINE} --config.problems_per_batch=4 --workdir=/proc/run", "--workdir=/proc/run cannot be written (No such fil"),
]  # fmt: skip


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> pathlib.Path:
    """A model and problems that are well, and files that are not."""
    path = tmp_path_factory.mktemp("here")
    builders.make_inputs(path)
    files = {
        "rewards.py": "def brief(problem, completion): return 1.0\n",
        "broken.py": "# A config.\nimport nothing\n",
        "table.csv": "run,compute,amount\na,1,0.2\na,2,0.3\n",
        "fields.jsonl": json.dumps({"question": "1+1=", "answer": "2"}),
        "bad.jsonl": '{"prompt": "1+1=", "answer":\n',
        "empty.jsonl": "",
    }
    for name, text in files.items():
        (path / name).write_text(text)
    return path


def ids(value: str) -> str:
    return value.replace("{here}/", "")[:60]


@pytest.mark.parametrize(
    ("command", "message"), [*COMMANDS, *(pytest.param(*each, marks=SLOW) for each in LATER)], ids=ids
)
def test_a_wrong_first_command_is_answered(here, command, message):
    name, *arguments = command.replace("{here}", str(here)).split()
    done = mains.run(f"isocompute_jax.{name}", arguments)
    lines = [line for line in done.stderr.splitlines() if not re.match(r"\d\d:\d\d:\d\d ", line)]  # of the log
    assert done.returncode == 2 and lines[0].startswith("error: ") and len(lines) <= 2, done.stderr
    assert message in done.stderr
    assert not (here / "run").exists()


def test_without_a_command_all_are_listed():
    done = mains.run("isocompute_jax", ["train"])
    assert done.returncode == 2
    first, _, *listed = done.stderr.splitlines()
    assert first == "error: name the command with a dot: python -m isocompute_jax.train"
    assert {line.split()[0] for line in listed} >= {"train", "sweep", "fit", "curate", "study", "watch", "theory"}
