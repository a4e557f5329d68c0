"""What the model reads: the ids of transformers' own templates, plain texts as ever, and one message per mistake."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors
from transformers import AutoTokenizer

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import PromptConfig, Prompts, load_tokenizer, make_problems, save_arithmetic_tokenizer
from isocompute_jax.tasks.prompts import parse_options
from tests.tasks.chat_tokenizers import CHATML, save, save_chatml, save_headers

KINDS = {"chatml": save_chatml, "headers": save_headers}


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    return {kind: save(tmp_path_factory.mktemp(kind)) for kind, save in KINDS.items()}


@pytest.fixture(scope="module")
def tokenizers(directories):
    return {kind: load_tokenizer(path) for kind, path in directories.items()}


@pytest.fixture(scope="module")
def references(directories):
    return {kind: AutoTokenizer.from_pretrained(str(path)) for kind, path in directories.items()}


def problem(prompt, **fields) -> Problem:
    return Problem("p", prompt, "4", "numeric", **fields)


def chat(*turns: tuple[str, str]) -> tuple[dict[str, str], ...]:
    return tuple({"role": role, "content": content} for role, content in turns)


def shown(tokenizer, one: Problem, **fields) -> str:
    """The text behind the ids, special tokens included."""
    [ids] = Prompts(tokenizer, PromptConfig(**fields)).encode([one])
    return tokenizer.backend.decode(ids.tolist(), skip_special_tokens=False)


contents = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
turns = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), contents), max_size=3)
chats = st.builds(
    lambda system, middle, last: chat(*([("system", system)] if system else []), *middle, ("user", last)),
    contents, turns, contents,
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(messages=chats)
def test_a_chat_is_encoded_as_transformers_does_it(tokenizers, references, kind, messages):
    [ids] = Prompts(tokenizers[kind]).encode([problem(messages)])
    expected = references[kind].apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)
    assert ids.dtype == np.int32
    assert ids.tolist() == expected


def test_a_chat_by_hand(tokenizers):
    messages = chat(("system", "Be brief."), ("user", "2+2?"))
    assert shown(tokenizers["chatml"], problem(messages)) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert shown(tokenizers["headers"], problem(messages)) == (
        "<|bos|><|head|>system<|tail|>\n\nBe brief.<|eot|><|head|>user<|tail|>\n\n2+2?<|eot|>"
        "<|head|>assistant<|tail|>\n\n"
    )


def test_system_suffix_prefix_and_options(tokenizers):
    fields = dict(system="S", suffix="Box it.", generation_prefix="<think>\n", template_options={})
    rendered = (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n2+2?\nBox it.<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )
    for prompt in (chat(("user", "2+2?")), chat(("system", "old"), ("user", "2+2?"))):
        assert shown(tokenizers["chatml"], problem(prompt), **fields) == rendered
    assert shown(tokenizers["chatml"], problem("2+2?"), chat_template="on", **fields) == rendered
    off = shown(tokenizers["chatml"], problem(chat(("user", "?"))), template_options={"enable_thinking": False})
    assert off == "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n<think></think>"
    # The suffix belongs to the question that is asked last; white space of its own takes the line break's place.
    few = chat(("user", "1+1?"), ("assistant", "2"), ("user", "2+2?"))
    text = shown(tokenizers["chatml"], problem(few), suffix=" Go.")
    assert text.count(" Go.") == 1 and "user\n2+2? Go.<|im_end|>" in text


def test_text_without_a_template(tokenizers):
    fields = dict(system="A: ", suffix="B:", generation_prefix=" <think>")
    assert shown(tokenizers["chatml"], problem("2+2?"), **fields) == "A: 2+2?\nB: <think>"
    assert shown(tokenizers["headers"], problem("2+2?"), **fields) == "<|bos|>A: 2+2?\nB: <think>"
    messages = chat(("system", "S"), ("user", "2+2?"))
    assert shown(tokenizers["headers"], problem(messages), chat_template="off") == "<|bos|>S\n\n2+2?"


def test_plain_texts_without_the_template_that_there_is_are_said_once(tokenizers, tmp_path, caplog):
    prompts = Prompts(tokenizers["chatml"])
    assert prompts.also == ""
    prompts.encode([problem("2+2?"), problem("2+3?")])
    prompts.remember([problem("2+4?")])
    [said] = caplog.messages
    assert said.startswith(f"{tokenizers['chatml'].directory} has a chat template, and prompts that are plain texts")
    assert "chat_template=on" in prompts.also
    assert "set config.prompts.chat_template=on (of curate: --chat_template=on), or off" in said
    save_arithmetic_tokenizer(tmp_path)
    rendered = "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    for tokenizer, prompt, wanted in [
        (tokenizers["chatml"], "2+2?", "on"),
        (tokenizers["chatml"], "2+2?", "off"),
        (tokenizers["chatml"], chat(("user", "2+2?")), "auto"),
        (tokenizers["chatml"], rendered, "auto"),
        (load_tokenizer(tmp_path), "2+2=", "auto"),
    ]:
        prompts = Prompts(tokenizer, PromptConfig(chat_template=wanted))
        prompts.encode([problem(prompt)])
        assert prompts.also == ""
    assert len(caplog.messages) == 1


def test_an_end_that_the_template_never_writes_is_said_once(tmp_path, caplog):
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    save(tmp_path, special=special, bos=None, eos="<|endoftext|>", chat_template=CHATML)
    asked = problem(chat(("user", "2+2?")))
    Prompts(load_tokenizer(tmp_path), PromptConfig(chat_template="off")).encode([asked])
    assert not caplog.messages
    Prompts(load_tokenizer(tmp_path)).encode([asked, problem(chat(("user", "2+3?")))])
    assert caplog.messages == [
        f"{tmp_path}: its chat template writes '<|im_end|>' behind an answer, and what ends a completion is "
        "['<|endoftext|>'], so that answers may never end: list the former in eos_token_id of generation_config.json"
    ]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [257, 258]}')  # as is said there
    caplog.clear()
    Prompts(load_tokenizer(tmp_path)).encode([asked])
    assert not caplog.messages


def test_a_system_message_that_the_template_leaves_out_is_said_once(tokenizers, tmp_path, caplog):
    ignoring = CHATML.replace("for message in messages", "for message in messages if message.role != 'system'")
    save(tmp_path, special=["<|im_start|>", "<|im_end|>"], bos=None, eos="<|im_end|>", chat_template=ignoring)
    asked, own = problem(chat(("user", "2+2?"))), problem(chat(("system", "S"), ("user", "2+2?")))
    for tokenizer, prompt, system in ((load_tokenizer(tmp_path), asked, ""), (tokenizers["chatml"], own, "Be brief.")):
        Prompts(tokenizer, PromptConfig(system=system)).encode([prompt])
    assert not caplog.messages
    for prompt, system in ((asked, "Be brief."), (own, "")):
        caplog.clear()
        Prompts(load_tokenizer(tmp_path), PromptConfig(system=system)).encode([asked, prompt, prompt])
        [said] = caplog.messages
        assert said.startswith(f"{tmp_path}: its chat template leaves out system messages (config.prompts.system, or")


def test_a_tokenizer_that_ends_prompts_is_refused(tmp_path):
    save(tmp_path, special=["<s>", "</s>"], bos="<s>", eos="</s>", chat_template=CHATML)
    backend = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 256), ("</s>", 257)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    prompts = Prompts(load_tokenizer(tmp_path))
    with pytest.raises(InputError, match=r"the post_processor of tokenizer.json puts '</s>', .* \(add_eos_token\)"):
        prompts.encode([problem("2+2?")])
    for prompt in (chat(("user", "2+2?")), "<s>2+2?"):  # nothing is put around these
        assert 257 not in Prompts(load_tokenizer(tmp_path)).encode([problem(prompt)])[0]


def test_special_tokens_are_never_doubled(tokenizers):
    """Neither by a template that writes them, nor in a text that was rendered elsewhere."""
    headers = tokenizers["headers"]
    bos = headers.backend.token_to_id("<|bos|>")
    rendered = shown(headers, problem(chat(("user", "hi"))))
    for prompt in ("hi", chat(("user", "hi")), rendered):
        [ids] = Prompts(headers).encode([problem(prompt)])
        assert (ids == bos).sum() == 1 and ids[0] == bos
    assert shown(headers, problem(rendered)) == rendered


def test_plain_prompts_of_the_study_are_what_they_were(tmp_path):
    save_arithmetic_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    problems = make_problems(200, seed=0)
    expected = tokenizer.encode_batch([one.text for one in problems])
    for encoded in (Prompts(tokenizer).encode(problems), Prompts(tokenizer).remember(problems)):
        assert [ids.tolist() for ids in encoded] == [ids.tolist() for ids in expected]


def test_token_ids_are_read_as_they_stand(tokenizers):
    one = problem("", prompt_tokens=(5, 3, 5))
    [ids] = Prompts(tokenizers["headers"], PromptConfig("on", "S", "T", "<think>")).encode([one])
    assert ids.dtype == np.int32 and ids.tolist() == [5, 3, 5]
    size = tokenizers["headers"].vocab_size
    with pytest.raises(
        InputError, match=f"problem 'p': prompt_tokens has the id {size}, and the tokenizer of .* {size}"
    ):
        Prompts(tokenizers["headers"]).encode([problem("", prompt_tokens=(1, size))])


def test_kinds_mix_and_keep_their_order(tokenizers):
    problems = [problem("a"), problem(chat(("user", "b"))), problem("", prompt_tokens=(7,)), problem("<|bos|>c")]
    prompts = Prompts(tokenizers["headers"])
    apart = [prompts.encode([one])[0].tolist() for one in problems]
    assert [ids.tolist() for ids in prompts.encode(problems)] == apart


def test_remembered_prompts_are_encoded_once(tokenizers, monkeypatch):
    prompts = Prompts(tokenizers["chatml"])
    problems = [problem(chat(("user", str(i)))) for i in range(3)]  # of one id: files share ids
    known = prompts.remember(problems)
    assert len({ids.tobytes() for ids in known}) == 3
    equal = dataclasses.replace(problems[0])
    expected = known[0].tolist()
    monkeypatch.setattr(prompts, "_render", lambda _: pytest.fail("rendered again"))
    assert all(a is b for a, b in zip(prompts.encode(problems[::-1]), known[::-1], strict=True))
    monkeypatch.undo()
    [again] = prompts.encode([equal])
    assert again.tolist() == expected and again is not known[0]


def test_no_template_is_named_with_the_remedy(tmp_path):
    save_arithmetic_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    for one, fields, why in [
        (problem(chat(("user", "1"))), {}, "the prompt is a list of messages"),
        (problem("1"), {"chat_template": "on"}, "chat_template = 'on'"),
    ]:
        message = f"^{re.escape(str(tmp_path))}: no chat template in tokenizer_config.json, and no chat_template.jinja"
        with pytest.raises(InputError, match=message) as caught:
            Prompts(tokenizer, PromptConfig(**fields)).encode([one])
        assert f"problem 'p' needs one ({why}). Put the chat_template.jinja there" in str(caught.value)
    assert shown(tokenizer, problem(chat(("user", "1+1="))), chat_template="off") == "1+1="


def test_what_a_template_refuses_is_named(tokenizers):
    message = r"its chat template refuses the prompt of problem 'p' \(no role tool\); see config.prompts.system"
    with pytest.raises(InputError, match=message):
        Prompts(tokenizers["headers"]).encode([problem(chat(("tool", "x"), ("user", "y")))])


def test_todays_date_is_no_part_of_a_prompt(tmp_path):
    """Llama 3.2's template writes it; a run has to be the same tomorrow."""
    save_chatml(tmp_path)
    dated = "{{ date_string if date_string is defined else strftime_now('%d %b %Y') }}: {{ messages[0].content }}"
    (tmp_path / "chat_template.jinja").write_text(dated)
    tokenizer, one = load_tokenizer(tmp_path), problem(chat(("user", "2+2?")))
    with pytest.raises(InputError, match="its chat template writes today's date into every prompt"):
        Prompts(tokenizer).encode([one])
    assert shown(tokenizer, one, template_options={"date_string": "1 May 2031"}) == "1 May 2031: 2+2?"
    assert shown(tokenizer, one, chat_template="off") == "2+2?"


def test_options_without_a_template_are_refused():
    with pytest.raises(InputError, match="template_options are read by a chat template"):
        PromptConfig("off", template_options={"enable_thinking": False})


def test_options_from_flags():
    assert parse_options("--template_options", ["enable_thinking=false", "budget=3", "style=plain=x"]) == {
        "enable_thinking": False,
        "budget": 3,
        "style": "plain=x",
    }
    with pytest.raises(InputError, match="--template_options: 'thinking' is not of the form name=value"):
        parse_options("--template_options", ["thinking"])
