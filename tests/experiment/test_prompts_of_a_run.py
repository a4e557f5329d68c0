"""Prompts in a run: one rendering for training, evaluation, agreement checks and `--show_prompts`."""

from __future__ import annotations

import dataclasses

import pytest
from transformers import AutoTokenizer

from isocompute_jax import model
from isocompute_jax.experiment import build, loop
from isocompute_jax.experiment.config import AlarmsConfig, EvaluationConfig, PromptConfig, SamplingConfig, override
from isocompute_jax.experiment.evaluation import probes
from isocompute_jax.experiment.inputs import read_inputs, show_prompts_of_run
from isocompute_jax.experiment.rollouts import make_requests
from isocompute_jax.records import identity, run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import write_problems
from tests import mains
from tests.experiment import builders
from tests.model.tiny import random_params
from tests.tasks.chat_tokenizers import save_chatml

PROMPTS = PromptConfig(system="Be brief.", suffix="Digits only.", generation_prefix="<think>", template_options={})
LIMIT = 140


@pytest.fixture(scope="module")
def chat_run(tmp_path_factory):
    """A run whose problems are chats, of a random model with one token per byte."""
    path = tmp_path_factory.mktemp("chats")
    shape = dataclasses.replace(builders.MODEL, vocab_size=272, max_positions=256)
    save_chatml(path / "tokenizer")
    model.save_checkpoint(path / "model", shape, random_params(shape, scale=0.1), tokenizer_from=path / "tokenizer")
    problems = [
        Problem(f"p{i}", ({"role": "user", "content": f"{i}+{i}?"},), str(i % 10), "numeric") for i in range(24)
    ]
    write_problems(path / "train.jsonl", problems[:16])
    write_problems(path / "validation.jsonl", problems[16:])
    config = builders.make_inputs(path / "unused")
    return dataclasses.replace(
        config,
        model=str(path / "model"),
        train_set=str(path / "train.jsonl"),
        max_compute=64 * 2,
        prompts=PROMPTS,
        sampling=SamplingConfig(max_prompt_tokens=LIMIT, max_tokens=2),
        evaluation=dataclasses.replace(config.evaluation, sets={"validation": str(path / "validation.jsonl")}),
    )


def rendered(config, problem: Problem) -> list[int]:
    """By transformers, with the messages written out."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"{problem.text}\nDigits only."},
    ]
    tokenizer = AutoTokenizer.from_pretrained(config.model)
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer(text + "<think>", add_special_tokens=False)["input_ids"]


def test_all_requests_of_a_run_have_the_same_prompts(chat_run):
    config = chat_run.resolved()
    inputs = read_inputs(config)
    expected = {problem.id: rendered(config, problem) for problem in inputs.problems}
    batch = next(inputs.stream)
    training = build.training_requests(config, inputs.prompts, batch, 3, config.group_size)
    checks = probes(inputs.problems, inputs.prompts, config, step=3)
    assert [request.problem_id for request in training] == [problem.id for problem in batch]
    for request in (*training, *checks):
        assert request.prompt_tokens.tolist() == expected[request.problem_id]
        assert request.stop_tokens == inputs.tokenizer.eos_ids
    # What the stream gives are the problems that were read, so that nothing is rendered again.
    assert all(a.prompt_tokens is inputs.prompts.encode([b])[0] for a, b in zip(training, batch, strict=True))
    held_out = inputs.evaluation_sets["validation"]
    [first, *_] = make_requests(held_out, inputs.prompts, config.sampling, group_size=1, seed=0, step=0)
    assert first.prompt_tokens.tolist() == rendered(config, held_out[0])


def test_a_rendered_prompt_has_to_fit(chat_run):
    """It is the rendered one that counts: the system message's tokens too."""
    sampling = dataclasses.replace(chat_run.sampling, max_prompt_tokens=40)
    config = dataclasses.replace(chat_run, sampling=sampling).resolved()
    with pytest.raises(InputError, match=r"problem 'p0': its prompt has \d+ tokens, and between 1 and .* = 40"):
        read_inputs(config)
    plain = dataclasses.replace(config, prompts=PromptConfig())
    assert len(read_inputs(plain).prompts.encode(read_inputs(plain).problems[:1])[0]) <= 40


def test_rendering_is_part_of_what_a_run_is(chat_run):
    config = dataclasses.replace(chat_run, prompts=PromptConfig())
    assert not [name for name in identity.identity(config) if name.startswith("prompts")]  # as runs before it
    changed = identity.identity(dataclasses.replace(config, prompts=PromptConfig(template_options={"thinking": False})))
    assert changed == identity.identity(config) | {"prompts.template_options.thinking": False}
    with pytest.raises(InputError, match=r"config\.prompts\.chat_template = 'onn': did you mean 'on'"):
        override(config, "prompts.chat_template", "onn")


def test_prompts_are_shown_as_the_model_reads_them(chat_run):
    text = show_prompts_of_run(chat_run, 2)
    first, second = text.split("\nproblem ")
    assert second.startswith("p1 (task numeric), answer '1'\n")
    [_, facts, *lines] = first.splitlines()
    ids = rendered(chat_run, Problem("p0", "0+0?", "0", "numeric"))
    assert facts == (
        f"{len(ids)} tokens; special: 3 <|im_start|>, 2 <|im_end|>, 1 <think>; "
        f"ids: {' '.join(map(str, ids[:8]))} ... {' '.join(map(str, ids[-8:]))}"
    )
    assert lines == [
        "  │<|im_start|>system↵",
        "  │Be brief.<|im_end|>↵",
        "  │<|im_start|>user↵",
        "  │0+0?↵",
        "  │Digits only.<|im_end|>↵",
        "  │<|im_start|>assistant↵",
        "  │<think>",
    ]
    short = dataclasses.replace(chat_run, sampling=SamplingConfig(max_prompt_tokens=9, max_tokens=2))
    assert f"{len(ids)} tokens: too long, max_prompt_tokens is 9; special" in show_prompts_of_run(short, 1)


@pytest.mark.slow
def test_the_commands_show_prompts_and_do_nothing_else(chat_run, tmp_path):
    config = builders.write_config(tmp_path / "c.json", chat_run)
    done = mains.run("isocompute_jax.train", [f"--resolved_config={config}", "--show_prompts=1"])
    assert (done.returncode, done.stderr) == (0, "") and done.stdout == show_prompts_of_run(chat_run, 1) + "\n"
    command = [f"--model={chat_run.model}", "--show_prompts=1"]
    command += [f"--problems={chat_run.train_set}", f"--max_prompt_tokens={LIMIT}", "--template_options=x=1"]
    command += ["--system=Be brief.", "--suffix=Digits only.", "--generation_prefix=<think>"]
    again = mains.run("isocompute_jax.curate", command)
    assert (again.returncode, again.stderr, again.stdout) == (0, "", done.stdout)


@pytest.mark.slow
def test_a_run_on_chats_trains(chat_run, tmp_path):
    loop.train(chat_run, tmp_path / "run")
    lines = run_files.read_lines(tmp_path / "run" / run_files.METRICS)
    assert [line["step"] for line in lines] == [1, 2]


def test_plain_texts_to_a_chat_model_are_named_before_and_beside_the_answers_that_they_cut_off(
    chat_run, tmp_path, caplog
):
    caplog.set_level("INFO")
    problems = [Problem(f"p{i}", f"{i}+{i}?", str(i % 10), "numeric") for i in range(16)]
    write_problems(tmp_path / "train.jsonl", problems)
    config = dataclasses.replace(
        chat_run,
        train_set=str(tmp_path / "train.jsonl"),
        max_compute=64,
        prompts=PromptConfig(),
        evaluation=EvaluationConfig(),
        alarms=AlarmsConfig(window=1),
    )
    loop.train(config, tmp_path / "run")
    [line] = run_files.read_lines(tmp_path / "run" / run_files.METRICS)
    cut = f"{line['truncation_rate']:.1%} of completions"
    said = ("plain texts, as that of", "rewards: ", f"step 1: {cut} were cut", f"alarm truncation: {cut}")
    places = [next(place for place, each in enumerate(caplog.messages) if text in each) for text in said]
    assert places == sorted(places)
    assert caplog.messages[places[-1]].endswith(
        "are cut off: raise sampling.max_tokens (or set config.prompts.chat_template=on: prompts go without the "
        "model's), or shorten answers"
    )
