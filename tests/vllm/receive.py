"""One rank of vLLM's own NCCL engine, without a model: says the SHA-256 of every tensor that it would load.

python -m tests.vllm.receive INFO, which is a JSON object: init_info, rank, updates.
"""

from __future__ import annotations

import hashlib
import json
import sys
import types

from tests.vllm import stand_in


class Model:
    """Loads nothing."""

    def load_weights(self, weights):
        for name, tensor in weights:
            print(json.dumps([name, str(tensor.dtype), list(tensor.shape), sha256(tensor)]), flush=True)


def sha256(tensor) -> str:
    import torch

    return hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def main() -> None:
    info = json.loads(sys.argv[1])
    stand_in.install()
    import torch
    from vllm.distributed.weight_transfer.nccl_engine import (  # pyright: ignore[reportMissingImports]
        NCCLWeightTransferEngine,
    )

    parallel = types.SimpleNamespace(data_parallel_index=0, world_size=info["ranks"], rank=info["rank"])
    config = types.SimpleNamespace(parallel_config=parallel, model_config=None)
    engine = NCCLWeightTransferEngine(None, config, torch.device("cpu"), Model())
    engine.init_transfer_engine(engine.parse_init_info(info["init_info"]))
    for update in info["updates"]:
        engine.receive_weights(engine.parse_update_info(update))
    engine.shutdown()


if __name__ == "__main__":
    main()
