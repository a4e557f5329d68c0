"""The mains: their help reads well, and the commands that they and the configs show have flags that exist."""

import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.sweeps.grid import grid, parse_grid
from tests import mains

ROOT = pathlib.Path(__file__).parents[1]
MAINS = {
    "train": [
        "config",
        "config_fields",
        "resolved_config",
        "workdir",
        "dry_run",
        "topology",
        "profile_steps",
        "show_prompts",
    ],
    "evaluate": ["model", "problems", "out", "samples", "k", "compare", "endpoints", "reward"],
    "environment": ["environment", "environment_options", "problems", "seed", "out"],
    "ablate": ["config", "vary", "seeds", "workdir", "workers", "dry_run"],
    "sweep": ["config", "grid", "workdir", "workers", "dry_run"],
    "curate": [
        "model",
        "problems",
        "out",
        "samples",
        "sets",
        "set",
        "mixture",
        "endpoints",
        "data",
        "chat_template",
        "show_prompts",
        "reward",
        "thinking_high",
    ],
    "watch": ["runs", "port", "fit"],
    "study": ["preset", "workdir", "workers", "only"],
    "allocation": ["policy", "rates", "group_size", "block", "most"],
    "check": ["model", "problems", "validation", "reward", "config", "measured", "samples", "max_tokens", "out"],
    "pilot": ["model", "problems", "validation", "budget", "rollouts", "rates", "workdir", "config", "max_tokens"],
    "theory": ["pass_rates", "budget", "group_sizes", "skills"],
    "fit": ["runs", "out", "metric"],
    "export": ["run", "checkpoint", "out", "model"],
    "make_model": ["from_gguf", "family", "out", "tokenizer_from", "num_experts"],
    "plan": ["configs"],
    "serve": ["engine", "model", "host", "port", "token_file"],
    "health": ["address", "ca_file", "answers"],
    "convert": ["source", "out", "adapter", "columns", "task", "extra"],
    "split": ["source", "out", "validation", "strata", "nested", "seed"],
}


@pytest.mark.parametrize("name", MAINS)
def test_help_ends_well_and_names_the_flags(name):
    done = mains.run(f"isocompute_jax.{name}", ["--help"])
    assert (done.returncode, done.stderr) == (0, "")
    assert f"python -m isocompute_jax.{name}" in done.stdout
    for flag in MAINS[name]:
        assert re.search(rf"^ +--(\[no\])?{flag}: \S", done.stdout, re.MULTILINE), flag


def test_help_that_nobody_reads_to_the_end_is_no_error():
    command = f"{shlex.quote(sys.executable)} -m isocompute_jax.make_model --help | true"
    shell = ["bash", "-o", "pipefail", "-c", command]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def documented_commands() -> list[tuple[str, str]]:
    """(file, command) of every `python -m isocompute_jax...` in a main's or a config's docstring."""
    found = []
    patterns = ("isocompute_jax/*.py", "isocompute_jax/*/__main__.py", "configs/**/*.py")
    paths = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
    for path in paths:
        text = path.read_text().replace("\\\n", " ")
        lines = re.findall(r"^    python -m (isocompute_jax\.\w+) (.*)$", text, re.MULTILINE)
        for module, arguments in lines:  # dots stand for the arguments of the file's first command
            found.append((str(path.relative_to(ROOT)), f"-m {module} {arguments.replace('...', lines[0][1])}"))
    return found


def parsed_commands():
    """Recipes and layouts show much the same commands; a process for each is left to `make test-slow`."""
    alike = re.compile(r"configs/(?!arithmetic_hard|start|dapo\.py|scalerl_embedded)")
    return [
        pytest.param(file, command, marks=[pytest.mark.slow] if alike.match(file) else [])
        for file, command in documented_commands()
    ]


@pytest.mark.parametrize(("file", "command"), parsed_commands())
def test_documented_commands_parse(file, command):
    _, module, *arguments = shlex.split(command)
    assert module.removeprefix("isocompute_jax.") in MAINS
    done = mains.run(module, [*arguments, "--only_check_args"])  # absl's flag: parse, and end
    assert (done.returncode, done.stderr) == (0, "")
    for argument in arguments:
        if argument.startswith("--grid="):
            assert grid(
                RunConfig(model="m", train_set="t.jsonl", max_compute=2**18), parse_grid(argument[7:], RunConfig)
            )


def test_there_are_commands_to_check():
    assert {file for file, _ in documented_commands()} >= {
        "isocompute_jax/train.py",
        "isocompute_jax/sweep.py",
        "isocompute_jax/curate.py",
        "isocompute_jax/study/__main__.py",
        "isocompute_jax/fit/__main__.py",
        "configs/arithmetic_hard.py",
    }
