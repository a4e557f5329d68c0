"""Where and how the model is computed."""

from __future__ import annotations

import dataclasses

from isocompute_jax.model import ATTENTION_HELP, HEAD_HELP, REMAT_HELP, AttentionKernel, HeadPrecision, Remat
from isocompute_jax.options import check, described, option


@described
@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each mesh axis (see `sharding`)."""

    data: int = option(1, "Devices over which the rollouts of a batch are divided.", low=1)
    fsdp: int = option(1, "Devices over which weights and moments are divided, and the rollouts too.", low=1)
    context: int = option(
        1,
        "Devices over which weights and moments are divided, and each packed row along its tokens, for rows that are "
        "longer than one device has room for.",
        low=1,
        later=True,
    )
    tensor: int = option(1, "Devices over which heads and hidden units are divided.", low=1)
    expert: int = option(
        1, "Devices over which experts are divided, and the rollouts too; 1 for dense models.", low=1, later=True
    )

    def __post_init__(self) -> None:
        check(self)


@described
@dataclasses.dataclass(frozen=True)
class ComputeConfig:
    """How the model is computed: what is kept, by which kernel, and how exactly (see `ModelConfig`)."""

    remat: Remat = option("none", REMAT_HELP, identity=False)
    attention: AttentionKernel = option("auto", ATTENTION_HELP, identity=False)
    head: HeadPrecision = option("auto", HEAD_HELP)

    def __post_init__(self) -> None:
        check(self)
