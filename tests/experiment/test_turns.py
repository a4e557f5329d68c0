"""Runs whose rollouts have several turns: what is trained, counted, logged and resumed."""

import contextlib
import dataclasses

import numpy as np
import pytest

from isocompute_jax import learner, tasks
from isocompute_jax.experiment import loop, samplers
from isocompute_jax.experiment.config import EvaluationConfig, SamplingConfig, ThinkingConfig, ToolConfig, override
from isocompute_jax.experiment.inputs import read_inputs
from isocompute_jax.experiment.metrics import rollout_metrics
from isocompute_jax.experiment.rollouts import make_requests
from isocompute_jax.experiment.samplers import make_turns
from isocompute_jax.learner import LossConfig
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Completion, Problem, RolloutGroup
from isocompute_jax.sampling import TurnSampler
from isocompute_jax.tasks import PromptConfig, Prompts
from isocompute_jax.tasks.embedded import LONGEST_ANSWER, Calculator, calculate, make_sums
from tests.experiment import builders
from tests.experiment.samplers import LaggingSampler, Makes
from tests.sampling.turn_builders import RuleSampler, Scripted

THINKING = ThinkingConfig(low=1, high=3, answer_tokens=2, end_phrase="==", end_of_thinking=",")
PHRASE_TOKENS, LONGEST = 2, 7


@pytest.fixture(scope="module")
def config(base_run):
    """`base_run`, interrupted, of four steps and two evaluations, in as few compiled shapes as may be."""
    sampling = SamplingConfig(max_prompt_tokens=6, max_tokens=LONGEST, thinking=THINKING)
    evaluation = EvaluationConfig({"train": base_run.train_set}, samples=16, k=2, points=1, max_problems=4)
    config = dataclasses.replace(base_run, sampling=sampling, evaluation=evaluation, max_compute=64 * 4)
    return override(dataclasses.replace(config, loss=LossConfig()), "packing.trees", "off")


@pytest.fixture(scope="module")
def undisturbed(config, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("turns") / "undisturbed"
    loop.train(config, workdir)
    return workdir


@pytest.mark.slow
def test_an_interrupted_run(config, undisturbed):
    """Rates, lengths and books count what was drawn; sampler and learner agree on every token that is trained on."""
    lines = builders.log_lines(undisturbed, run_files.METRICS)
    assert len(lines) == 4
    tokens = 0
    for line in lines:
        drawn = line["tokens"] - tokens
        tokens = line["tokens"]
        assert drawn == round(line["completion_length"] * 64)
        assert 0.5 < line["interruption_rate"] < 1  # a random model seldom ends by itself
        assert 0 < line["truncation_rate"] < 1
        # One to three tokens of thought, and one or two of an answer.
        assert 1 < line["completion_length"] <= THINKING.high + THINKING.answer_tokens
        assert line["logprob_difference_max"] < 1e-5
        assert line["trained_tokens"] <= drawn
        assert 1 < line["sampler_entropy"] < np.log(32) + 0.1
    for line in builders.log_lines(undisturbed, run_files.EVAL):
        assert 0.5 < line["interruption_rate"] < 1 and line["completion_length"] <= 5
        assert 1 < line["entropy"] < np.log(32) + 0.1


@pytest.mark.slow
def test_a_run_that_is_interrupted_itself_ends_the_same(config, undisturbed, tmp_path):
    with builders.interrupted_in_step(3), pytest.raises(KeyboardInterrupt):
        loop.train(config, tmp_path / "run")
    loop.train(config, tmp_path / "run")
    builders.assert_same_run(tmp_path / "run", undisturbed)


@pytest.mark.slow
def test_an_asynchronous_run_mixes_versions_within_its_window(config, tokenizer, tmp_path):
    """Turns of a rollout under weights of different ages; context has the version of what was drawn behind it."""
    config = dataclasses.replace(config, max_staleness=2, evaluation=EvaluationConfig(), max_compute=64 * 6)
    config = override(override(config, "service.endpoints", "nowhere:1"), "agreement.every", 0)
    policy = make_turns(config.sampling, tokenizer)
    assert policy is not None
    make, taken = Makes(LaggingSampler, max_continued_tokens=6 + policy.continued_tokens), []

    class Watched(TurnSampler):
        def completed(self, *, lane="train"):
            for group in super().completed(lane=lane):
                taken.extend(group.completions)
                yield group

    loop.train(config, tmp_path / "run", make_sampler=lambda *a, **options: Watched(make(*a, **options), policy))
    for line in builders.log_lines(tmp_path / "run", run_files.METRICS):
        assert line["staleness"] <= 2 and line["interruption_rate"] > 0.5
    assert len(taken) == 64 * 6 and any(len(set(c.policy_versions)) > 1 for c in taken)
    for completion in taken:
        versions, context = completion.policy_versions, np.flatnonzero(~completion.mask)
        assert (np.diff(versions) >= 0).all()
        if len(context):
            assert set(versions[context]) == {versions[context[-1] + 1]}


@pytest.mark.parametrize("evaluated", [False, True])
def test_evaluations_may_be_left_alone(config, tokenizer, monkeypatch, evaluated):
    config = override(config, "sampling.thinking.evaluation", evaluated)
    inner, made = RuleSampler(), {}
    monkeypatch.setattr(samplers, "InProcessSampler", lambda *_, **options: made.update(options) or inner)
    sampler = samplers.make_sampler(config, builders.MODEL, {}, workdir="run", tokenizer=tokenizer, mesh=None)
    assert made["max_continued_tokens"] == 6 + THINKING.high + PHRASE_TOKENS
    problem = Problem("p", "1+1=", "2", "numeric")
    for lane in ("train", "agreement", "evaluation"):
        sampler.submit(
            make_requests([problem], Prompts(tokenizer, PromptConfig()), config.sampling, group_size=8, seed=1, step=0),
            lane=lane,
        )
        assert inner.asked[-1].params.max_tokens == (THINKING.high if evaluated or lane != "evaluation" else LONGEST)


def test_what_was_put_in_is_not_counted():
    tokens, logprobs = np.arange(6, dtype=np.int32), np.array([-1, -2, 0, 0, -3, -4], np.float32)
    mask = logprobs < 0
    put_in = Completion(tokens, logprobs, mask, np.zeros(6, np.int32), "length")
    plain = Completion.drawn(tokens[:2], logprobs[:2], np.zeros(2, np.int32), "stop")
    group = RolloutGroup("p", 0, tokens[:1], (put_in, plain), np.array([1, 0], np.float32))
    assert group.num_tokens == 6 and learner.trained_lengths([group]).tolist() == [[4, 2]]
    assert rollout_metrics([group]) == {
        "reward": 0.5,
        "zero_variance_share": 0.0,
        "completion_length": 3.0,
        "truncation_rate": 0.5,
        "interruption_rate": 0.5,
        "reward_failures": 0,
        "sampler_entropy": 13 / 6,
    }


# --- the calculator


@pytest.fixture(scope="module")
def calculator(base_run, tmp_path_factory):
    """A base model that has seen calls for a moment, and a run on sums of one digit."""
    from benchmarks.calculator_run import prepare

    out = tmp_path_factory.mktemp("calculator")
    config = prepare(out, digits=1, base_steps=100, calls=0.8, seed=0)(64 * 3)
    return override(dataclasses.replace(config, evaluation=EvaluationConfig()), "packing.trees", "off")


@pytest.mark.slow
def test_grpo_trains_two_turns(calculator, tmp_path, monkeypatch):
    """Three steps; every call is answered by its sum, which is context, and the rest is trained on."""
    batches = []
    lay_out = loop.lay_out

    def watched(parts, state, sampled, step):
        ready = lay_out(parts, state, sampled, step)
        batches.append((sampled.groups, parts.inputs.tokenizer, ready))
        return ready

    monkeypatch.setattr(loop, "lay_out", watched)
    loop.train(calculator, tmp_path / "run")
    called = 0
    for groups, tokenizer, ready in batches:
        for completion in (c for group in groups for c in group.completions):
            [text] = tokenizer.decode([completion.tokens.tolist()])
            [context] = tokenizer.decode([completion.tokens[~completion.mask].tolist()])
            if not context:
                continue
            called += 1
            call, _, rest = text.partition("=")
            assert rest.startswith(context) and context == f"{eval(call)},"
            assert completion.mask.tolist() == [True] * len(call) + [True] + [False] * len(context) + [True] * (
                len(completion.tokens) - len(call) - 1 - len(context)
            )
        [(tokens, credit)] = ready.updates
        kept = [group for group, keeps in zip(groups, credit.kept, strict=True) if keeps]
        assert int(np.asarray(tokens.mask).sum()) == sum(group.num_tokens for group in kept)
    assert called > 10
    lines = builders.log_lines(tmp_path / "run", run_files.METRICS)
    assert sum(line["trained_tokens"] for line in lines) > 100
    for line in lines:
        assert line["interruption_rate"] > 0 and line["logprob_difference_max"] < 1e-5


def test_a_golden_of_two_turns(tokenizer):
    """`3+4=` is drawn, `7,` put in, `7` and the end drawn; a wrong call is not answered."""
    sampling = SamplingConfig(max_tokens=24, tool=ToolConfig("calculator", call_tokens=8))
    policy = make_turns(sampling, tokenizer)
    assert policy is not None

    def rollout(*turns):
        sampler = TurnSampler(Scripted(*(tokenizer.encode(turn).tolist() for turn in turns)), policy)
        problem = Problem("p", "3+4,", "7", "calculator")
        sampler.submit(
            make_requests([problem], Prompts(tokenizer, PromptConfig()), sampling, group_size=1, seed=0, step=0)
        )
        [group] = sampler.completed()
        with contextlib.closing(tasks.Grading(tasks.RewardConfig(), tokenizer.decode)) as grading:
            [graded] = tasks.graded([group], {problem.id: problem}, grading)
        assert graded.rewards is not None
        return group.completions[0], float(graded.rewards[0])

    completion, reward = rollout("3+4=", "7<eos>")
    assert tokenizer.decode([completion.tokens.tolist()]) == ["3+4=7,7"] and reward == 1
    assert completion.mask.tolist() == [True] * 4 + [False] * 2 + [True] * 2
    completion, reward = rollout("3+=")
    assert completion.mask.tolist() == [True] * 3 and reward == 0


# --- bad input


@pytest.fixture(scope="module")
def tokenizer(base_run):
    return tasks.load_tokenizer(base_run.model)


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (
            SamplingConfig(max_tokens=6, thinking=THINKING),
            r"thinking: high = 3, an end_phrase of 2 tokens and answer_tokens = 2 make .* up to 7 .*max_tokens = 6",
        ),
        (
            SamplingConfig(max_tokens=5, thinking=dataclasses.replace(THINKING, end_phrase="=x")),
            r"thinking: high = 3 and answer_tokens = 2 make completions of more than 5 .*max_tokens = 5: raise that",
        ),
        (
            SamplingConfig(max_tokens=7, thinking=dataclasses.replace(THINKING, end_phrase="=x")),
            r"thinking\.end_phrase: '=x' is not made of the tokenizer's tokens: it reads back as '='",
        ),
        (
            SamplingConfig(max_tokens=90, thinking=THINKING, tool=ToolConfig("calculator")),
            r"thinking\.high = 3 and config\.sampling\.tool\.name = 'calculator'",
        ),
        (
            SamplingConfig(max_tokens=23, tool=ToolConfig("calculator", call_tokens=8)),
            r"tool: 2 turns of call_tokens = 8 and 1 answers of up to 8 tokens .* up to 24 .*max_tokens = 23",
        ),
    ],
)
def test_turns_that_cannot_be(sampling, message, tokenizer):
    with pytest.raises(InputError, match=r"config\.sampling\." + message):
        make_turns(sampling, tokenizer)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"high": 3, "low": 4}, r"ThinkingConfig\.low = 4 must lie in 1 \.\. 3"),
        ({"high": 3}, r"ThinkingConfig\.low = 0 must lie in 1 \.\. 3"),
        ({"high": 3, "low": 1, "end_phrase": ""}, r"ThinkingConfig\.end_phrase is empty"),
    ],
)
def test_thinking_that_cannot_be(fields, message):
    with pytest.raises(InputError, match=message):
        ThinkingConfig(**fields)


def test_budgets_beyond_the_context_and_versions_that_mix(config, base_run):
    longer = override(config, "sampling.max_tokens", 60)
    with pytest.raises(InputError, match=r"max_tokens = 60 make sequences .* max_position_embeddings = 64"):
        read_inputs(override(longer, "sampling.thinking.high", 50))
    service = override(override(config, "service.endpoints", "h:1"), "max_staleness", 1)
    service.resolved()
    with pytest.raises(InputError, match=r"config\.asynchrony = 'boundary' promises rollouts of one version"):
        override(service, "asynchrony", "boundary").resolved()


def test_problems_of_the_calculator(tmp_path):
    problems = make_sums(50, seed=1)
    assert len({problem.prompt for problem in problems}) == 50
    tasks.write_problems(tmp_path / "sums.jsonl", problems)
    assert tasks.read_problems(tmp_path / "sums.jsonl") == problems
    task = Calculator()
    [problem, *_] = problems
    right = problem.answer
    for text, reward in ((right, 1), (f"1+1=2,{right}", 1), (f"{right},", 0), (f"{right},0", 0), ("", 0)):
        assert task.grade(problem, text).reward == reward
    assert "write '7'" in (task.fault(Problem("p", "3+4,", "8", "calculator")) or "")
    assert "is not a sum" in (task.fault(Problem("p", "3+4", "7", "calculator")) or "")
    with pytest.raises(InputError, match=r"1 \.\. 100 sums"):
        make_sums(101, seed=0, digits=1)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3+4=", "7,"), ("3-4=", "-1,"), ("999+999-1+2=", "1999,"), ("3+4=7,10-007=", "3,"), ("3+4", None),
        ("+4=", None), ("1000+1=", None), ("3++4=", None), ("3+4==", None), ("<pad>3+4=", None),
    ],
)  # fmt: skip
def test_the_calculator_is_a_function_of_the_text(text, found):
    assert calculate(text) == found
    assert found is None or len(found) <= LONGEST_ANSWER
