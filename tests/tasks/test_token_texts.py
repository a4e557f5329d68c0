"""The text of each token: whole characters, spaces where they belong, nothing lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from isocompute_jax.tasks import Tokenizer, load_tokenizer, save_arithmetic_tokenizer, token_texts
from isocompute_jax.tasks.tokenizer import NO_TOKEN


def wrapped(backend: Backend) -> Tokenizer:
    return Tokenizer(backend, (0,), 0, max(backend.get_vocab().values()) + 1)


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    """A token for each byte, as Qwen's and Llama 3's have them beside longer ones."""
    vocabulary = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return wrapped(backend)


def test_the_last_token_of_a_character_has_it(byte_level):
    ids = byte_level.encode("a\u00e9\U0001f600b").tolist()
    assert token_texts(byte_level, ids) == ["a", "", "\u00e9", "", "", "", "\U0001f600", "b"]
    assert token_texts(byte_level, ids[:-2]) == ["a", "", "\u00e9", "", "", NO_TOKEN]  # cut within a character
    assert token_texts(byte_level, []) == []


@settings(max_examples=40)
@given(text=st.text(max_size=20))
def test_nothing_is_lost(byte_level, text):
    ids = byte_level.encode(text).tolist()
    pieces = token_texts(byte_level, ids)
    assert len(pieces) == len(ids) and "".join(pieces) == text


@settings(max_examples=40)
@given(ids=st.lists(st.integers(0, 255), max_size=20))
def test_bytes_that_are_no_text_have_a_piece_each_too(byte_level, ids):
    assert len(token_texts(byte_level, ids)) == len(ids)


def test_the_space_before_a_word_is_not_lost():
    """Decoders of SentencePiece leave it out at the beginning of a text, and so of a token on its own."""
    backend = Backend(models.WordLevel({"<unk>": 0, "\u2581so": 1, "\u2581it": 2, "s": 3}, unk_token="<unk>"))
    backend.decoder = decoders.Metaspace()
    tokenizer = wrapped(backend)
    assert backend.decode([1, 2, 3, 1]) == "so its so"
    assert token_texts(tokenizer, [1, 2, 3, 1]) == ["so", " it", "s", " so"]


def test_special_tokens_are_seen_and_ids_without_a_token_marked(tmp_path):
    save_arithmetic_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert token_texts(tokenizer, [8, 99, 3, 0, 1]) == ["5", NO_TOKEN, "0", "<pad>", "<eos>"]
