"""What an environment's turns make of a rollout: context, stops of several tokens, bounds, seeds, failures."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from isocompute_jax.environments.config import EnvironmentConfig
from isocompute_jax.environments.grading import EpisodeGrades
from isocompute_jax.environments.runner import Runner
from isocompute_jax.environments.turns import EnvironmentTurns, ending_tokens
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.records.rollout import Completion, Problem
from isocompute_jax.sampling import TurnSampler
from isocompute_jax.tasks import PromptConfig, Prompts, RewardConfig, load_tokenizer, save_arithmetic_tokenizer
from isocompute_jax.tasks.prompts import Observations
from isocompute_jax.tasks.tokenizer import Tokenizer
from tests.sampling.turn_builders import RuleSampler
from tests.tasks.chat_tokenizers import save_chatml, save_headers

GAMES = "tests.environments.games"
PROMPT = "9-"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    save_arithmetic_tokenizer(directory)
    return load_tokenizer(directory)


class Written(RuleSampler):
    """Draws texts: turn k of each rollout is `turns[k - 1]`, cut at its budget and behind the first stop token."""

    def __init__(self, tokenizer, *turns):
        super().__init__()
        self.tokenizer, self.turns = tokenizer, turns

    def draw(self, request, index):
        tokens = self.tokenizer.encode_within(self.turns[request.turn - 1])[: request.budget(index)]
        stops = np.flatnonzero(np.isin(tokens, request.stop_tokens))
        tokens = tokens[: stops[0] + 1] if len(stops) else tokens
        versions = np.full(len(tokens), request.turn, np.int32)
        return Completion.drawn(
            tokens, np.full(len(tokens), -1, np.float32), versions, "stop" if len(stops) else "length"
        )


def policy_of(tokenizer, name, *, max_prompt_tokens=8, max_tokens=40, problem=None, **fields):
    config = EnvironmentConfig(name, **fields)
    problem = problem or Problem("p", PROMPT, "", "environment")
    return EnvironmentTurns(
        config,
        Runner(config),
        Observations(Prompts(tokenizer, PromptConfig()), config.write_as),
        max_prompt_tokens=max_prompt_tokens,
        max_tokens=max_tokens,
        problem_of=lambda request: problem,
    )


def request_of(tokenizer, *, size=2, step=1, max_tokens=40):
    prompt = tokenizer.encode_within(PROMPT)
    return SampleRequest("p", prompt, size, 7, step, tokenizer.eos_ids, SamplingParams(1.0, 1.0, max_tokens))


def drawn(sampler, policy, request):
    turns = TurnSampler(sampler, policy)
    turns.submit([request])
    [group] = turns.completed()
    turns.close()
    return group


def texts(tokenizer, completion: Completion) -> list[tuple[str, bool]]:
    """The segments of a completion, and whether the policy drew them."""
    edges = np.flatnonzero(np.diff(completion.mask)) + 1
    parts = np.split(completion.tokens, edges), np.split(completion.mask, edges)
    return [
        ("".join(tokenizer.decode([[token]])[0] or "$" for token in ids), bool(mask[0]))
        for ids, mask in zip(*parts, strict=True)
    ]


def test_a_rollout_of_turns(tokenizer):
    """Context stands between turns, untrained; rewards add up; what begins alike for all is the group's prompt."""
    policy = policy_of(tokenizer, f"{GAMES}:Adder", options={"enough": 30}, stop=("=",))
    group = drawn(Written(tokenizer, "5=", "6=", "30="), policy, request_of(tokenizer))
    start = int(tokenizer.decode([group.prompt_tokens.tolist()])[0].removeprefix(PROMPT).rstrip(","))
    said = [(f"{start + 5},", False), (f"{start + 11},", False)]
    for completion in group.completions:
        assert texts(tokenizer, completion) == [("5=", True), said[0], ("6=", True), said[1], ("30=", True)]
        assert completion.episode is not None and completion.episode.rewards == (0.5, 0.5, 0.5)
        assert completion.episode.done and completion.finish_reason == "stop"
        assert completion.drawn_tokens == 7 and not completion.logprobs[~completion.mask].any()
    graded = EpisodeGrades(RewardConfig()).submit(group, Problem("p", PROMPT, "", "environment")).result()
    assert graded.rewards is not None and graded.rewards.tolist() == [1.5, 1.5]
    assert graded.reward_metrics["turns"].tolist() == [3, 3] and graded.failures == {}
    assert graded.reward_metrics["total"].tolist() == [start + 41] * 2


def test_groups_begin_alike_and_steps_do_not(tokenizer):
    def beginning(step):
        policy = policy_of(tokenizer, f"{GAMES}:Adder", stop=("=",), turns=1)
        return drawn(Written(tokenizer, "5="), policy, request_of(tokenizer, step=step)).prompt_tokens.tolist()

    assert beginning(1) == beginning(1)
    assert len({tuple(beginning(step)) for step in range(5)}) > 2


def test_what_begins_differently_is_context(tokenizer, monkeypatch):
    """Each rollout has its own beginning then, behind what all have."""
    policy = policy_of(tokenizer, f"{GAMES}:Adder", stop=("=",), turns=1)
    seeds = iter(range(100))
    monkeypatch.setattr("isocompute_jax.environments.turns.seed_of", lambda request: next(seeds))
    sampler = Written(tokenizer, "5=")
    group = drawn(sampler, policy, request_of(tokenizer, size=6))
    assert tokenizer.decode([group.prompt_tokens.tolist()]) == [PROMPT]
    begun = {texts(tokenizer, completion)[0] for completion in group.completions}
    assert len(begun) > 1 and not any(is_drawn for _, is_drawn in begun)
    assert {(request.group_size, request.turn) for request in sampler.asked} == {(1, 1)}


def test_a_beginning_longer_than_prompts_may_be_is_context(tokenizer):
    policy = policy_of(tokenizer, f"{GAMES}:Adder", stop=("=",), turns=1, max_prompt_tokens=3)
    group = drawn(Written(tokenizer, "5="), policy, request_of(tokenizer))
    assert len(group.prompt_tokens) == 3
    assert [texts(tokenizer, completion)[0] for completion in group.completions] == [(",", False)] * 2


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"turns": 2}, 2),  # turns
        ({"max_tokens": 8}, 2),  # tokens: 2, an observation of 3, 2; no room for more
        ({"max_tokens": 4}, 1),  # no room for an observation and a token
    ],
)
def test_bounds_end_a_rollout(tokenizer, fields, expected, monkeypatch):
    monkeypatch.setattr("isocompute_jax.environments.turns.seed_of", lambda request: 0)
    policy = policy_of(tokenizer, f"{GAMES}:Adder", options={"enough": 10**6}, stop=("=",), **fields)
    most = fields.get("max_tokens", 40)
    group = drawn(Written(tokenizer, *["10="[: 3 if most == 40 else 2]] * 9), policy, request_of(tokenizer))
    for completion in group.completions:
        assert completion.episode is not None and not completion.episode.done
        assert len(completion.episode.ends) == expected and completion.finish_reason == "length"
        assert len(completion.tokens) <= most


def test_a_turn_that_is_cut_is_answered_too(tokenizer):
    policy = policy_of(tokenizer, f"{GAMES}:Adder", options={"enough": 12}, stop=("=",), turn_tokens=2)
    group = drawn(Written(tokenizer, "123", "456="), policy, request_of(tokenizer))
    assert group.completions[0].episode is not None
    assert group.completions[0].episode.done and texts(tokenizer, group.completions[0]) == [("12", True)]


def test_a_long_observation_loses_its_end_and_that_is_counted(tokenizer):
    policy = policy_of(tokenizer, f"{GAMES}:Adder", stop=("=",), turns=2, observation_tokens=1)
    group = drawn(Written(tokenizer, "90=", "9="), policy, request_of(tokenizer))
    completion = group.completions[0]
    assert [len(text) for text, is_drawn in texts(tokenizer, completion) if not is_drawn] == [1]
    assert completion.episode is not None and completion.episode.metrics["observations_cut"] == 1


def test_failures_are_counted_and_do_what_the_config_says(tokenizer):
    problem = Problem("p", PROMPT, "", "environment")
    for how, reason in (("raises", "the environment raised"), ("nan", "the environment gave no answer")):
        policy = policy_of(tokenizer, f"{GAMES}:Wrong", options={"how": how}, stop=("=",))
        group = drawn(Written(tokenizer, "5="), policy, request_of(tokenizer))
        graded = EpisodeGrades(RewardConfig()).submit(group, problem).result()
        assert graded.rewards is not None and graded.rewards.tolist() == [0, 0] and not graded.dropped
        assert graded.reward_failures == 2 and graded.failures[0].startswith(reason)
        assert all(completion.finish_reason == "stop" for completion in group.completions)  # no bound cut it
        assert EpisodeGrades(RewardConfig(on_failure="drop_group")).submit(group, problem).result().dropped
        with pytest.raises(RunError, match=f"problem 'p': {reason}"):
            EpisodeGrades(RewardConfig(on_failure="stop")).submit(group, problem).result()


def test_an_environment_that_is_gone_ends_the_run(tokenizer):
    """After so many groups of which nothing is known; one that is known begins the count anew."""
    problem = Problem("p", PROMPT, "", "environment")
    failed = drawn(
        Written(tokenizer, "5="),
        policy_of(tokenizer, f"{GAMES}:Wrong", options={"how": "raises"}, stop=("=",)),
        request_of(tokenizer),
    )
    sound = drawn(
        Written(tokenizer, "5="), policy_of(tokenizer, f"{GAMES}:Adder", stop=("=",), turns=1), request_of(tokenizer)
    )
    grades = EpisodeGrades(RewardConfig())
    for group in [failed] * 31 + [sound] + [failed] * 31:
        grades.submit(group, problem).result()
    with pytest.raises(RunError, match=r"every rollout of 32 groups .*, the last because .*no such move"):
        grades.submit(failed, problem).result()


def test_one_that_does_not_begin_draws_a_token_and_has_failed(tokenizer):
    policy = policy_of(tokenizer, f"{GAMES}:Wrong", options={"how": "reset raises"}, stop=("=",))
    group = drawn(Written(tokenizer, "5="), policy, request_of(tokenizer))
    assert [len(completion.tokens) for completion in group.completions] == [1, 1]
    assert EpisodeGrades(RewardConfig()).submit(group, Problem("p", PROMPT, "", "")).result().reward_failures == 2


def test_ids_reach_an_environment_that_asks_for_them(tokenizer):
    policy = policy_of(tokenizer, f"{GAMES}:Tokens", stop=("=",), turns=2)
    completion = drawn(Written(tokenizer, "55=", "7="), policy, request_of(tokenizer)).completions[0]
    assert texts(tokenizer, completion)[1] == ("3", False)
    assert completion.episode is not None
    assert completion.episode.metrics["last"] == tokenizer.encode_within("=")[0]


# --- stops of several tokens


def test_only_tokens_that_may_end_the_text_stop_an_engine(tokenizer, tmp_path):
    bytewise = load_tokenizer(save_chatml(tmp_path))
    found = {bytewise.decode([[token]])[0] for token in ending_tokens(bytewise, ["</tool>"])}
    assert found == {">"}  # every other character is followed by one more
    assert ending_tokens(tokenizer, []) == ()


@given(stop=st.text(st.characters(codec="utf-8"), min_size=1, max_size=4), before=st.text("a\u7b54\u270b", max_size=2))
def test_whatever_the_text_its_last_token_stops_an_engine(merging, stop, before):
    """Characters of several tokens among them, and tokens that end in the middle of one."""
    assert merging.encode_within(before + stop)[-1] in ending_tokens(merging, [stop])


@pytest.fixture(scope="module")
def merging(tmp_path_factory):
    """Tokens of bytes, and some of two or three that are parts of characters."""
    directory = save_chatml(tmp_path_factory.mktemp("merging"))
    written = json.loads((directory / "tokenizer.json").read_text())
    # within U+270B, "\u00e2\u013e\u012d" by its bytes' names, within U+7B54, "\u00e7\u0143\u0136", and across the two
    merges = [["\u013e", "\u012d"], ["\u00e7", "\u0143"], ["\u0136", "\u00e2"], ["<", "/"]]
    written["model"]["merges"] = merges
    written["model"]["vocab"] |= {a + b: 300 + i for i, (a, b) in enumerate(merges)}
    (directory / "tokenizer.json").write_text(json.dumps(written))
    return load_tokenizer(directory)


def test_a_single_byte_stops_an_engine_whose_tokenizer_falls_back_on_bytes():
    names = ["<unk>", ">", "a", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend = Backend(models.BPE({name: i for i, name in enumerate(names)}, [], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = Tokenizer(backend, (0,), 0, len(names))
    for stop in ("\u270b", "a\u7b54", "</a>"):
        assert backend.encode(stop).ids[-1] in ending_tokens(tokenizer, [stop])
        assert len(ending_tokens(tokenizer, [stop])) <= 2


def test_a_text_that_the_tokenizer_cannot_write_is_refused(tokenizer):
    with pytest.raises(InputError, match=r"config.environment.stop, .* no token of .* can end '</tool>'"):
        policy_of(tokenizer, f"{GAMES}:Waiting", stop=("=", "</tool>"))


def test_a_turn_ends_at_a_character_of_several_tokens(tmp_path):
    bytewise = load_tokenizer(save_chatml(tmp_path))
    policy = policy_of(bytewise, f"{GAMES}:Waiting", stop=("\u270b",), turns=1, max_tokens=90, max_prompt_tokens=20)
    [completion] = drawn(
        Written(bytewise, "so \u270b more"), policy, request_of(bytewise, size=1, max_tokens=90)
    ).completions
    assert bytewise.decode([completion.tokens.tolist()])[0] == "so \u270b"


def test_a_turn_goes_on_where_the_text_is_not_there_after_all(tmp_path):
    """`>` stops the engine at once; the turn ends at `</t>` alone, in the middle of what was written."""
    bytewise = load_tokenizer(save_chatml(tmp_path))
    policy = policy_of(bytewise, f"{GAMES}:Waiting", stop=("</t>",), turns=1, max_tokens=90, max_prompt_tokens=20)
    sampler = Written(bytewise, "a > b", " b </t> more")
    group = drawn(sampler, policy, request_of(bytewise, size=1, max_tokens=90))
    completion = group.completions[0]
    assert bytewise.decode([completion.tokens.tolist()])[0] == "a > b </t>"
    assert completion.episode is not None and completion.episode.ends == (10,) and completion.mask.all()
    assert sampler.asked[-1].budgets == (64 - 3,)  # what is left of the turn


# --- chats


@pytest.mark.parametrize(("save", "end"), [(save_chatml, "<|im_end|>"), (save_headers, "<|eot|>")])
def test_observations_of_chats_are_messages(save, end, tmp_path):
    bytewise = load_tokenizer(save(tmp_path))
    problem = Problem("p", ({"role": "user", "content": "Play."},), "", "environment")
    observations = Observations(Prompts(bytewise, PromptConfig()), "auto")

    def read(ids):
        return bytewise.backend.decode(ids.tolist(), skip_special_tokens=False)

    assert bytewise.chat is not None
    whole = bytewise.chat([
        {"role": "user", "content": "Play.\nAt once."},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "two"},
    ])  # fmt: skip
    begun = read(observations.begun(problem, "At once."))
    turn = bytewise.encode_within(f"one{end}").tolist()
    assert begun + f"one{end}" + read(observations.observation(problem, "two", turn)) == whole
    # where the policy did not end its answer, the context does
    assert begun + "one" + read(observations.observation(problem, "two", turn[:-1])) == whole
    assert read(Observations(Prompts(bytewise, PromptConfig()), "text").observation(problem, "two", turn)) == "two"


SAID = st.text("ab /<\n\u7b54\u270b", max_size=90)


@given(first=SAID.map("a{}".format), then=SAID, most=st.integers(1, 90), most_prompt=st.integers(30, 60))
def test_of_a_long_observation_the_text_is_cut_and_the_chat_around_it_is_whole(merging, first, then, most, most_prompt):
    """What follows a cut observation is what follows an uncut one; and no more is cut than must be."""
    game = {"options": {"first": first, "then": then}, "turns": 2, "observation_tokens": most}
    game |= {"problem": Problem("p", ({"role": "user", "content": "Play."},), "", "environment")}
    policy = policy_of(merging, f"{GAMES}:Says", **game, max_tokens=400, max_prompt_tokens=most_prompt)
    request = SampleRequest("p", np.zeros(1, np.int32), 1, 7, 1, merging.eos_ids, SamplingParams(1.0, 1.0, 400))
    group = drawn(Written(merging, "one", "two"), policy, request)
    completion = group.completions[0]
    assert completion.episode is not None
    (begin, again), (end, _) = completion.episode.begins, completion.episode.ends
    begun, answered = [*group.prompt_tokens, *completion.tokens[:begin]], completion.tokens[end:again].tolist()
    frames = [
        ("<|im_start|>user\nPlay.\n", "<|im_end|>\n<|im_start|>assistant\n", first, begun, most_prompt + most),
        ("<|im_end|>\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n", then, answered, most),
    ]
    cuts = 0
    for before, after, text, ids, longest in frames:
        read = merging.backend.decode(ids, skip_special_tokens=False)
        assert read.startswith(before) and read.endswith(after)
        kept = read[len(before) : len(read) - len(after)]
        assert text.startswith(kept) and (not kept or len(ids) <= longest)
        cuts += kept != text
        more = f"{before}{text[: len(kept) + 1]}{after}"
        assert kept == text or len(merging.backend.encode(more, add_special_tokens=False)) > longest
    assert completion.episode.metrics.get("observations_cut", 0) == cuts


def test_what_a_template_strips_of_a_long_observation_makes_no_room(tmp_path):
    bytewise = load_tokenizer(save_headers(tmp_path))
    game = {"options": {"first": "", "then": "x" * 90 + "\n" * 90}, "turns": 2, "observation_tokens": 60}
    game |= {"problem": Problem("p", ({"role": "user", "content": "Play."},), "", "environment")}
    policy = policy_of(bytewise, f"{GAMES}:Says", **game, max_tokens=400, max_prompt_tokens=60)
    completion = drawn(Written(bytewise, "one", "two"), policy, request_of(bytewise, size=1)).completions[0]
    context = bytewise.backend.decode(completion.tokens[~completion.mask].tolist(), skip_special_tokens=False)
    around = "<|eot|><|head|>user<|tail|>\n\n", "<|eot|><|head|>assistant<|tail|>\n\n"
    assert context == f"{around[0]}{'x' * (60 - 23)}{around[1]}"


def test_observations_of_texts_are_texts(tokenizer):
    problem = Problem("p", PROMPT, "", "environment")
    observations = Observations(Prompts(tokenizer, PromptConfig()), "auto")
    assert tokenizer.decode([observations.begun(problem, "1,").tolist()]) == [f"{PROMPT}1,"]
    assert tokenizer.decode([observations.observation(problem, "2,", []).tolist()]) == ["2,"]


@pytest.mark.parametrize(
    ("prompt", "chat_template", "expected"),
    [
        ("Find it: ", "auto", "Find it: Left?\nBrief!\n<think>"),
        (({"role": "user", "content": "Find it."},), "off", "Find it.\nLeft?\nBrief!\n<think>"),
        (
            "Find it.",
            "on",
            "<|im_start|>user\nFind it.\nLeft?\nBrief!<|im_end|>\n<|im_start|>assistant\n\n<think>",
        ),
    ],
)
def test_what_is_observed_first_is_part_of_the_prompt(prompt, chat_template, expected, tmp_path):
    """What stands behind prompts stands behind it too, and an answer begins where all answers do."""
    bytewise = load_tokenizer(save_chatml(tmp_path))
    config = PromptConfig(chat_template=chat_template, suffix="Brief!", generation_prefix="\n<think>")
    begun = Observations(Prompts(bytewise, config), "auto").begun(Problem("p", prompt, "", ""), "Left?")
    assert bytewise.backend.decode(begun.tolist(), skip_special_tokens=False) == expected


def test_what_is_observed_first_stands_behind_ids_that_a_problem_brings(tokenizer):
    problem = Problem("p", PROMPT, "", "", prompt_tokens=tuple(tokenizer.encode_within("7-").tolist()))
    begun = Observations(Prompts(tokenizer, PromptConfig(suffix="=")), "auto").begun(problem, "1,")
    assert tokenizer.decode([begun.tolist()]) == ["7-1,"]


def test_in_the_background_groups_are_the_same(tokenizer):
    """Answers are used as they come there, and the sampler draws what it is asked for in any order."""
    groups = []
    for background in (False, True):
        policy = policy_of(tokenizer, f"{GAMES}:Adder", options={"enough": 30}, stop=("=",))
        turns = TurnSampler(Written(tokenizer, "5=", "6=", "30="), policy, background=background)
        requests = [request_of(tokenizer, step=step, size=3) for step in range(5)]
        turns.submit(requests)
        found = {group.step: group for group in turns.completed()}
        turns.close()
        groups.append([
            [(one.tokens.tolist(), repr(one.episode)) for one in found[step].completions]
            for step in range(5)
        ])  # fmt: skip
    assert groups[0] == groups[1]
