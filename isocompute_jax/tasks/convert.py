r"""Any file of problems to ours: rows are read, adapted or renamed, checked, and written without repetitions.

An adapter is one small function for the layout of a published data set, from the columns of a row to ours. It gives
`prompt` and `answer`, and where the data set has them `id`, measured rates, and further columns worth keeping, which
`Problem.extra` then has. Prompts are left as they were published, the answer format that some of them ask for included.
Layouts are those of the data sets' cards and of their users' code:

- DAPO-Math-17k: arXiv 2503.14476
- Guru: arXiv 2506.14965
- Polaris-53K: of the POLARIS project
- DeepCoder: of the Agentica project
- AIME: the competition's problems, in tables that several people have made
- GSM8K: arXiv 2110.14168
- MATH: arXiv 2103.03874
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import json
import logging
import pathlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from isocompute_jax.options import described, option, parse_renames, unknown_word
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks.graders.registry import check_named_by_file
from isocompute_jax.tasks.problem_sets import is_extra, problem_of
from isocompute_jax.tasks.rows import ABSENT, SUFFIXES, Number, Row, as_in_file, at_path, plain, read_rows, renamed

LOG = logging.getLogger(__name__)

ALL = "all"
SHOWN = 5
"""Rows that are named one by one where many are left out."""

Columns = Mapping[str, Any]

_BOX = re.compile(r"\\f?box(?:ed)?\s*(?:(\{)|(\S))")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


# --- layouts of published data sets


class Adapter(NamedTuple):
    """How the rows of one data set become ours."""

    convert: Callable[[Columns], dict[str, Any]]  # columns of a row -> our columns
    task: str  # grades its problems, unless told otherwise
    columns: tuple[str, ...]  # those that `convert` reads


def dapo_math_17k(row: Columns) -> dict[str, Any]:
    """`prompt` (messages), `reward_model.ground_truth`, `extra_info.index`; keeps `data_source`, `ability`.

    The published file has every problem a hundred times over; repeated rows are dropped on conversion.
    """
    return {
        "id": _first(row, "extra_info.index"),
        "prompt": _needed(row, "prompt"),
        "answer": _needed(row, "reward_model.ground_truth"),
        **_kept(row, "data_source", "ability"),
    }


def guru_math(row: Columns) -> dict[str, Any]:
    """`prompt` (messages), `reward_model.ground_truth`; keeps `data_source`, `ability` and both models' pass rates.

    The rates stay under their own names, `qwen2.5_7b_pass_rate` and `qwen3_30b_pass_rate`: of how many samples they are
    the file does not say. `isocompute_jax.split --strata` takes them.
    """
    index = _first(row, "extra_info.index")
    return {
        "id": None if index is None else f"{_first(row, 'data_source') or 'guru'}-{index}",
        "prompt": _needed(row, "prompt"),
        "answer": _needed(row, "reward_model.ground_truth"),
        **_kept(row, "data_source", "ability", "qwen2.5_7b_pass_rate", "qwen3_30b_pass_rate"),
    }


def polaris_53k(row: Columns) -> dict[str, Any]:
    """`problem`, `answer`, and `difficulty`, the share of eight samples that were right: `3/8` is `avg@8` = 0.375.

    It is the rate of the authors' model (DeepSeek-R1-Distill-Qwen-7B), not of yours.
    """
    solved, slash, samples = str(_needed(row, "difficulty")).partition("/")
    if not (slash and solved.isdecimal() and samples.isdecimal() and int(samples) >= max(1, int(solved))):
        raise InputError(f"difficulty: {row['difficulty']!r} is no share of samples, such as 3/8")
    return {
        "prompt": _needed(row, "problem"),
        "answer": _needed(row, "answer"),
        f"avg@{int(samples)}": Number(int(solved) / int(samples)),
    }


def deepcoder(row: Columns) -> dict[str, Any]:
    """`problem`, `starter_code`, `tests`: the answer is the tests as JSON, in any of the shapes that task `code` reads.

    A function's name that stands in `metadata` of the row is put into each test that names none.
    """
    tests, metadata = _from_json(_needed(row, "tests")), _from_json(_first(row, "metadata"))
    name = next((metadata[key] for key in ("func_name", "fn_name") if metadata.get(key)), None) if metadata else None
    if name and isinstance(tests, list):
        tests = [{"metadata": {"func_name": name}, **test} if isinstance(test, Mapping) else test for test in tests]
    elif name and isinstance(tests, Mapping):
        tests = {"fn_name": name, **tests}
    prompt, begun = _needed(row, "problem"), _first(row, "starter_code")
    return {
        "prompt": f"{prompt}\n\nBegin with this code:\n```python\n{begun}\n```" if begun else prompt,
        "answer": json.dumps(tests, ensure_ascii=False),
    }


def aime(row: Columns) -> dict[str, Any]:
    """`ID`, `Problem` (or `Question`), `Answer`, in whatever case; answers are 0 to 999, without leading zeros."""
    columns = {name.lower(): value for name, value in row.items()}
    answer = str(_needed(columns, "answer")).strip()
    if not re.fullmatch(r"\d{1,3}(\.0)?", answer):
        raise InputError(f"answer: {answer!r} is no whole number from 0 to 999, as AIME's are")
    problem = _first(columns, "problem") or _needed(columns, "question")
    return {"id": _first(columns, "id"), "prompt": problem, "answer": str(int(float(answer)))}


def gsm8k(row: Columns) -> dict[str, Any]:
    """`question`, and of `answer` what stands behind `####`, without thousands separators."""
    solution = _needed(row, "answer")
    _, marker, answer = str(solution).rpartition("####")
    if not marker:
        raise InputError("answer: has no '####', behind which the number stands")
    return {"prompt": _needed(row, "question"), "answer": re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", answer.strip())}


def hendrycks_math(row: Columns) -> dict[str, Any]:
    r"""`problem`, `answer` or else the last `\boxed` of `solution`; keeps `level`, `type`, `subject`."""
    return {
        "id": _first(row, "unique_id"),
        "prompt": _needed(row, "problem"),
        "answer": _first(row, "answer") or last_box(_needed(row, "solution")),
        **_kept(row, "level", "type", "subject"),
    }


VERL = ("prompt", "reward_model", "extra_info", "data_source", "ability")
"""Columns of verl's layout, which DAPO and Guru are published in."""

ADAPTERS = {
    "dapo_math_17k": Adapter(dapo_math_17k, "math", VERL),
    "guru_math": Adapter(guru_math, "math", (*VERL, "qwen2.5_7b_pass_rate", "qwen3_30b_pass_rate")),
    "polaris_53k": Adapter(polaris_53k, "math", ("problem", "answer", "difficulty")),
    "deepcoder": Adapter(deepcoder, "code", ("problem", "starter_code", "tests", "metadata")),
    "aime": Adapter(aime, "numeric", tuple(
        case(name) for name in ("id", "problem", "question", "answer") for case in (str.lower, str.upper, str.title)
    )),
    "gsm8k": Adapter(gsm8k, "numeric", ("question", "answer")),
    "math": Adapter(hendrycks_math, "math",
                    ("unique_id", "problem", "solution", "answer", "level", "type", "subject")),
}  # fmt: skip
"""By the name that `--adapter` takes."""


def last_box(text: str) -> str:
    r"""What the last `\boxed{...}` (or `\fbox{...}`, or `\boxed 5`) of a solution holds.

    Raises:
      InputError: there is none, or it is not closed.
    """
    boxes = list(_BOX.finditer(text))
    if not boxes:
        raise InputError(r"solution: has no \boxed, which holds the answer")
    found = boxes[-1]
    if not found[1]:
        return found[2]
    depth = 1
    for brace in _BRACE.finditer(text, found.end()):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if not depth:
            return text[found.end() : brace.start()].strip()
    raise InputError(r"solution: its last \boxed{ is not closed")


def _first(row: Columns, path: str) -> Any:
    """The value at a path; None where there is none."""
    value = at_path(row, path)
    return None if value is ABSENT else value


def _needed(row: Columns, path: str) -> Any:
    value = _first(row, path)
    if value is None:
        raise InputError(f"{path}: missing; this is not the layout that the adapter is for, or the row is incomplete")
    return value


def _kept(row: Columns, *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names if row.get(name) is not None}


def _from_json(value: Any) -> Any:
    """What a text of JSON says; anything else as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return plain(value, "tests")
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InputError(f"tests: not JSON ({error})") from None


# --- conversion


@described
@dataclasses.dataclass(frozen=True)
class ConvertOptions:
    """How the rows of a file become problems."""

    adapter: str = option("", f"Layout of a published data set: {', '.join(ADAPTERS)}; see docs/problems.md.")
    columns: Mapping[str, str] = option(
        default_factory=dict,
        help="theirs:ours,...: renames columns, such as question:prompt,reward_model.ground_truth:answer; a path leads "
        "into nested ones. Ours are id, prompt, prompt_tokens, answer, task, avg@k; others are kept under that name. "
        "Under instruction:prompt the row's `input` stands behind it, as in Alpaca's prompts.",
        parse=functools.partial(parse_renames, example="such as question:prompt"),
    )
    task: str = option("", "Task of the rows that name none, in place of the adapter's own.")
    extra: tuple[str, ...] = option(
        (),
        "Other columns to keep for reward functions: their names, all, or none. By default all of them, or those that "
        "the adapter keeps. Worked solutions take most of a file's memory: name what you need.",
    )
    skip_bad_rows: bool = option(False, "Leave out rows that are at fault, and say which; else the first is an error.")

    def __post_init__(self) -> None:
        if self.adapter and self.adapter not in ADAPTERS:
            raise InputError(unknown_word("--adapter", self.adapter, ADAPTERS))
        if self.adapter and self.columns:
            raise InputError("--adapter and --columns: an adapter knows its columns; give one of the two")
        if len(self.extra) > 1 and {ALL, "none"} & set(self.extra):
            raise InputError(f"--extra={','.join(self.extra)}: give names, or all, or none")


def convert(sources: Iterable[pathlib.Path], options: ConvertOptions) -> list[Problem]:
    """Reads files of problems, one after the other; the log says how many rows were left out, and of what fault.

    Rows that repeat an earlier one, prompt and answer, are left out.

    Raises:
      InputError: names file, line and column, and what to do; also where two different problems have one id.
    """
    adapter = ADAPTERS.get(options.adapter)
    kept: dict[str, Problem] = {}
    seen: dict[bytes, dict[str, int]] = {}
    differ: set[str] = set()
    used: collections.Counter[str] = collections.Counter()
    repeated, bad = 0, []
    files = list(_files(sources))
    for path in files:
        for row in read_rows(path, wanted=_wanted(adapter, options)):
            try:
                ours = _our_columns(row, adapter, options, used)
                key, others = _content(ours), {name: hash(repr(ours[name])) for name in ours if is_extra(name)}
                if key in seen:
                    repeated += 1
                    differ |= {name for name, value in others.items() if value != seen[key].get(name)}
                    continue
                seen[key] = others
                problem = _problem(ours, row, path, options)
                if problem.id in kept:
                    raise InputError(f"{row.where}: id: {problem.id!r} is that of another problem; ids must differ")
            except InputError as error:
                if not options.skip_bad_rows:
                    raise
                bad.append(str(error))
                continue
            kept[problem.id] = problem
    _check_used(options.columns, used, files)
    if not kept:
        first = f"; the first row that is at fault: {bad[0]}" if bad else ""
        raise InputError(f"{', '.join(map(str, files))}: no problems in it{first}")
    if repeated:
        differing = f"; they differ in {', '.join(sorted(differ))}, which no prompt has" if differ else ""
        LOG.info("%d rows repeat an earlier one and were dropped%s", repeated, differing)
    if bad:
        LOG.warning("%d rows are at fault and were left out (--skip_bad_rows):", len(bad))
    for message in bad[:SHOWN]:
        LOG.warning("  %s", message)
    return list(kept.values())


def _our_columns(
    row: Row, adapter: Adapter | None, options: ConvertOptions, used: collections.Counter[str]
) -> dict[str, Any]:
    """A row under our names; counts which columns of `--columns` it has."""
    if adapter is None:
        ours, found = renamed(row.columns, options.columns)
        used.update(found)
        if "instruction" in found and options.columns["instruction"] == "prompt":  # Alpaca's: `input` is what it is of
            parts = [as_in_file(ours.get(name)) for name in ("prompt", "input")]
            if all(isinstance(part, str) and part.strip() for part in parts):
                ours["prompt"] = "\n\n".join(parts)
        return ours
    try:
        ours = adapter.convert(row.columns)
    except InputError as error:
        raise InputError(f"{row.where}: {error}") from None
    others = {name: value for name, value in row.columns.items() if is_extra(name) and name in options.extra}
    return (row.columns | ours if options.extra == (ALL,) else ours | others) | _ours_alone(ours)


def _problem(ours: Mapping[str, Any], row: Row, path: pathlib.Path, options: ConvertOptions) -> Problem:
    adapter = ADAPTERS.get(options.adapter)
    return problem_of(
        ours,
        row.where,
        default_id=f"{path.stem}-{row.number}",
        default_task=options.task or (adapter.task if adapter else None),
        extra=_extra_names(options),
        grader_name=functools.partial(
            check_named_by_file,
            allowed=(options.task,),
            remedy="say it yourself, by --task; else --skip_bad_rows leaves such rows out",
        ),
    )


def _ours_alone(ours: Mapping[str, Any]) -> dict[str, Any]:
    """Ours, empty where the adapter gave none: the file's own columns of these names mean something else."""
    return {name: ours.get(name) for name in ("id", "prompt", "answer", "task", "prompt_tokens")}


def _extra_names(options: ConvertOptions) -> Collection[str] | None:
    """Which columns without a meaning of their own are kept; None for all."""
    if options.extra == ("none",):
        return ()
    if options.extra in ((), (ALL,)) or options.adapter:
        return None
    return {*options.extra, *options.columns.values()}


def _wanted(adapter: Adapter | None, options: ConvertOptions) -> Callable[[str], bool]:
    """Whether a column of the file is read at all."""
    if options.extra == (ALL,) or (adapter is None and not options.extra):
        return lambda name: True
    if adapter is not None:
        named = {*adapter.columns, *options.extra}
    else:
        paths = [path.split(".") for path in options.columns]
        named = {*options.extra, *(".".join(path[:end]) for path in paths for end in range(1, len(path) + 1)), "input"}
    return lambda name: name in named or (adapter is None and not is_extra(name))


def _files(sources: Iterable[pathlib.Path]) -> Iterator[pathlib.Path]:
    """The files themselves, and of directories all that can be read, in order of their names."""
    for source in sources:
        if source.is_dir():
            files = sorted(path for path in source.rglob("*") if path.suffix in SUFFIXES)
            if not files:
                raise InputError(f"{source}: has no {', '.join(SUFFIXES)} file in it")
            yield from files
        elif source.suffix not in SUFFIXES:
            raise InputError(
                f"{source}: unknown extension {source.suffix!r}; what can be read is {', '.join(SUFFIXES)}"
            )
        else:
            yield source


def _check_used(columns: Mapping[str, str], used: Mapping[str, int], files: Sequence[pathlib.Path]) -> None:
    never = [theirs for theirs in columns if not used.get(theirs)]
    covered = {ours for theirs, ours in columns.items() if used.get(theirs)}
    for theirs in never:
        if columns[theirs] not in covered:
            raise InputError(f"--columns: no row of {', '.join(map(str, files))} has {theirs!r}; check its name")


def _content(ours: Mapping[str, Any]) -> bytes:
    """What makes two rows the same problem."""
    content = repr([ours.get(name) for name in ("prompt", "prompt_tokens", "answer", "task")])
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).digest()
