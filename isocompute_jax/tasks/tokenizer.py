"""Tokenizers: any Hugging Face directory's, and the embedded task's own, one token per character."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import hide_missing_pytorch
from isocompute_jax.records.run_files import write_atomic

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"
MODEL_CONFIG = "config.json"

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
ARITHMETIC_VOCABULARY = (PAD, EOS, UNKNOWN, *"0123456789+-=,")

AT_ONCE = 512
"""Texts that are encoded in one call."""

LONGEST_CHARACTER = 16
"""Tokens that together may make one character; more are no text."""

NO_TOKEN = "\N{REPLACEMENT CHARACTER}"
"""What an id without a token is decoded to (models round their vocabulary up, and may sample such ids)."""


@dataclasses.dataclass(frozen=True, eq=False)
class Tokenizer:
    """A fast (Rust) tokenizer, and the ids that sampling and padding need."""

    backend: Any  # the `tokenizers.Tokenizer`
    eos_ids: tuple[int, ...]  # ids that end a completion, the tokenizer's own first
    pad_id: int  # the padding id; the end-of-sequence id where the tokenizer has none (padding is masked in any case)
    # ids below it may have a token in tokenizer.json; ids from it on have none, or one that transformers added, which
    # no model has learned
    vocab_size: int
    # messages, and what else its template reads as keywords -> the text of the chat, the beginning of an answer
    # included; None where there is no chat template
    chat: Callable[..., str] | None = None
    dated: bool = False  # whether that template writes today's date, unless it is given another
    bos: str = ""  # the text of the token that every text begins with; empty where there is none
    directory: str = ""  # where it was loaded from, for messages
    after_answers: str = ""  # what that template writes behind an answer; empty where that cannot be told

    def encode(self, text: str) -> np.ndarray:
        """[S] int32 ids, with the special tokens the tokenizer puts around a text (Qwen's puts none)."""
        return np.array(self.backend.encode(text).ids, dtype=np.int32)

    def encode_batch(self, texts: Sequence[str], *, special_tokens: bool = True) -> list[np.ndarray]:
        """`encode` for many texts, faster than one by one; `special_tokens` False where they are written in them."""
        encoded = []
        for start in range(0, len(texts), AT_ONCE):  # an encoding takes far more memory than its ids
            part = list(texts[start : start + AT_ONCE])
            encodings = self.backend.encode_batch_fast(part, add_special_tokens=special_tokens)
            encoded += [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]
        return encoded

    def encode_within(self, text: str) -> np.ndarray:
        """[C] int32 ids of a text that stands within others: without special tokens around it.

        Raises:
          InputError: the tokenizer does not know all of it.
        """
        ids = self.backend.encode(text, add_special_tokens=False).ids
        read = self.backend.decode(ids, skip_special_tokens=False)
        if read != text:
            raise InputError(f"{text!r} is not made of the tokenizer's tokens: it reads back as {read!r}")
        return np.array(ids, dtype=np.int32)

    def decode(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """Texts of completions.

        The end-of-sequence id at the end is left out. Every other special token stays visible, and an id without a
        token becomes `NO_TOKEN`: a verifier that compares whole texts must not take `5<pad>0` for `50`.
        """
        bare = [ids[:-1] if len(ids) and ids[-1] in self.eos_ids else ids for ids in batch]
        texts = self.backend.decode_batch(bare, skip_special_tokens=False)
        for row, ids in enumerate(bare):
            if len(ids) and max(ids) >= self.vocab_size:
                texts[row] = self._decode_with_gaps(ids)
        return texts

    def _decode_with_gaps(self, ids: Sequence[int]) -> str:
        runs: list[list[int]] = [[]]
        for token in ids:
            if token < self.vocab_size:
                runs[-1].append(token)
            else:
                runs.append([])
        return NO_TOKEN.join(self.backend.decode_batch(runs, skip_special_tokens=False))


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The text that each token adds, special tokens and the one at the end too; joined they are the text of all.

    A token may be a part of a character only: then the last of those that make it has it, and the others have nothing.
    What a token reads as may depend on the one before it (the space before a word), so it is decoded behind that one.
    An id without a token becomes `NO_TOKEN`.
    """
    texts: list[str] = []
    before: list[int] = []
    pending: list[int] = []
    for token in ids:
        if token >= tokenizer.vocab_size:
            texts.append(_added(tokenizer, before, pending) + NO_TOKEN)
            before, pending = [], []
            continue
        pending.append(token)
        text = _added(tokenizer, before, pending)
        if text.endswith(NO_TOKEN) and len(pending) < LONGEST_CHARACTER:
            texts.append("")
        else:
            texts.append(text)
            before, pending = pending, []
    if pending:  # the beginning of a character that never came
        texts[-1] = _added(tokenizer, before, pending)
    return texts


def _added(tokenizer: Tokenizer, before: list[int], pending: list[int]) -> str:
    """What `pending` adds to the text of `before`."""
    context, both = tokenizer.backend.decode_batch([before, before + pending], skip_special_tokens=False)
    return both[len(context) :]


def load_tokenizer(directory: str | os.PathLike[str]) -> Tokenizer:
    """Loads the tokenizer of a Hugging Face directory, from its files alone (never from the network).

    The ids that end a completion are the tokenizer's and, where there is a generation_config.json, also those named
    there: instruction-tuned models have several.

    Raises:
      InputError: no tokenizer.json, a broken file, or no end-of-sequence token that tokenizer.json has.
    """
    directory = pathlib.Path(directory)
    path = directory / TOKENIZER
    if not path.is_file():
        raise InputError(
            f"{directory} has no {TOKENIZER}: give a Hugging Face directory with a fast tokenizer "
            "(transformers writes one with AutoTokenizer.from_pretrained(...).save_pretrained(directory))"
        )
    # Prompts and completions come in small batches of short texts: handing them to threads costs more than it saves.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    hide_missing_pytorch()
    from tokenizers import Tokenizer as Backend
    from transformers import AutoTokenizer

    try:
        known = Backend.from_file(str(path)).get_vocab(with_added_tokens=True)
        loaded = AutoTokenizer.from_pretrained(
            str(directory), config=_model_config(directory), local_files_only=True, trust_remote_code=False
        )
        backend = loaded.backend_tokenizer
    except Exception as error:  # the Rust library raises plain Exception
        raise InputError(f"{path}: cannot load the tokenizer ({error}); restore its files") from error
    if loaded.eos_token_id is None:
        raise InputError(f"{directory / TOKENIZER_CONFIG}: names no eos_token, so completions would never end; add it")
    if loaded.eos_token not in known:
        raise InputError(
            f"{directory / TOKENIZER_CONFIG}: eos_token is {loaded.eos_token!r} (or transformers takes that where the "
            f"file names none), which {TOKENIZER} does not have, so completions would never end: name one that it has"
        )
    vocab_size = max(known.values()) + 1
    _, listed = (_eos_ids(directory / name, vocab_size) for name in (MODEL_CONFIG, GENERATION_CONFIG))
    after = "" if loaded.chat_template is None else end_of_answers(loaded)
    if listed and loaded.eos_token_id not in listed:
        _check_stop_token(directory, loaded, listed, after)
    # A saved tokenizer may pad or cut every text it is given.
    backend.no_padding()
    backend.no_truncation()
    eos = loaded.eos_token_id
    return Tokenizer(
        backend=backend,
        eos_ids=tuple(dict.fromkeys([eos, *listed])),
        pad_id=loaded.pad_token_id if loaded.pad_token in known else eos,
        vocab_size=vocab_size,
        chat=None if loaded.chat_template is None else functools.partial(_chat, loaded),
        dated="strftime_now" in str(loaded.chat_template),
        bos=loaded.bos_token or "",
        directory=str(directory),
        after_answers=after,
    )


def _chat(loaded: Any, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """The chat as the tokenizer's own template writes it."""
    return loaded.apply_chat_template(
        [dict(message) for message in messages], tokenize=False, add_generation_prompt=True, **options
    )


def end_of_answers(loaded: Any) -> str:
    """What a transformers tokenizer's chat template writes behind an answer; empty where that cannot be told."""
    answer = "The answer is 42."
    chat = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": answer}]
    try:
        return loaded.apply_chat_template(chat, tokenize=False).partition(answer)[2].strip()
    except Exception:  # a template may refuse any chat
        return ""


def _check_stop_token(directory: pathlib.Path, loaded: Any, listed: Sequence[int], after: str) -> None:
    """Raises InputError where neither generation_config.json nor the chat template knows the tokenizer's own end."""
    if after and loaded.eos_token not in after:
        names = ", ".join(repr(loaded.convert_ids_to_tokens(token)) for token in listed)
        raise InputError(
            f"{directory / TOKENIZER_CONFIG}: eos_token is {loaded.eos_token!r}, but {GENERATION_CONFIG} says that "
            f"{names} ends a text, and the chat template writes {after!r} after an answer: set eos_token to that"
        )


def _model_config(directory: pathlib.Path) -> Any:
    """transformers' config of the model, which the tokenizer's class may depend on; None where there is none.

    One that it does not take, as the published Llama 4's, whose `attn_temperature_tuning` is 4, is read without checks.
    """
    from transformers import AutoConfig, PreTrainedConfig

    if not (directory / MODEL_CONFIG).is_file():
        return None
    try:
        return AutoConfig.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    except Exception:  # transformers checks fields with exceptions of many types
        return PreTrainedConfig.from_pretrained(str(directory), local_files_only=True)


def _eos_ids(path: pathlib.Path, vocab_size: int) -> list[int]:
    """`eos_token_id` of a config.json or generation_config.json: a number, a list, or nothing."""
    if not path.is_file():
        return []
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        ids = found if isinstance(found, list) else [] if found is None else [found]
        if not all(type(token) is int and 0 <= token < vocab_size for token in ids):
            raise ValueError(f"{json.dumps(found)}, and the tokenizer's are 0 to {vocab_size - 1}")
        return ids
    except (ValueError, AttributeError) as error:
        raise InputError(f"{path}: eos_token_id is not a token id or a list of them ({error}); fix the file") from error


def save_arithmetic_tokenizer(directory: str | os.PathLike[str]) -> None:
    """Writes the embedded task's tokenizer: one token per character, `<pad>` and `<eos>`, and `<unk>` for the rest."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: index for index, token in enumerate(ARITHMETIC_VOCABULARY)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()  # without it, tokens are joined by spaces
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (PAD, EOS)])
    config = {
        # The generic class, under the name that all versions of transformers know: without it, a config.json beside it
        # that says "qwen3" puts Qwen's tokenizer in place of ours. One that says "qwen2" does so whatever stands here
        # (transformers 5.23): it gives every character of ours the same id, and leaves others out, not <unk>.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": EOS,
        "clean_up_tokenization_spaces": False,
    }
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    write_atomic(directory / TOKENIZER, backend.to_str(pretty=True) + "\n")
    write_atomic(directory / TOKENIZER_CONFIG, json.dumps(config, indent=2) + "\n")
