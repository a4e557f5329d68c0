"""What a command line that cannot be read is answered: what is wrong with it, and what was probably meant."""

from __future__ import annotations

import itertools
import os
import pathlib
import re
import runpy
import traceback
from collections.abc import Collection, Sequence
from typing import Any

from absl import flags

from isocompute_jax.options import nearest_word, unknown_field
from isocompute_jax.records.errors import InputError

NO_CONFIG = (
    "--config is missing: name the config file to start from; --config=configs/start.py trains a model of yours on "
    "problems of yours, and the other files of configs/ are recipes"
)
SEE_FIELDS = "`python -m isocompute_jax.train --config_fields` lists the fields."
SEE_HELP = "See --help."

ELSEWHERE = {
    "batch_size": "problems_per_batch",
    "dataset": "train_set",
    "epochs": "max_compute",
    "learning_rate": "optimizer.base_lr",
    "lr": "optimizer.base_lr",
    "max_completion_length": "sampling.max_tokens",
    "max_prompt_length": "sampling.max_prompt_tokens",
    "max_steps": "max_compute",
    "n": "group_size",
    "num_generations": "group_size",
    "num_steps": "max_compute",
    "problems": "train_set",
    "steps": "max_compute",
    "train_batch_size": "problems_per_batch",
    "train_data": "train_set",
    "train_file": "train_set",
    "validation_set": "evaluation.sets.validation",
}
"""What other trainers call a field -> the field."""

_NO_NUMBER = re.compile(
    r"(?:flag )?(--[^=]+=.*): (?:(invalid literal for int)|could not convert string to float).*", re.S
)
_NO_GROUP = re.compile(r"flag --config\.([\w.]+)=(.*): Failed to parse .* as a ConfigDict.*", re.S)


def explained(error: Exception, arguments: Sequence[str], *, maps: Collection[str]) -> str | None:
    """The message for what parsing a command line raised; None where that is a fault of ours.

    Args:
      error: what was raised.
      arguments: the command line.
      maps: fields of the config that map names to values.
    """
    path = config_path(arguments)
    try:
        config = None if path is None else load_config(path)
    except InputError as fault:
        return f"{fault}"
    fields = [text.lstrip("-").partition("=")[0] for text in arguments if re.match(r"--?config\.", text)]
    if fields and path is None and "config" in flags.FLAGS:
        return without_config(f"--{fields[0]}")
    if isinstance(error, AttributeError | KeyError):
        found = next(filter(None, (_unknown(field, config) for field in fields)), None)
        return f"{found or error.args[0]}\n{SEE_FIELDS}"
    if not isinstance(error, flags.Error | TypeError | ValueError):
        return None
    text = str(error)
    if isinstance(error, flags.UnrecognizedFlagError) and config is not None and _meant(error.flagname, config):
        return f"unknown flag --{error.flagname}: did you mean --config.{_meant(error.flagname, config)}?"
    if isinstance(error, flags.UnrecognizedFlagError) and re.match(r"config(\.|$)", error.flagname):
        of_run = ", or --resolved_config=RUN/config.json takes those of a run" * ("resolved_config" in flags.FLAGS)
        return f"--{error.flagname}: this command reads no config; it has flags of its own (--help){of_run}"
    if group := _NO_GROUP.fullmatch(text):
        what, inner = ("maps names to values", "NAME") if group[1] in maps else ("is a group of fields", "FIELD")
        return f"--config.{group[1]}={group[2]}: it {what}; set --config.{group[1]}.{inner}=VALUE\n{SEE_FIELDS}"
    if number := _NO_NUMBER.fullmatch(text):
        text = f"{number[1]}: must be a {'whole ' if number[2] else ''}number, with no spaces around ="
    return f"{text}\n{SEE_FIELDS if '--config.' in text else SEE_HELP}"


def without_config(field: str) -> str:
    """The message where a field of a config is set and there is no config file."""
    whole = "; --resolved_config repeats a run as it was" if "resolved_config" in flags.FLAGS else ""
    return f"{field} changes a field of a config file, and {NO_CONFIG}{whole}"


def stray(argument: str) -> str:
    """The message for an argument that is no flag."""
    files = next((name for name in ("config", "configs") if name in flags.FLAGS), None)
    if argument.endswith(".py") and files:
        hint = f"did you mean --{files}={argument}?"
    elif re.match(r"[\w.]+=", argument):
        hint = f"did you mean --{'config.' * ('config' in flags.FLAGS)}{argument}?"
    elif "runs" in flags.FLAGS and os.path.exists(argument):
        hint = f"did you mean --runs={argument}?"
    elif argument.lower() in ("true", "false"):
        hint = f"a switch takes its value behind =, --NAME={argument.lower()}."
    else:
        hint = "flags start with --, and their value stands behind =, --NAME=VALUE."
    return f"unexpected argument {argument!r}: {hint} {SEE_HELP}"


def config_path(arguments: Sequence[str]) -> str | None:
    """The last config file that a command line names."""
    paths = [found[1] for text in arguments if (found := re.match(r"--?config=(.*)", text))]
    paths += [text for flag, text in itertools.pairwise(arguments) if re.fullmatch(r"--?config", flag)]
    return paths[-1] if paths else None


def load_config(path: str) -> Any:
    """What a config file makes, by itself; for its faults, which config_flags says with a traceback or not at all.

    Raises:
      InputError: names the file, the line and what is wrong.
    """
    name, _, argument = path.partition(":")
    if not os.path.isfile(name):
        near = nearest_word(pathlib.Path(name).stem, sorted(file.stem for file in pathlib.Path("configs").glob("*.py")))
        hint = f"did you mean configs/{near}.py?" if near else "name one, such as configs/start.py of the repository"
        raise InputError(f"--config={path}: there is no such file in the working directory ({os.getcwd()}): {hint}")
    try:
        made = runpy.run_path(name)
        if not callable(made.get("get_config")):
            raise InputError("it has no function get_config, which returns RunConfig(...).editable()")
        return made["get_config"](*[argument] * bool(argument))
    except Exception as error:
        at = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
        line = f":{at[-1]}" if at else ""
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        raise InputError(f"--config={name}{line} cannot be loaded: {kind}{error}") from error


def _unknown(dotted: str, config: Any) -> str | None:
    """The message for a flag of a field that the config has not; None where it has it."""
    group, fields, names = "config", config, dotted.split(".")[1:]
    for name in names:
        if not hasattr(fields, "keys"):  # of a ConfigDict, whose module an installation may be without
            return f"unknown config field {group}.{name}: {group} is one value, and no group of fields"
        if name not in fields:
            if meant := _meant(names[-1], config):
                return f"unknown config field {group}.{name}: did you mean config.{meant}?"
            return unknown_field(group, name, fields)
        group, fields = f"{group}.{name}", fields[name]
    return None


def _meant(name: str, config: Any) -> str | None:
    """The field that a name stands for, wherever it is in the config: the only one of that name, or another's name."""
    found = [path for path in _paths(config) if path.rpartition(".")[2] == name]
    return found[0] if len(found) == 1 else ELSEWHERE.get(name)


def _paths(config: Any, path: str = "") -> list[str]:
    """The dotted names of all fields of a ConfigDict."""
    found = []
    for name, value in config.items():
        found += _paths(value, f"{path}{name}.") if hasattr(value, "items") and value else [f"{path}{name}"]
    return found
