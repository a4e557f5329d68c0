"""Options said once: a dataclass whose fields carry their help, bounds and whether they identify a run.

From it come the checks on construction, the flags and the `--help`. A field is declared as

    policy_loss: PolicyLoss = option("clipped", "Policy-gradient term.")

A class calls `check(self)` in `__post_init__`, so that an unknown word never gets as far as an algorithm, whether it
came from a flag, a file or a caller of the library; `@described` tells `help` of the class what its fields say. A main
makes its flags from the class and the class from its flags:

    define_flags(ServerConfig)
    config = from_flags(ServerConfig)
"""

from __future__ import annotations

import ctypes
import dataclasses
import difflib
import inspect
import math
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Literal, TypeVar

from absl import flags

from isocompute_jax.records.errors import Field, InputError, fields_called
from isocompute_jax.records.identity import IDENTITY, LATER, REPLICATE

flags.disclaim_key_flags()  # flags belong to the module that asks for them, whose --help lists them

_HELP, _FLAG, _PARSE, _FINITE = "help", "flag", "parse", "finite"
BOUNDS = ("low", "high", "above", "below")

T = TypeVar("T")
Word = TypeVar("Word", bound=str)


def option(
    default: Any = dataclasses.MISSING,
    help: str = "",
    *,
    default_factory: Any = dataclasses.MISSING,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    finite: bool = True,
    identity: bool = True,
    replicate: bool = False,
    later: bool = False,
    flag: str | None = "",
    parse: Callable[[str, Any], Any] | None = None,
) -> Any:
    """A dataclass field that carries its own help.

    Args:
      default: its default.
      help: what it means, with its unit; a sentence.
      default_factory: makes the default, where that is mutable.
      low: least value, included; of several numbers, of each.
      high: largest value, included.
      above: the same, excluded; what float32 rounds to it is too.
      below: likewise.
      finite: whether it may not be infinite; NaN is never a value.
      identity: whether two runs that differ in it are different runs; False for what only says where or how a run is
        executed (see `records.identity`).
      replicate: whether two runs that differ in it alone repeat one configuration, as with another seed.
      later: whether it came after runs had been recorded; at its default it then tells none of them apart.
      flag: name of its flag where that is not its own; None for no flag.
      parse: (`--NAME`, text) -> value, for what absl has no flag of; of a collection it gets the list of texts. It
        raises InputError, naming the flag.
    """
    metadata = {_HELP: help, _FLAG: flag, _PARSE: parse, _FINITE: finite}
    metadata |= dict(zip(BOUNDS, (low, high, above, below), strict=True))
    metadata |= {IDENTITY: identity, REPLICATE: replicate, LATER: later}
    if default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def described(cls: type[T]) -> type[T]:
    """Class decorator, outside of `dataclass`: its docstring lists the fields with their help, for `help`."""
    fields = [text for field in dataclasses.fields(typing.cast(Any, cls)) if (text := _description(field))]
    wrapped = [textwrap.fill(text, 110, initial_indent="  ", subsequent_indent="    ") for text in fields]
    cls.__doc__ = "\n".join([inspect.cleandoc(cls.__doc__ or ""), "", "Attributes:", *wrapped])
    return cls


def _description(field: dataclasses.Field[Any]) -> str:
    """`name: help (default; bounds)` of a field, or where its group is described; empty for a plain one."""
    if dataclasses.is_dataclass(field.default_factory):
        return f"{field.name}: see `{typing.cast(Any, field.default_factory).__name__}`."
    if not help_of(field):
        return ""
    default = f"default {default_of(field)!r}" if _has_default(field) else ""
    further = "; ".join(filter(None, [default, bounds_of(field)]))
    return f"{field.name}: {help_of(field)}" + (f" ({further})" if further else "")


def help_of(field: dataclasses.Field[Any]) -> str:
    """The help that `option` gave a field; empty for a plain one."""
    return field.metadata.get(_HELP, "")


def default_of(field: dataclasses.Field[Any]) -> Any:
    """A field's default; None for a field that must be given."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def bounds_of(field: dataclasses.Field[Any]) -> str:
    """The bounds that `option` gave a field, in words; empty for none."""
    low, high, above, below = (
        None if bound is None else f"{bound:g}" if isinstance(bound, float) else str(bound)
        for bound in map(field.metadata.get, BOUNDS)
    )
    if low is not None and high is not None:
        return f"between {low} and {high}"
    said = {"at least": low, "above": above, "at most": high, "below": below}
    return " and ".join(f"{words} {bound}" for words, bound in said.items() if bound is not None)


def check(instance: Any, prefix: str | None = None) -> None:
    """Holds every field of a dataclass to its Literal and its bounds; numbers of options are finite in float32.

    Args:
      instance: the dataclass, in its `__post_init__`.
      prefix: stands before a field's name in messages: `--` where fields are flags; the class's name otherwise.

    Raises:
      InputError: names the field, the value, and the nearest known word or the bounds.
    """
    hints = typing.get_type_hints(type(instance))
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        where = field_of(instance, field.name, prefix)
        choices = choices_of(hints[field.name])
        if choices and value not in choices:
            raise InputError(where, unknown_word("", value, choices))
        if value is None or _FINITE not in field.metadata:
            continue
        low, high, above, below = map(field.metadata.get, BOUNDS)
        for v in _each(value):
            if isinstance(v, Integral) and abs(v) >= 2**63:
                raise InputError(where, f" = {value!r} must be a number of 64 bits")
            single = ctypes.c_float(float(v)).value if isinstance(v, Real) else v
            inside = (low is None or v >= low) and (high is None or v <= high)
            if not (inside and (above is None or single > above) and (below is None or single < below)):
                made = f" (float32 makes it {single:g})" if single != v and single in (above, below) else ""
                raise InputError(where, f" = {value!r} must be {bounds_of(field)}{made}")
            if isinstance(v, Real) and not (math.isfinite(single) or (v == v and not field.metadata[_FINITE])):
                raise InputError(where, f" = {value!r} must be finite, as a float32")


def _each(value: Any) -> list[Any]:
    """The values in sequences and mappings."""
    inner = list(value.values()) if isinstance(value, Mapping) else value
    return [v for each in inner for v in _each(each)] if isinstance(inner, tuple | list) else [value]


def field_of(instance: Any, name: str, prefix: str | None = None) -> Field:
    """A field of a dataclass, as its messages call it; `prefix` as in `check`."""
    if prefix == "--":
        name = next(flag_name(field) or name for field in dataclasses.fields(instance) if field.name == name)
    return Field(name, f"{type(instance).__name__}." if prefix is None else prefix)


def choices_of(hint: Any) -> tuple[Any, ...]:
    """The values of a Literal type, None among them where it is optional; empty for every other type."""
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    parts = typing.get_args(hint)
    if type(None) in parts and any(typing.get_origin(part) is Literal for part in parts):
        return tuple(value for part in parts for value in (typing.get_args(part) or (None,)))
    return ()


def unknown_word(where: str, value: Any, known: Iterable[Any]) -> str:
    """The message for a word that is none of the known ones: the nearest of them, and all."""
    known = list(known)
    nearest = nearest_word(str(value), [str(word) for word in known])
    hint = f"did you mean {nearest!r}? " if nearest else ""
    return f"{where} = {value!r}: {hint}known: {', '.join(map(repr, known))}"


def named(functions: Mapping[Word, T], word: Word, what: str) -> T:
    """The function of a closed choice that `word` names.

    Raises:
      InputError: the word is unknown; says `what` was asked for, and the nearest known word.
    """
    if word not in functions:
        raise InputError(unknown_word(what, word, functions))
    return functions[word]


SYMBOLS = {
    "n": "group_size",
    "B_problem": "problems_per_batch",
    "M": "num_steps",
    "C": "max_compute",
    "lr": "base_lr",
}
"""What papers call a field of a config."""


def unknown_field(group: str, name: str, known: Iterable[str]) -> str:
    """The message for a field that a group of a config has not: the nearest of those that it has, or all of them."""
    known = list(known)
    nearest = next((word for word in (SYMBOLS.get(name), nearest_word(name, known)) if word in known), None)
    hint = f"did you mean {nearest!r}?" if nearest else f"{group} has: {', '.join(known)}"
    return f"unknown config field {group}.{name}: {hint}"


def nearest_word(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant: of the same parts in another order, or spelt much alike."""
    known, parts = list(known), sorted(word.split("_"))
    turned = [other for other in known if sorted(other.split("_")) == parts]
    return next(iter(turned or difflib.get_close_matches(word, known, n=1)), None)


def flag_name(field: dataclasses.Field[Any]) -> str | None:
    """The name of a field's flag, without dashes; None where it has none."""
    name = field.metadata.get(_FLAG, "")
    return None if name is None else name or field.name


def define_flags(
    cls: type, flag_values: flags.FlagValues = flags.FLAGS, *, leave_out: Collection[str] = ()
) -> dict[str, flags.FlagHolder[Any]]:
    """Defines a flag for each field of a dataclass: its name, default, help, choices and bounds.

    Supported are bool, int, float, str, Literal, tuples and sequences of these (comma-separated), each of them
    optional too, and every type whose field has a `parse`.

    Args:
      cls: the dataclass.
      flag_values: where the flags are defined; the program's own by default.
      leave_out: fields without a flag here: it is defined by another class, or by hand.

    Returns:
      Field name -> its flag.

    Raises:
      TypeError: a field's type cannot be a flag.
    """
    hints = typing.get_type_hints(cls)
    return {
        field.name: _define(field, hints[field.name], name, flag_values)
        for field in dataclasses.fields(cls)
        if field.init and field.name not in leave_out and (name := flag_name(field)) is not None
    }


def from_flags(cls: type[T], flag_values: flags.FlagValues = flags.FLAGS, **given: Any) -> T:
    """The dataclass that the flags spell; fields without a flag, and flags left alone, keep their defaults.

    Args:
      cls: a dataclass whose flags are defined, by itself or by another class that shares them.
      flag_values: where they are defined.
      **given: values of fields that do not come from their flags.

    Raises:
      InputError: a flag is missing or malformed, or the class refuses a value.
    """
    hints = typing.get_type_hints(cls)
    values = dict(given)
    for field in dataclasses.fields(typing.cast(Any, cls)):
        name = flag_name(field)
        if field.name in given or not field.init or name is None or name not in flag_values:
            continue
        flag = flag_values[name]
        if flag.using_default_value and flag.value == flag.default and _has_default(field):
            continue
        if flag.value is None and not _has_default(field):
            raise InputError(f"--{name} is missing: {help_of(field)} See --help")
        value = _value(field, hints[field.name], name, flag.value)
        if value is not dataclasses.MISSING:
            values[field.name] = value
    with fields_called("--", flag_texts(cls)):
        return cls(**values)


def flag_texts(cls: type, path: str = "") -> dict[str, str]:
    """Field of a dataclass, behind `path` -> its flag, such as `--reward_workers`."""
    fields = dataclasses.fields(typing.cast(Any, cls))
    return {f"{path}{field.name}": f"--{name}" for field in fields if (name := flag_name(field))}


def _define(
    field: dataclasses.Field[Any], hint: Any, name: str, flag_values: flags.FlagValues
) -> flags.FlagHolder[Any]:
    """One flag; the default of what `parse` reads is shown as text and never parsed."""
    default, plain = default_of(field), _without_none(hint)
    low, high, above, below = map(field.metadata.get, BOUNDS)
    low, high = low if above is None else above, high if below is None else below
    rest: dict[str, Any] = {"flag_values": flag_values}
    if _is_collection(plain):
        if field.metadata.get(_PARSE) is None:
            _element(plain)  # raises for what cannot be read
        return flags.DEFINE_list(name, _texts(default), help_of(field), **rest)
    if field.metadata.get(_PARSE) is not None:
        return flags.DEFINE_string(name, None if default is None else str(default), help_of(field), **rest)
    if choices := [str(choice) for choice in choices_of(plain)]:
        return flags.DEFINE_enum(name, None if default is None else str(default), choices, help_of(field), **rest)
    if plain is bool:
        return flags.DEFINE_bool(name, default, help_of(field), **rest)
    if plain is int:
        return flags.DEFINE_integer(name, default, help_of(field), _whole(low), _whole(high), **rest)
    if plain is float:
        return flags.DEFINE_float(name, default, help_of(field), low, high, **rest)
    if plain is str:
        return flags.DEFINE_string(name, default, help_of(field), **rest)
    raise TypeError(f"{field.name}: {hint} cannot be a flag; give the field a parse, or flag=None")


def _value(field: dataclasses.Field[Any], hint: Any, name: str, given: Any) -> Any:
    """A field's value from what its flag holds; MISSING for what was left empty, which keeps the default."""
    parse, plain = field.metadata.get(_PARSE), _without_none(hint)
    if parse is not None:
        if given in (None, "", []) and _has_default(field) and not default_of(field):
            return dataclasses.MISSING
        return parse(f"--{name}", given)
    if _is_collection(plain):
        kind = _element(plain)
        made = [_converted(kind, name, text) for text in given or ()]
        return tuple(made) if typing.get_origin(plain) is tuple else made
    words = {str(choice): choice for choice in choices_of(plain)}
    return words.get(given, given)


def _converted(kind: type, name: str, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise InputError(f"--{name}: {text!r} is not {what}") from None


def _without_none(hint: Any) -> Any:
    """The type of an optional value."""
    parts = typing.get_args(hint)
    if typing.get_origin(hint) not in (typing.Union, types.UnionType) or type(None) not in parts:
        return hint
    left = tuple(part for part in parts if part is not type(None))
    return left[0] if len(left) == 1 else typing.Union[left]  # noqa: UP007 (of a tuple)


def _is_collection(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Sequence | Mapping)


def _element(hint: Any) -> type:
    """The type of a sequence's elements, where it is one for all of them."""
    kinds = {kind for kind in typing.get_args(hint) if kind is not Ellipsis}
    if len(kinds) != 1 or not kinds <= {int, float, str}:
        raise TypeError(f"{hint} cannot be a flag without a parse")
    return kinds.pop()


def _texts(default: Any) -> list[str] | None:
    """A collection's default as the texts that would spell it."""
    if isinstance(default, Mapping):
        return [f"{name}={value}" for name, value in default.items()]
    return None if default is None else [f"{v:g}" if isinstance(v, float) else str(v) for v in default]


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _whole(bound: float | None) -> int | None:
    return None if bound is None else int(bound)


EXPONENTS = {"k": "e3", "M": "e6", "B": "e9"}


def number(flag: str, text: str) -> float:
    """A number, which may end in k, M or B: `1.5M` is 1.5e6."""
    exponent = EXPONENTS.get(text[-1:], "")
    try:
        value = float(text[:-1] + exponent if exponent else text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise InputError(f"{flag}: {text!r} is not a number")
    return value


def numbers(flag: str, texts: Sequence[str]) -> tuple[float, ...]:
    """Numbers, as in `1e6,4M`."""
    return tuple(number(flag, text) for text in texts)


def pair(flag: str, texts: Sequence[str]) -> tuple[float, float]:
    """Two numbers."""
    if len(texts) != 2:
        raise InputError(f"{flag} takes two numbers, not {len(texts)}")
    return number(flag, texts[0]), number(flag, texts[1])


def named_numbers(flag: str, items: Sequence[str]) -> dict[str, float]:
    """Numbers by name, as in `A=0.61,B=1`."""
    return {name: number(flag, text) for name, text in _named_texts(flag, items).items()}


def named_pairs(flag: str, items: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Ranges by name, as in `A=0.5:0.9,B=0.3:3`."""
    return {name: pair(flag, text.split(":")) for name, text in _named_texts(flag, items).items()}


def _named_texts(flag: str, items: Sequence[str]) -> dict[str, str]:
    """name=value items as a mapping."""
    found: dict[str, str] = {}
    for item in items:
        name, equals, value = (part.strip() for part in item.partition("="))
        if not (name and equals and value) or name in found:
            raise InputError(f"{flag}: {item!r} is not of the form name=value, each name once")
        found[name] = value
    return found


def parse_renames(flag: str, items: Sequence[str], *, example: str) -> dict[str, str]:
    """The items of the flag as theirs -> ours; split at the last colon, since their names may have some.

    Several of theirs may be one of ours, for tables of several kinds; of those that one table has, the first counts.

    Args:
      flag: its name, for messages.
      items: `theirs:ours` each.
      example: what a message shows of the form.

    Raises:
      InputError: an item is not of that form, or one of theirs is given twice.
    """
    columns: dict[str, str] = {}
    for item in items:
        theirs, colon, ours = (part.strip() for part in item.rpartition(":"))
        if not (theirs and colon and ours):
            raise InputError(f"{flag}: {item!r} is not of the form theirs:ours, {example}")
        if theirs in columns:
            raise InputError(f"{flag}: {theirs!r} is given twice, as {columns[theirs]} and as {ours}")
        columns[theirs] = ours
    return columns
