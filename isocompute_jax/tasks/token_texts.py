"""The text of each token, for people who read rollouts token by token."""

from __future__ import annotations

from collections.abc import Sequence

from isocompute_jax.tasks.tokenizer import NO_TOKEN, Tokenizer

LONGEST_CHARACTER = 16
"""Tokens that together may make one character; more are no text."""


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
