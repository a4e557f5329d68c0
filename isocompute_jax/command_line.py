"""The command line: the config file and the fields that flags set in it, and what is said of one that cannot be read.

`--config=FILE` is a Python file whose get_config() returns a dataclass; `--config.FIELD=VALUE` sets a field of it, read
as the field's type.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import json
import os
import pathlib
import re
import runpy
import traceback
import types
import typing
from collections.abc import Sequence
from typing import Any, Literal

from absl import flags

from isocompute_jax.options import nearest_word, unknown_field
from isocompute_jax.records.errors import InputError

FIRST_FIELDS = {"reward": "reward.function"}
"""Groups of fields that a flag of their own name sets: which of their fields it means."""

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

OLD_CONFIG = (
    "config files return RunConfig(...) itself: leave out .editable() and what is imported from ml_collections, and "
    "change a field by dataclasses.replace, or by --config.FIELD=VALUE"
)

_FIELD = re.compile(r"--?(no)?config\.([^=]+)(?:=(.*))?", re.S)
_NO_NUMBER = re.compile(
    r"(?:flag )?(--[^=]+=.*): (?:(invalid literal for int)|could not convert string to float).*", re.S
)


def read_config(arguments: Sequence[str]) -> tuple[list[str], dict[str, Any] | None]:
    """The config that a command line spells.

    Returns:
      The arguments that are no fields of a config, --flagfile read; and the config's fields, group by group, None
      where there is no --config.

    Raises:
      InputError: the file or a field is at fault; names the flag and what to do.
    """
    arguments = [arguments[0], *flags.FLAGS.read_flags_from_files(list(arguments[1:]), force_gnu=False)]
    path = config_path(arguments)
    fields = [found[2] for argument in arguments if (found := _FIELD.fullmatch(argument))]
    if path is None:
        if fields:
            raise InputError(without_config(f"--config.{fields[0]}"))
        return arguments, None
    config = load_config(path)
    values, given, others = dataclasses.asdict(config), set(), []
    left = iter(arguments)
    for argument in left:
        found = _FIELD.fullmatch(argument)
        if found is None:
            others.append(argument)
            continue
        negated, field, text = found.groups()
        field = FIRST_FIELDS.get(field, field)
        kind = field_type(type(config), field, values)
        if text is None:
            text = str(not negated) if kind is bool else next(left, "")
        value = _parsed(text, kind, field)
        _set(values, type(config), field, value, add=field in given and isinstance(value, tuple))
        given.add(field)
    return others, values


def field_type(config: type, dotted: str, values: dict[str, Any]) -> Any:
    """The declared type of a field such as `optimizer.base_lr`, or of an item where it maps names to values.

    Raises:
      InputError: there is no such field; names the nearest.
    """
    kind, group, names = config, "config", dotted.split(".")
    for name in names:
        if typing.get_origin(kind) is dict:
            return typing.get_args(kind)[1]
        if not dataclasses.is_dataclass(kind):
            fault = f"unknown config field {group}.{name}: {group} is one value, and no group of fields"
            raise InputError(f"{fault}\n{SEE_FIELDS}")
        hints = typing.get_type_hints(kind)
        if name not in hints:
            meant = _meant(names[-1], values)
            fault = f"unknown config field {group}.{name}: did you mean config.{meant}?"
            raise InputError(f"{fault if meant else unknown_field(group, name, sorted(hints))}\n{SEE_FIELDS}")
        kind, group = hints[name], f"{group}.{name}"
    return kind


def _parsed(text: str, kind: Any, field: str) -> Any:
    """The value of a field of a type that a text spells; a word of several is checked by the field's class."""
    where, plain = f"--config.{field}={text}", kind
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        if text == "None":
            return None
        plain = next(part for part in typing.get_args(kind) if part is not type(None))
    if plain is bool:
        if text.lower() not in ("true", "t", "1", "false", "f", "0"):
            raise InputError(f"{where}: must be true or false\n{SEE_FIELDS}")
        return text.lower() in ("true", "t", "1")
    if plain in (int, float):
        try:
            return float(text) if plain is float else int(text, 0 if text[:2].lower() in ("0x", "0o") else 10)
        except ValueError:
            what = "a whole number" if plain is int else "a number"
            raise InputError(f"{where}: must be {what}, with no spaces around =\n{SEE_FIELDS}") from None
    if plain is str or typing.get_origin(plain) is Literal:
        return text
    if plain is Any:
        try:
            return json.loads(text)
        except ValueError:
            return text
    literal = _literal(text)
    if typing.get_origin(plain) is tuple:
        return tuple(literal) if isinstance(literal, tuple | list) else (literal,)
    if isinstance(literal, dict) and typing.get_origin(plain) is dict:
        return literal
    what = "maps names to values; set" if typing.get_origin(plain) is dict else "is a group of fields; set"
    inner = "NAME" if typing.get_origin(plain) is dict else "FIELD"
    raise InputError(f"{where}: it {what} --config.{field}.{inner}=VALUE\n{SEE_FIELDS}")


def _literal(text: str) -> Any:
    """What a text is in Python; itself where it is nothing."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def _set(values: dict[str, Any], config: type, dotted: str, value: Any, *, add: bool) -> None:
    """Sets a field in nested mappings; `add` puts values behind those that it has."""
    kind, names = config, dotted.split(".")
    while len(names) > 1 and typing.get_origin(kind) is not dict:
        kind, values = typing.get_type_hints(kind)[names[0]], values[names[0]]
        names = names[1:]
    name = ".".join(names)
    values[name] = values[name] + value if add else value


def explained(error: Exception, config: dict[str, Any] | None) -> str | None:
    """The message for what parsing a command line raised; None where that is a fault of ours.

    Args:
      error: what was raised.
      config: the fields of the config that it names, if it names one.
    """
    if not isinstance(error, flags.Error | TypeError | ValueError):
        return None
    text = str(error)
    if isinstance(error, flags.UnrecognizedFlagError) and config is not None and _meant(error.flagname, config):
        return f"unknown flag --{error.flagname}: did you mean --config.{_meant(error.flagname, config)}?"
    if isinstance(error, flags.UnrecognizedFlagError) and re.match(r"config(\.|$)", error.flagname):
        of_run = ", or --resolved_config=RUN/config.json takes those of a run" * ("resolved_config" in flags.FLAGS)
        return f"--{error.flagname}: this command reads no config; it has flags of its own (--help){of_run}"
    if number := _NO_NUMBER.fullmatch(text):
        text = f"{number[1]}: must be a {'whole ' if number[2] else ''}number, with no spaces around ="
    return f"{text}\n{SEE_HELP}"


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
    """The dataclass that a config file makes; `FILE:TEXT` gives its get_config a text.

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
            raise InputError("it has no function get_config, which returns RunConfig(...)")
        config = made["get_config"](*[argument] * bool(argument))
        if not dataclasses.is_dataclass(config):
            of_old = hasattr(config, "to_dict") and hasattr(config, "lock")  # of a ConfigDict
            kind = type(config).__name__
            raise InputError(OLD_CONFIG if of_old else f"get_config returns a {kind}, and no RunConfig(...)")
        return config
    except Exception as error:
        at = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
        line = f":{at[-1]}" if at else ""
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        raise InputError(f"--config={name}{line} cannot be loaded: {kind}{_of_old(error) or error}") from error


def _of_old(error: Exception) -> str:
    """What to change in a config file of an earlier release, where it fails as these do; empty for other faults."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    editable = isinstance(error, AttributeError) and error.name == "editable"
    return f"{error}; {OLD_CONFIG}" if module == "ml_collections" or editable else ""


def _meant(name: str, config: Any) -> str | None:
    """The field that a name stands for, wherever it is: the run's own, the only one, or by another name."""
    found = [path for path in _paths(config) if path.rpartition(".")[2] == name]
    found = [name] if name in found else found
    return found[0] if len(found) == 1 else ELSEWHERE.get(name)


def _paths(config: Any, path: str = "") -> list[str]:
    """The dotted names of all fields in nested mappings."""
    found = []
    for name, value in config.items():
        found += _paths(value, f"{path}{name}.") if isinstance(value, dict) and value else [f"{path}{name}"]
    return found
