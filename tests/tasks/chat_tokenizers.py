"""Small tokenizers with chat templates, a token per byte: ChatML as Qwen has it, and one with BOS as Llama 3 has it."""

from __future__ import annotations

import json
import pathlib

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

CHATML = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and not enable_thinking %}{{ '<think></think>' }}{%- endif %}{%- endif %}"
)
HEADERS = (
    "{{ bos_token }}{%- for message in messages %}"
    "{%- if message.role not in ('system', 'user', 'assistant') %}{{ raise_exception('no role ' + message.role) }}"
    "{%- endif %}{{ '<|head|>' + message.role + '<|tail|>\\n\\n' + message.content | trim + '<|eot|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|head|>assistant<|tail|>\\n\\n' }}{%- endif %}"
)


def save(path: pathlib.Path, *, special: list[str], bos: str | None, eos: str, **config: str) -> pathlib.Path:
    """A byte-level tokenizer; with `bos`, it puts that before every text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
        )
    path.mkdir(parents=True, exist_ok=True)
    backend.save(str(path / "tokenizer.json"))
    fields = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos, **config}
    if bos:
        fields["bos_token"] = bos
    (path / "tokenizer_config.json").write_text(json.dumps(fields))
    return path


def save_chatml(path: pathlib.Path) -> pathlib.Path:
    """Its template stands in tokenizer_config.json; no BOS."""
    special = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    return save(path, special=special, bos=None, eos="<|im_end|>", chat_template=CHATML)


def save_headers(path: pathlib.Path) -> pathlib.Path:
    """Its template stands in chat_template.jinja and writes the BOS, which the tokenizer puts before every text too."""
    save(path, special=["<|bos|>", "<|head|>", "<|tail|>", "<|eot|>"], bos="<|bos|>", eos="<|eot|>")
    (path / "chat_template.jinja").write_text(HEADERS)
    return path
