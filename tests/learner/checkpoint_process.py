"""One process of those that checkpoint together; its arguments: DIRECTORY COORDINATOR COUNT INDEX DEVICES TASK.

Task `save` saves step 1 and begins to save step 2, which process 0 never ends to write, and waits to be killed. Task
`restore` restores. Each says the step and a digest of all numbers of what is whole.
"""

import hashlib
import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from isocompute_jax.learner import TrainState
from isocompute_jax.learner.checkpoint import Checkpointer
from isocompute_jax.records import checksums


def decide(function: Callable[[], Any]) -> Any:
    """Calls it in process 0; its value, as JSON of at most 1,000 bytes, goes to all."""
    text = json.dumps(function() if jax.process_index() == 0 else None).encode().ljust(1000)
    return json.loads(bytes(multihost_utils.broadcast_one_to_all(np.frombuffer(text, np.uint8))).decode())


def state_of(step: int, mesh: Mesh) -> TrainState:
    """Numbers that depend on the step, a matrix of them cut over the mesh."""
    numbers = np.random.default_rng(step).standard_normal((64, 1024)).astype(np.float32)

    def laid(x, *spec):
        return jax.make_array_from_callback(x.shape, NamedSharding(mesh, PartitionSpec(*spec)), lambda index: x[index])

    return TrainState(laid(np.int32(step)), {"w": laid(numbers, "fsdp")}, {"mu": laid(numbers * 2, None, "fsdp")})


def report(what: str, state: TrainState, loop: dict) -> None:
    whole = [multihost_utils.process_allgather(x, tiled=True) for x in jax.tree.leaves(state)]
    digest = hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in whole)).hexdigest()
    print(what, loop["text"], int(state.step), digest, flush=True)


def never_ending(*_: Any, **__: Any) -> None:
    print("writing", flush=True)
    threading.Event().wait()


def main(directory: str, coordinator: str, count: int, index: int, devices: int, task: str) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    if count > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(coordinator, count, index)
    mesh = Mesh(np.array(jax.devices()), ("fsdp",))
    with Checkpointer(directory, state_of(0, mesh), decide=decide) as checkpointer:
        if task == "restore":
            report("restored", *(checkpointer.restore() or sys.exit("nothing there")))
            return
        assert decide(lambda: checkpointer.busy) is False  # process 0 asks alone, as a run does
        first, loop = state_of(1, mesh), {"text": "first"}
        checkpointer.save(first, loop)
        checkpointer.wait()
        report("saved", first, loop)
        checksums.write_sums = never_ending
        checkpointer.save(state_of(2, mesh), {"text": "second"})
        print("went on", flush=True)


if __name__ == "__main__":
    path, address, processes, process, each, what = sys.argv[1:]
    main(path, address, int(processes), int(process), int(each), what)
