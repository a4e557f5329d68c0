r"""Answers of a model before and after training, of the same problems: gallery/llm_answers.jsonl.

Each side is a record that `curate` keeps with its completions:

    python -m isocompute_jax.curate --model=runs/SmolLM2-135M-Instruct --problems=HELD_OUT.jsonl --out=before \
        --samples=1 --sets= --keep_completions --max_prompt_tokens=64 --max_tokens=16 --chat_template=on \
        --dtype=bfloat16
    (the same with a model that was trained at n = N, --out=after)
    python -m research.llm.answers HELD_OUT.jsonl before after N gallery/llm_answers.jsonl

The first ten of the file are taken, whatever was said of them.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

from isocompute_jax.records.run_files import write_atomic
from isocompute_jax.tasks import read_problems

COUNT = 10
BEFORE, AFTER = "before", "after"


def answers_of(record: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Problem -> its first completion."""
    lines = [
        json.loads(line)
        for part in sorted((record / "completions").glob("*.jsonl"))
        for line in part.read_text(encoding="utf-8").splitlines()
    ]
    return {line["problem"]: line for line in lines if line["rollout"] == 0}


def main(problems: str, before: str, after: str, n: str, out: str) -> None:
    """Writes a line for each of the first problems."""
    sides = {BEFORE: answers_of(pathlib.Path(before)), AFTER: answers_of(pathlib.Path(after))}
    rows = [
        {"prompt": problem.prompt, "answer": problem.answer, "n": int(n)}
        | {side: {key: found[problem.id][key] for key in ("text", "reward")} for side, found in sides.items()}
        for problem in list(read_problems(problems))[:COUNT]
    ]
    write_atomic(pathlib.Path(out), "".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
