"""From problems to what the model reads: chat template, system prompt, answer format, beginning of the answer.

A prompt is rendered to text and encoded once. A list of messages is written by the tokenizer's own chat template, whose
text has its special tokens in it; plain text is encoded as the tokenizer encodes any text. Token ids that a problem
brings along are read as they stand.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from isocompute_jax.options import check, described, field_of, option
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Message, Problem
from isocompute_jax.tasks.tokenizer import GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG, Tokenizer

LOG = logging.getLogger(__name__)

CHAT_TEMPLATE = "chat_template.jinja"


def parse_options(flag: str, texts: Sequence[str]) -> dict[str, Any]:
    """`enable_thinking=false` and the like, whose values are JSON (or else text), as a mapping."""
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InputError(f"{flag}: {text!r} is not of the form name=value, such as enable_thinking=false")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


@described
@dataclasses.dataclass(frozen=True)
class PromptConfig:
    """How problems are put to the model. Prompts that a file brings along as token ids are left as they are."""

    chat_template: Literal["auto", "on", "off"] = option(
        "auto",
        "The tokenizer's chat template: auto for prompts that are lists of messages, on for plain texts too (each a "
        "user's message), off for none (the texts of messages, with blank lines between them).",
    )
    system: str = option(
        "",
        "System message, in place of the prompt's own. Without a chat template it stands before the prompt, on a line "
        "of its own unless it ends with white space.",
    )
    suffix: str = option(
        "",
        "Stands behind the prompt (its last user message), such as how to give the answer; on a line of its own unless "
        "it begins with white space.",
    )
    generation_prefix: str = option("", "How every answer begins, such as `<think>\\n`; read, and not trained on.")
    template_options: dict[str, Any] = option(
        default_factory=dict,
        help="What the chat template reads beside the messages, such as enable_thinking=false.",
        parse=parse_options,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.template_options and self.chat_template == "off":
            raise InputError(
                field_of(self, "template_options"),
                " are read by a chat template, and ",
                field_of(self, "chat_template"),
                " = 'off': leave one of them out",
            )
        reserved = {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "tokenize"}
        wrong = sorted(reserved & set(self.template_options))
        if wrong:
            raise InputError(
                field_of(self, "template_options"), f": {wrong[0]!r} is not an option of a template; leave it out"
            )


class Prompts:
    """The prompts of problems as token ids.

    Args:
      tokenizer: the model's.
      config: how prompts are rendered.
    """

    def __init__(self, tokenizer: Tokenizer, config: PromptConfig = PromptConfig()):
        self.tokenizer = tokenizer
        self.also = ""  # advice beside that on answers that are cut off, where prompts may be why
        self.warned: dict[str, str] = {}  # `ends` or `template` -> what was said of them
        self._config = config
        self._seen: set[bool] = set()  # kinds that were checked: chats, plain texts
        self._system_checked = False
        self._known: dict[int, tuple[Problem, np.ndarray]] = {}

    def encode(self, problems: Sequence[Problem]) -> list[np.ndarray]:
        """[S] int32 ids of each problem's prompt; those that are remembered are only looked up.

        Raises:
          InputError: a prompt cannot be rendered; names the problem, the file or field at fault, and what to do.
        """
        found = {}
        texts: dict[bool, list[tuple[int, str]]] = {False: [], True: []}
        for place, problem in enumerate(problems):
            known = self._known.get(id(problem))
            if known is not None:
                found[place] = known[1]
            elif problem.prompt_tokens:
                found[place] = self._checked(problem)
            else:
                text, written = self._render(problem)
                texts[written].append((place, text))
        for written, placed in texts.items():
            encoded = self.tokenizer.encode_batch([text for _, text in placed], special_tokens=not written)
            for (place, _), ids in zip(placed, encoded, strict=True):
                found[place] = self._known_to_file(problems[place], ids)
        return [found[place] for place in range(len(problems))]

    def remember(self, problems: Sequence[Problem]) -> list[np.ndarray]:
        """`encode`, and keeps the ids for these very problems (four bytes a token) until the end."""
        encoded = self.encode(problems)
        # By identity, since ids of problems are unique within one file only. The problem is kept too: so long as it
        # lives, nothing else has its identity.
        self._known.update({id(p): (p, ids) for p, ids in zip(problems, encoded, strict=True)})
        return encoded

    def _render(self, problem: Problem) -> tuple[str, bool]:
        """The text that is encoded, and whether its special tokens are written in it."""
        config, tokenizer = self._config, self.tokenizer
        if not self.is_chat(problem):
            text = _plain_text(problem.prompt, config) + config.generation_prefix
            # A text that was rendered elsewhere begins with what the tokenizer would put before it once more.
            written = bool(tokenizer.bos) and text.startswith(tokenizer.bos)
            self._check_first(problem, text, written)
            return text, written
        if tokenizer.chat is None:
            why = "the prompt is a list of messages" if config.chat_template == "auto" else "chat_template = 'on'"
            raise InputError(
                f"{tokenizer.directory}: no chat template in {TOKENIZER_CONFIG}, and no {CHAT_TEMPLATE}: problem "
                f"{problem.id!r} needs one ({why}). Put the {CHAT_TEMPLATE} there that the model was trained with, or "
                "set config.prompts.chat_template=off (of curate: --chat_template=off)"
            )
        if tokenizer.dated and "date_string" not in config.template_options:
            raise InputError(
                f"{tokenizer.directory}: its chat template writes today's date into every prompt (strftime_now), so "
                "that no run could be repeated tomorrow: set config.prompts.template_options to {'date_string': "
                "'26 Jul 2024'}, or write a date into the template"
            )
        messages = _messages(problem.prompt, config)
        text = self.chat(problem, messages)
        self._check_first(problem, text, True)
        self._check_system(problem, text, messages)
        return text, True

    def _check_first(self, problem: Problem, text: str, written: bool) -> None:
        """Warns, of the first text of a kind, of answers that may never end; an end before them is an InputError."""
        if (chat := self.is_chat(problem)) in self._seen:
            return
        self._seen.add(chat)
        tokenizer, where = self.tokenizer, self.tokenizer.directory
        ends, after = list(filter(None, map(tokenizer.backend.id_to_token, tokenizer.eos_ids))), tokenizer.after_answers
        if chat and after and not any(end in after for end in ends):
            self._warn(
                "ends",
                f"{where}: its chat template writes {after!r} behind an answer, and what ends a completion is {ends}, "
                f"so that answers may never end: list the former in eos_token_id of {GENERATION_CONFIG}",
            )
        own, read = (tokenizer.backend.encode(text, add_special_tokens=each).tokens for each in (False, not written))
        if own and read[-1] != own[-1] and read[-1] in ends:
            raise InputError(
                f"{where}: the post_processor of {TOKENIZER} puts {read[-1]!r}, which ends a completion, behind every "
                "text (add_eos_token), so that prompts would end before their answers begin: take it out there"
            )
        special = [token.content for token in tokenizer.backend.get_added_tokens_decoder().values() if token.special]
        asked = chat or tokenizer.chat is None or self._config.chat_template != "auto"
        if not asked and not any(token in text for token in special):  # else it was rendered elsewhere
            self.also = " (or set config.prompts.chat_template=on: prompts go without the model's)"
            self._warn(
                "template",
                f"{where} has a chat template, and prompts that are plain texts, as that of problem {problem.id!r}, go "
                "without it, so that answers may never end: set config.prompts.chat_template=on (of curate: "
                "--chat_template=on), or off where it is meant so",
            )

    def _warn(self, of: str, sentence: str) -> None:
        self.warned[of] = sentence
        LOG.warning("%s", sentence)

    def _check_system(self, problem: Problem, text: str, messages: Sequence[Message]) -> None:
        """Warns, once, of a system message that the chat template leaves out."""
        others = [message for message in messages if message["role"] != "system"]
        if self._system_checked or len(others) == len(messages):
            return
        self._system_checked = True
        with contextlib.suppress(InputError):  # a template may ask for one, which it then writes
            if self.chat(problem, others) == text:
                LOG.warning(
                    "%s: its chat template leaves out system messages (config.prompts.system, or the prompt's own), as "
                    "that of problem %r: the model never reads them; say it in config.prompts.suffix or in the prompts",
                    self.tokenizer.directory, problem.id
                )  # fmt: skip

    def is_chat(self, problem: Problem) -> bool:
        """Whether the chat template writes its prompt."""
        if problem.prompt_tokens:
            return False
        wanted = self._config.chat_template
        return wanted == "on" or (wanted == "auto" and not isinstance(problem.prompt, str))

    def chat(self, problem: Problem, messages: Sequence[Message]) -> str:
        """The text of a chat about a problem, up to the beginning of its next answer.

        Raises:
          InputError: the template refuses it.
        """
        tokenizer = self.tokenizer
        assert tokenizer.chat is not None
        try:
            text = tokenizer.chat(messages, **self._config.template_options)
        except Exception as error:  # a template is a program, and raises what it likes
            raise InputError(
                f"{tokenizer.directory}: its chat template refuses the prompt of problem {problem.id!r} ({error}); "
                "see config.prompts.system and config.prompts.template_options, or mend the prompt"
            ) from error
        return text + self._config.generation_prefix

    def _known_to_file(self, problem: Problem, ids: np.ndarray) -> np.ndarray:
        """These ids, unless a token is among them that transformers added, such as a bos_token with a typo."""
        if len(ids) and ids.max() >= self.tokenizer.vocab_size:
            raise InputError(
                f"problem {problem.id!r}: its prompt has the token {self.tokenizer.backend.id_to_token(ids.max())!r}, "
                f"which {TOKENIZER_CONFIG} of {self.tokenizer.directory} names and {TOKENIZER} does not have: mend it"
            )
        return ids

    def _checked(self, problem: Problem) -> np.ndarray:
        """The ids that a problem brings along."""
        if max(problem.prompt_tokens) >= self.tokenizer.vocab_size:
            raise InputError(
                f"problem {problem.id!r}: prompt_tokens has the id {max(problem.prompt_tokens)}, and the tokenizer of "
                f"{self.tokenizer.directory} has {self.tokenizer.vocab_size}: encode it with this model's tokenizer"
            )
        return np.array(problem.prompt_tokens, dtype=np.int32)


WriteAs = Literal["auto", "user", "tool", "text"]
ANSWER = "\N{WHITE SQUARE}answer\N{WHITE SQUARE}"
"""Stands for an answer in a chat, to find what the template writes behind one."""


class Observations:
    """What an environment says, as the model reads it.

    Args:
      prompts: of the run.
      write_as: user or tool, a message of that role by the chat template; text, as it is; auto, a user's message where
        the prompt is a chat.
    """

    def __init__(self, prompts: Prompts, write_as: WriteAs):
        self.tokenizer = prompts.tokenizer
        self._prompts = prompts
        self._write_as = write_as

    def begun(self, problem: Problem, observation: str) -> np.ndarray:
        """[S] int32 ids of a problem's prompt that ends with what is observed first, before what stands behind prompts.

        Of messages the last ends with it; behind token ids that the problem brings along it stands as it is.
        """
        if problem.prompt_tokens:
            [prompt] = self._prompts.encode([problem])
            return np.concatenate([prompt, self._ids(observation)]).astype(np.int32)
        if isinstance(problem.prompt, str) and not self._prompts.is_chat(problem):
            begun = problem.prompt + observation
        else:
            *before, last = _as_messages(problem.prompt)
            said = _lines(last["content"], observation) if last["content"] else observation
            begun = (*before, {**last, "content": said})
        [prompt] = self._prompts.encode([dataclasses.replace(problem, prompt=begun)])
        return prompt

    def observation(self, problem: Problem, text: str, turn: Sequence[int]) -> np.ndarray:
        """[C] int32 ids of what stands between a turn of the policy, of these tokens, and its next.

        As a message: the end of the answer, unless the policy drew that itself; the message; the beginning of an
        answer.
        """
        role = self._write_as
        if role == "auto":
            role = "user" if self._prompts.is_chat(problem) else "text"
        if role == "text":
            return self._ids(text)
        if self.tokenizer.chat is None:
            raise InputError(
                f"config.environment.write_as = {role!r}: {self.tokenizer.directory} has no chat template; set it to "
                "text"
            )
        chat = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": ANSWER},
            {"role": role, "content": text},
        ]
        written = self._prompts.chat(problem, chat).partition(ANSWER)[2]
        ids = self._ids(written)
        if turn and turn[-1] in self.tokenizer.eos_ids and turn[-1] in ids[:1]:
            return ids[1:]
        return ids

    def shortened(self, text: str, tokens: int) -> str:
        """A text without so many tokens of its end, nor the character that they cut in two."""
        spans = self.tokenizer.backend.encode(text, add_special_tokens=False).offsets
        kept = len(spans) - tokens
        return text[: min(spans[kept - 1][1], spans[kept][0], len(text) - 1)] if kept > 0 else ""

    def _ids(self, text: str) -> np.ndarray:
        return np.array(self.tokenizer.backend.encode(text, add_special_tokens=False).ids, dtype=np.int32)


def _as_messages(prompt: str | Iterable[Message]) -> list[Message]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


def _messages(prompt: str | Iterable[Message], config: PromptConfig) -> list[Message]:
    """The messages that the template is given."""
    messages = _as_messages(prompt)
    if config.system:
        others = [message for message in messages if message["role"] != "system"]
        messages = [{"role": "system", "content": config.system}, *others]
    if config.suffix:
        users = [place for place, message in enumerate(messages) if message["role"] == "user"]
        place = users[-1] if users else len(messages) - 1
        content = _lines(messages[place]["content"], config.suffix)
        messages[place] = {**messages[place], "content": content}
    return messages


def _plain_text(prompt: str | Iterable[Message], config: PromptConfig) -> str:
    """The same without a template."""
    if not isinstance(prompt, str):
        return "\n\n".join(message["content"] for message in _messages(prompt, config))
    text = _lines(config.system, prompt) if config.system else prompt
    return _lines(text, config.suffix) if config.suffix else text


def _lines(first: str, second: str) -> str:
    """Both texts, with a line break between them unless one of them has white space there."""
    return first + second if first[-1:].isspace() or second[:1].isspace() else f"{first}\n{second}"
