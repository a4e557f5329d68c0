r"""Published data sets as problems: one small function for each layout, from the columns of a row to ours.

An adapter gives `prompt` and `answer`, and where the data set has them `id`, measured rates, and further columns worth
keeping, which `Problem.extra` then has. Prompts are left as they were published, the answer format that some of them
ask for included. Layouts are those of the data sets' cards and of their users' code:

- DAPO-Math-17k: arXiv 2503.14476
- Guru: arXiv 2506.14965
- Polaris-53K: of the POLARIS project
- DeepCoder: of the Agentica project
- AIME: the competition's problems, in tables that several people have made
- GSM8K: arXiv 2110.14168
- MATH: arXiv 2103.03874
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from isocompute_jax.records.errors import InputError
from isocompute_jax.tasks.rows import ABSENT, Number, at_path, plain

Row = Mapping[str, Any]

_BOX = re.compile(r"\\f?box(?:ed)?\s*(?:(\{)|(\S))")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


class Adapter(NamedTuple):
    """How the rows of one data set become ours.

    Attributes:
      convert: columns of a row -> our columns.
      task: grades its problems, unless told otherwise.
      columns: those that `convert` reads.
    """

    convert: Callable[[Row], dict[str, Any]]
    task: str
    columns: tuple[str, ...]


def dapo_math_17k(row: Row) -> dict[str, Any]:
    """`prompt` (messages), `reward_model.ground_truth`, `extra_info.index`; keeps `data_source`, `ability`.

    The published file has every problem a hundred times over; repeated rows are dropped on conversion.
    """
    return {
        "id": _first(row, "extra_info.index"),
        "prompt": _needed(row, "prompt"),
        "answer": _needed(row, "reward_model.ground_truth"),
        **_kept(row, "data_source", "ability"),
    }


def guru_math(row: Row) -> dict[str, Any]:
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


def polaris_53k(row: Row) -> dict[str, Any]:
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


def deepcoder(row: Row) -> dict[str, Any]:
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


def aime(row: Row) -> dict[str, Any]:
    """`ID`, `Problem` (or `Question`), `Answer`, in whatever case; answers are 0 to 999, without leading zeros."""
    columns = {name.lower(): value for name, value in row.items()}
    answer = str(_needed(columns, "answer")).strip()
    if not re.fullmatch(r"\d{1,3}(\.0)?", answer):
        raise InputError(f"answer: {answer!r} is no whole number from 0 to 999, as AIME's are")
    problem = _first(columns, "problem") or _needed(columns, "question")
    return {"id": _first(columns, "id"), "prompt": problem, "answer": str(int(float(answer)))}


def gsm8k(row: Row) -> dict[str, Any]:
    """`question`, and of `answer` what stands behind `####`, without thousands separators."""
    solution = _needed(row, "answer")
    _, marker, answer = str(solution).rpartition("####")
    if not marker:
        raise InputError("answer: has no '####', behind which the number stands")
    return {"prompt": _needed(row, "question"), "answer": answer.strip().replace(",", "")}


def hendrycks_math(row: Row) -> dict[str, Any]:
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


def _first(row: Row, path: str) -> Any:
    """The value at a path; None where there is none."""
    value = at_path(row, path)
    return None if value is ABSENT else value


def _needed(row: Row, path: str) -> Any:
    value = _first(row, path)
    if value is None:
        raise InputError(f"{path}: missing; this is not the layout that the adapter is for, or the row is incomplete")
    return value


def _kept(row: Row, *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names if row.get(name) is not None}


def _from_json(value: Any) -> Any:
    """What a text of JSON says; anything else as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return plain(value, "tests")
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InputError(f"tests: not JSON ({error})") from None
