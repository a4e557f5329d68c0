"""What one look finds: each fault that was planted, by its line and its field, and nothing wrong where nothing is."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Callable

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer, processors

from isocompute_jax import model, tasks
from isocompute_jax.experiment.config import EvaluationConfig, RunConfig, SamplingConfig, override
from isocompute_jax.pilot import check, measure
from isocompute_jax.pilot.check import Rollout, RolloutFacts, look
from isocompute_jax.pilot.lines import Line, lines, of_solving, page_of, text_of
from isocompute_jax.pilot.measure import BaseRates, signal_shares
from isocompute_jax.records.errors import RunError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Completion, Problem
from isocompute_jax.service.server.engines.base import JaxSettings
from isocompute_jax.service.server.engines.jax_engine import JaxEngine
from tests import mains
from tests.service.fleet_builders import live
from tests.tasks.chat_tokenizers import CHATML, HEADERS, save, save_chatml, save_headers

REWARDS = f"{__name__}:" if __name__.startswith("tests.") else "tests.pilot.test_check:"


async def pays_all(problem, completion):
    return 1.0


async def fails_on_two(problem, completion):
    if "2" in completion:
        raise LookupError("no such thing")
    return float(problem.answer in completion)


async def fails_on_nothing(problem, completion):
    return float(completion[0] == problem.answer)


class Scripted:
    """A sampler whose answers are written down: `answer(problem, i)` is a text, cut off where it ends with "..."."""

    concurrent, redrawn_rollouts = False, 0

    def __init__(self, tokenizer, answer: Callable[[str, int], str]):
        self._tokenizer, self._answer, self._out = tokenizer, answer, []

    def submit(self, requests, *, lane="train"):
        self._out += requests

    def completed(self, *, lane="train"):
        while self._out:
            request: SampleRequest = self._out.pop(0)
            texts = [self._answer(request.problem_id, i) for i in range(request.group_size)]
            yield request.grouped(tuple(map(self._completion, texts)))

    def _completion(self, text: str) -> Completion:
        cut = text.endswith("...")
        ids = self._tokenizer.encode_within(text.removesuffix("..."))
        ids = ids if cut else np.append(ids, self._tokenizer.eos_ids[0]).astype(np.int32)
        return Completion.drawn(
            ids, np.full(len(ids), -1.0, np.float32), np.zeros(len(ids), np.int32), "length" if cut else "stop"
        )

    def update_weights(self, params, *, version):
        pass

    def close(self):
        pass


@pytest.fixture
def scripted(monkeypatch):
    """Answers as they are written down, whatever the model; half of them are right unless told otherwise."""

    def script(answer: Callable[[str, int], str] = lambda _, i: str(i % 2 + 3)):
        make = lambda config, shape, params, *, tokenizer, **_: Scripted(tokenizer, answer)  # noqa: E731
        monkeypatch.setattr(measure, "make_sampler", make)
        monkeypatch.setattr(check, "_agreement", lambda *_: None)

    script()
    return script


def chain(path: pathlib.Path, after: dict[str, str], *, seed: int = 0) -> str:
    """A model beside a tokenizer that draws one of `after[c]` after a character c, and else ends its answer."""
    tokenizer = tasks.load_tokenizer(path)
    size = -(-tokenizer.vocab_size // 8) * 8
    shape = model.ModelConfig(
        vocab_size=size, embed_dim=size, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, mlp_dim=8,
        tied_embeddings=False, rope_theta=1e4, norm_eps=1e-6, max_positions=128,
    )  # fmt: skip
    logits = np.random.default_rng(seed).normal(size=(size, size)) - 20.0
    logits[:, tokenizer.eos_ids[0]] = 0.0
    for before, texts in after.items():
        [last] = tokenizer.encode_within(before)[-1:]
        logits[last, tokenizer.eos_ids[0]] = -20.0
        logits[last, [tokenizer.encode_within(text)[0] for text in texts]] = 0.0
    params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), model.abstract_params(shape))
    params["embed"] = np.eye(size, dtype=np.float32)
    params["final_norm"] = np.ones(size, np.float32)
    params["head"] = (logits / np.sqrt(size)).astype(np.float32)
    model.save_checkpoint(path / "weights", shape, params, tokenizer_from=None)
    for file in (path / "weights").iterdir():
        file.rename(path / file.name)
    return str(path)


def chat(text: str):
    return ({"role": "user", "content": text},)


def problems(count: int, prompt=lambda text: text, *, first: int = 0, answer: str = "3") -> list[Problem]:
    return [Problem(f"p{i}", prompt(f"{i}+{i}="), answer, "numeric") for i in range(first, first + count)]


def run_on(path: pathlib.Path, train: list[Problem], held_out: list[Problem] | None = None, **fields) -> RunConfig:
    """A run on the model in a directory, with sets written beside it."""
    tasks.write_problems(path / "train.jsonl", train)
    prompt = train[0].prompt
    apart = held_out or problems(6, (lambda text: text) if isinstance(prompt, str) else chat, first=60)
    tasks.write_problems(path / "held_out.jsonl", apart)
    config = RunConfig(
        model=str(path),
        train_set=str(path / "train.jsonl"),
        max_compute=4096,
        sampling=SamplingConfig(max_prompt_tokens=90, max_tokens=8),
        evaluation=EvaluationConfig(sets={"validation": str(path / "held_out.jsonl")}, samples=2, k=2, points=2),
    )
    for name, value in fields.items():
        config = override(config, name.replace("__", "."), value)
    return config


def looked(config: RunConfig, path: pathlib.Path, *, samples: int = 8):
    facts = look(config, path / "record", problems=8, samples=samples, stops=False)
    return facts, lines(facts)


def wrong(found: list[Line]) -> list[str]:
    return [line.what for line in found if line.state == "wrong"]


def only(found: list[Line], what: str) -> str:
    """What the one wrong line says, with its remedy."""
    assert wrong(found) == [what], text_of(found)
    [line] = [line for line in found if line.state == "wrong"]
    return f"{line.said} {line.remedy}"


@pytest.fixture
def plain(tmp_path):
    """The embedded task's tokenizer, and a model that answers one digit."""
    tasks.save_arithmetic_tokenizer(tmp_path)
    chain(tmp_path, {"=": "345"})
    return tmp_path


@pytest.fixture
def chatml(tmp_path):
    """A model of chats that answers one digit."""
    save_chatml(tmp_path)
    chain(tmp_path, {"<|im_start|>assistant\n": "345"})
    return tmp_path


# --- nothing is wrong


def test_a_sound_model_of_plain_texts(plain):
    facts, found = looked(run_on(plain, problems(16)), plain)
    assert wrong(found) == [], text_of(found)
    assert facts.agreement is not None and facts.agreement["logprob_difference"] < 1e-4
    assert facts.rollouts is not None and len(facts.rollouts.answers) == 64
    assert 0 < facts.rollouts.rates.rate < 0.7
    said = {line.what: line.said for line in found}
    assert said["head"].startswith("the head has weights of its own; sequences of up to 98 tokens, of 128 positions")
    assert said["ends"] == "a completion ends at <eos> (1)"
    page = page_of(facts, found)
    paid = sum(answer.paid for answer in facts.rollouts.answers)
    assert page.count("<article>") == min(paid, 20) + min(64 - paid, 20)


def test_a_sound_model_of_chats(chatml):
    config = run_on(chatml, problems(16, chat))
    facts, found = looked(config, chatml)
    assert wrong(found) == [], text_of(found)
    assert facts.prompts is not None and facts.prompts.chats == 16 and not facts.prompts.bos


@pytest.mark.parametrize("prompt", [chat, lambda text: text])
def test_a_token_that_begins_texts_once_is_fine(tmp_path, prompt, scripted):
    save_headers(tmp_path)
    chain(tmp_path, {})
    config = run_on(tmp_path, problems(16, prompt), prompts__chat_template="auto" if prompt is chat else "off")
    _, found = looked(config, tmp_path)
    assert wrong(found) == [], text_of(found)
    assert next(line.said for line in found if line.what == "BOS") == "<|bos|> once in each of 22 prompts"


# --- what is planted is found


def test_a_template_that_is_not_used(chatml, scripted):
    _, found = looked(run_on(chatml, problems(16)), chatml)
    assert "set config.prompts.chat_template=on" in only(found, "template")
    _, found = looked(run_on(chatml, problems(16), prompts__chat_template="on"), chatml / "on")
    assert wrong(found) == [], text_of(found)


def test_a_text_that_begins_twice(tmp_path, scripted):
    save_headers(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(f"{{{{ bos_token }}}}{HEADERS}")
    chain(tmp_path, {})
    _, found = looked(run_on(tmp_path, problems(16, chat)), tmp_path)
    said = only(found, "BOS")
    assert "<|bos|> twice in 22 of 22 prompts" in said and "chat template" in said


def test_a_text_that_never_begins(tmp_path, scripted):
    save_headers(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(HEADERS.replace("{{ bos_token }}", ""))
    chain(tmp_path, {})
    _, found = looked(run_on(tmp_path, problems(16, chat)), tmp_path)
    assert "missing in 22" in only(found, "BOS")


def test_an_end_that_the_template_never_writes(tmp_path, scripted):
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    save(tmp_path, special=special, bos=None, eos="<|endoftext|>", chat_template=CHATML)
    chain(tmp_path, {})
    _, found = looked(run_on(tmp_path, problems(16, chat)), tmp_path)
    assert "list the former in eos_token_id of generation_config.json" in only(found, "ends")


def test_an_end_beyond_the_vocabulary(plain, scripted):
    (plain / "generation_config.json").write_text('{"eos_token_id": 999}')
    facts, found = looked(run_on(plain, problems(16), problems(4)), plain)
    assert wrong(found) == ["tokenizer", "held out"]  # and the look goes on
    assert "generation_config.json: eos_token_id" in str(facts.refused["tokenizer"]) and facts.problems == 16


def test_a_tokenizer_that_ends_prompts(tmp_path, scripted):
    save(tmp_path, special=["<s>", "</s>"], bos="<s>", eos="</s>")
    backend = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 256), ("</s>", 257)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    chain(tmp_path, {})
    _, found = looked(run_on(tmp_path, problems(16)), tmp_path)
    assert "the post_processor of tokenizer.json puts '</s>'" in only(found, "prompts")


def test_prompts_that_end_in_an_end(chatml, scripted):
    _, found = looked(run_on(chatml, problems(16, lambda text: text + "<|im_end|>")), chatml)
    assert "16 of 22 prompts end in a token that ends a completion" in only(found, "prompts' ends")


def test_a_thought_that_is_never_closed(chatml, scripted):
    config = run_on(chatml, problems(16, chat), prompts__generation_prefix="<think>")
    _, found = looked(config, chatml)
    said = only(found, "thinking")
    assert "64 of 64 answers that open <think> never close it" in said and "config.prompts.generation_prefix" in said
    scripted(lambda _, i: f"</think>{i % 2 + 3}")
    config = override(config, "sampling.max_tokens", 12)
    _, found = looked(config, chatml / "closed")
    assert wrong(found) == [], text_of(found)


def test_answers_that_are_cut_off(plain, scripted):
    scripted(lambda _, i: f"{i % 2 + 3}" if i % 8 < 3 else f"=11{i % 2 + 3}=11{i % 2 + 3}...")
    _, found = looked(run_on(plain, problems(16)), plain)
    said = only(found, "answers' lengths")
    assert "40 of 64 answers are cut off at 8 tokens" in said and "set config.sampling.max_tokens to 46" in said
    scripted(lambda _, i: f"{i % 2 + 3}...")  # paid all the same: SmolLM2 ends hardly any of its answers
    _, found = looked(run_on(plain, problems(16)), plain / "paid")
    [line] = [line for line in found if line.what == "answers' lengths"]
    assert line.state == "look" and "no length is known to hold 95%" in line.said and wrong(found) == []


def test_prompts_beyond_the_limit(plain, scripted):
    train = [*problems(15), Problem("long", "1+" * 40 + "1=", "3", "numeric")]
    _, found = looked(run_on(plain, train, sampling__max_prompt_tokens=20), plain)
    said = only(found, "prompts' lengths")
    assert "82 at most; 1 of 22 are longer than 20" in said and "config.sampling.max_prompt_tokens=82" in said
    _, found = looked(run_on(plain, problems(16), sampling__max_tokens=100), plain / "positions")
    assert "make sequences of up to 190 tokens" in only(found, "model")


def test_lengths_that_nobody_has_set_are_those_of_prompts_and_model(plain, scripted):
    config = run_on(plain, [*problems(15), Problem("long", "1+" * 9 + "1=", "3", "numeric")])
    facts = look(
        config, plain / "record", problems=8, samples=8, stops=False, left_open=["max_prompt_tokens", "max_tokens"]
    )
    assert wrong(lines(facts)) == []
    assert (facts.config.sampling.max_prompt_tokens, facts.config.sampling.max_tokens) == (20, 108)


def test_a_reward_that_pays_for_nothing(plain, scripted):
    _, found = looked(run_on(plain, problems(16), reward__function=f"{REWARDS}pays_all"), plain)
    assert wrong(found) == ["empty answers", "solved"]
    [line] = [line for line in found if line.what == "empty answers"]
    assert line.said == "an empty answer is paid on 8 of 8 problems, 1 at most" and "reward.function" in line.remedy


def test_a_reward_that_fails_on_some(plain, scripted):
    scripted(lambda _, i: str(i % 3 + 1))
    _, found = looked(run_on(plain, problems(16), reward__function=f"{REWARDS}fails_on_two"), plain)
    said = only(found, "failures")
    assert "failed on 24 of 64 answers" in said and "no such thing" in said and "config.reward.on_failure" in said


def test_what_fails_while_it_looks_is_a_line_too(plain, scripted, monkeypatch):
    config = run_on(plain, problems(16), reward__function=f"{REWARDS}fails_on_nothing")
    facts, found = looked(config, plain)
    assert "IndexError" in only(found, "grading") and facts.rollouts is not None and not facts.rollouts.empty

    def lost(*_, **__):
        raise RunError("no endpoint has answered for 1800 s")

    monkeypatch.setattr(measure, "make_sampler", lost)
    config = run_on(plain, problems(16))
    facts, found = looked(config, plain / "lost")
    assert "no endpoint has answered" in only(found, "sampler") and facts.rollouts is None
    with pytest.raises(RunError, match="no endpoint"):
        look(config, plain / "stops", problems=8, samples=8, stops=True)


def test_answers_that_no_grader_reads(plain, scripted):
    tasks.write_problems(plain / "all.jsonl", [*problems(12), *problems(3, first=20, answer="x+y")])
    config = dataclasses.replace(run_on(plain, problems(12)), train_set=str(plain / "all.jsonl"))
    facts, found = looked(config, plain)
    assert wrong(found) == ["problems", "golds"] and facts.ungraded == 3
    assert "all.jsonl:13" in str(facts.refused["problems"]) and facts.rollouts is not None
    assert "3 of 15 problems" in next(line.said for line in found if line.what == "golds")


@pytest.mark.parametrize(("shared", "state"), [(1, "look"), (8, "wrong")])
def test_held_out_problems_that_are_trained_on(plain, scripted, shared, state):
    config = run_on(plain, problems(16), problems(40 - shared, first=40) + problems(shared))
    _, found = looked(config, plain)
    [line] = [line for line in found if line.what == "held out"]
    assert (line.state, line.said) == (state, f"{shared} of 40 problems of validation are trained on too")
    assert "config.evaluation.sets" in line.remedy


def test_problems_that_are_never_solved(plain, scripted):
    _, found = looked(run_on(plain, problems(16, answer="7")), plain)
    said = only(found, "solved")
    assert "8 of 8 problems were never solved" in said and "python -m isocompute_jax.curate --model=" in said


def test_a_server_with_other_weights(plain, tmp_path):
    """It takes what it is sent, and draws from what it has."""
    other = tmp_path / "other"
    tasks.save_arithmetic_tokenizer(other)
    chain(other, {"=": "33345"})
    shape = model.load_config(other)
    flat = model.load_params(str(other), shape)
    flat["head"] = flat["head"] * 0.1

    class Stale(JaxEngine):
        def _read(self, weights):
            return flat

    for engine in (JaxEngine, Stale):
        with live(engine=engine(JaxSettings(str(plain), max_slots=16))) as [server]:
            config = run_on(plain, problems(16), service__endpoints=server.address, service__shared_dir=str(tmp_path))
            _, found = looked(config, tmp_path / engine.__name__)
        if engine is JaxEngine:
            assert wrong(found) == [], text_of(found)
    assert "agreement" in wrong(found)
    [line] = [line for line in found if line.what == "agreement"]
    assert "nats a token" in line.said and "config.agreement.stop=0.2" in line.remedy


# --- what is counted


def test_the_share_of_groups_with_a_signal_is_by_problem():
    """Half of the problems are always solved: the mean rate would have a signal in nearly all groups of 8."""
    rates = BaseRates(np.array([0, 8] * 8 + [4]), 8)
    answers = [Rollout("p", 1.0, True, 5, False, "", False, "", "", "", "")]
    facts = RolloutFacts(answers, rates, signal_shares(rates), 0.0, {})
    *_, line = of_solving(RunConfig(model="m", group_size=8), facts)
    assert line.state == "look" and "n = 8 6%" in line.said and "by the mean rate alone: 99%" in line.said


def test_what_models_write_cannot_command_a_page_or_a_terminal(plain, scripted):
    facts, _ = looked(run_on(plain, problems(16)), plain)
    assert facts.rollouts is not None
    bad = dataclasses.replace(facts.rollouts.answers[0], question="<script>", text="\x1b[31m")
    facts = dataclasses.replace(facts, rollouts=dataclasses.replace(facts.rollouts, answers=[bad]))
    page = page_of(facts, [Line("look", "x", "\x1b[31m<b>", "")])
    assert "<script>" not in page and "\x1b" not in page and "<b>," not in page and r"\x1b[31m&lt;b&gt;" in page
    assert "\x1b" not in text_of([Line("look", "x", "\x1b[31m", "")])


@pytest.mark.slow
def test_the_command(plain):
    tasks.write_problems(plain / "never.jsonl", problems(16, answer="7"))
    out, flags = plain / "page.html", [f"--model={plain}", f"--problems={plain / 'never.jsonl'}"]
    done = mains.run("isocompute_jax.check", [*flags, f"--out={out}"])
    assert done.returncode == 2 and "error: wrong: solved; what to set stands there" in done.stderr
    assert "wrong  solved" in done.stdout and "look   held out" in done.stdout and "--validation" in done.stdout
    assert "<h3>not paid</h3>" in out.read_text()


def test_every_state_has_lines_that_wrap():
    rows = text_of(Line(state, "what", "word " * 40, "remedy") for state in ("fine", "look", "wrong")).splitlines()
    assert max(map(len, rows)) <= 110 and [row[:5].strip() for row in rows if row[0] != " "] == [
        "fine",
        "look",
        "wrong",
    ]
    assert sum(key for key, _ in itertools.groupby(row.strip() == "remedy" for row in rows)) == 3
