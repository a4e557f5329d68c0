"""What a vLLM engine is told when it is made. Imports nothing of vLLM."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Settings:
    """The arguments of `VllmEngine`, which explains them."""

    model: str
    dtype: str
    max_model_len: int | None
    max_group_size: int
    kv_cache_bytes: int | None
    tensor_parallel: int
    data_parallel: int
    gpu_memory_utilization: float | None
    load: bool
