"""What `benchmarks.h200` measures: shapes of models, and the cases of each part. Imports nothing heavy."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

FUSED = ("mosaic", "triton")
"""Kernels of attention that tokamax brings."""
KERNELS = (*FUSED, "chunked")
"""Of attention, the quickest first; a learner takes the first that works."""

SHAPES: dict[str, dict[str, Any]] = {
    "qwen2.5-0.5b": dict(
        vocab_size=151_936, embed_dim=896, num_layers=24, num_heads=14, num_kv_heads=2, head_dim=64, mlp_dim=4864,
        tied_embeddings=True,
    ),
    "qwen2.5-1.5b": dict(
        vocab_size=151_936, embed_dim=1536, num_layers=28, num_heads=12, num_kv_heads=2, head_dim=128, mlp_dim=8960,
        tied_embeddings=True,
    ),
    "qwen2.5-7b": dict(
        vocab_size=152_064, embed_dim=3584, num_layers=28, num_heads=28, num_kv_heads=4, head_dim=128, mlp_dim=18_944,
        tied_embeddings=False,
    ),
    "small": dict(
        vocab_size=512, embed_dim=64, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, mlp_dim=128,
        tied_embeddings=True,
    ),
}  # fmt: skip
"""Qwen2.5's, as its config.json say them; and one to try the script with."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One measurement, in a process of its own."""

    part: str  # of `--parts`
    kind: Literal["rate", "attention", "learner", "torch", "decode"]  # what is measured
    model: str = "qwen2.5-1.5b"  # of `SHAPES`
    layers: int = 0  # a slice of so many of its layers; 0 for all
    row_tokens: int = 0  # tokens of a packed row
    rows: int = 1  # rows of a step, all computed at once
    sequence: int = 0  # tokens of each sequence in a row; 0: a row is one
    remat: str = "dots"  # what layers keep
    moments: str = "float32"  # how Adam's are kept
    attention: str = "auto"  # kernel
    slots: int = 0  # rollouts decoded at once
    prompt: int = 0  # tokens of each prompt, which a group of 8 shares
    completion: int = 0  # tokens of each completion
    repeats: int = 5  # timed steps, after two that are not

    @property
    def name(self) -> str:
        """Its line in tables."""
        model = self.model + (f", {self.layers} layers" if self.layers else "")
        if self.kind == "rate":
            return "bfloat16 products"
        if self.kind == "decode":
            return f"{model}, {self.slots} slots, {self.prompt} + {self.completion} tokens"
        rows = f"{self.rows} x {self.row_tokens:,}" + (f" of {self.sequence:,}" if self.sequence else "")
        if self.kind == "attention":
            return f"{model}, {rows}, {self.attention}"
        return f"{model}, {rows}"


def shape_of(case: Case) -> dict[str, Any]:
    """The shape of a case: its model's, with as many layers as it takes."""
    return SHAPES[case.model] | ({"num_layers": case.layers} if case.layers else {})


def cases(*, small: bool) -> list[Case]:
    """Every measurement, the most telling first within each part; `small` ones take seconds on a CPU."""
    if small:
        return _small()
    found = [Case("rate", "rate")]
    long: dict[str, Any] = dict(row_tokens=32_768)
    found += [Case("attention", "attention", "qwen2.5-7b", attention=kernel, **long) for kernel in KERNELS]
    found += [Case("attention", "attention", "qwen2.5-7b", attention=k, sequence=2048, **long) for k in KERNELS]
    of_rows: tuple[dict[str, Any], ...] = (
        dict(row_tokens=8192, rows=4),
        dict(row_tokens=32_768),
        dict(row_tokens=32_768, sequence=2048),
    )
    found += [Case("learner_1.5b", "learner", **rows) for rows in of_rows]
    found.append(Case("learner_1.5b", "learner", row_tokens=8192, rows=2, remat="none"))  # nothing is computed again
    # 7.6 B parameters: masters and gradients in float32 and moments in bfloat16 are 91 GB, and leave room for one more
    # array per layer and token, not for all products.
    kept: dict[str, Any] = dict(model="qwen2.5-7b", remat="attention_output", moments="bfloat16")
    found += [Case("learner_7b", "learner", **kept, **rows) for rows in of_rows]
    # Half of its layers have room for their products, as they have on more devices.
    found.append(Case("learner_7b", "learner", model="qwen2.5-7b", layers=14, moments="bfloat16", **of_rows[0]))
    for model in ("qwen2.5-1.5b", "qwen2.5-7b"):
        found += [Case("torch", "torch", model, **rows) for rows in of_rows[:2]]
    found.append(Case("decode", "decode", slots=256, prompt=512, completion=512))
    found.append(Case("decode", "decode", "qwen2.5-7b", slots=128, prompt=512, completion=512))
    return found


def _small() -> list[Case]:
    found = [Case("rate", "rate", "small", repeats=2)]
    tiny: dict[str, Any] = dict(model="small", row_tokens=256, repeats=1)
    found += [Case("attention", "attention", attention=kernel, **tiny) for kernel in ("mosaic", "chunked")]
    found.append(Case("learner_1.5b", "learner", rows=2, **tiny))
    found.append(Case("learner_7b", "learner", sequence=64, remat="attention_output", moments="bfloat16", **tiny))
    found.append(Case("torch", "torch", rows=2, **tiny))
    found.append(Case("decode", "decode", "small", slots=16, prompt=16, completion=16, repeats=1))
    return found
