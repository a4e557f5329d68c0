"""`python -m benchmarks.service_load`: what the sampler service costs, and whether it scales and stays small.

    python -m benchmarks.service_load                                       # simulated engines: about four minutes
    python -m benchmarks.service_load --vllm_python=.venv-vllm/bin/python   # and a real vLLM: as long again
    python -m benchmarks.service_load --parts=scaling --servers=1,2,4

Servers are processes of their own; one `RemoteSampler` in this process keeps --groups groups in flight: whenever one
is done, another is submitted. The simulated engine sleeps and hardly computes. Parts:

- scaling: slots of the simulated engine are the limit. "of ideal" is tokens per second over what all slots can draw.
- latency: there are slots for all. What a group took beyond what its longest rollout takes in the engine.
- saturation: the engine takes no time, so that client or servers are the limit. Resident memory is read after every
  1,000 completions; its growth is the slope of a line through all but the first tenth.
- vllm: one real engine, driven in its server's process (`benchmarks.direct`) and through the service, in turns. The
  CPU ratio is of processor time: of server and engine, and with the service of this process too.

Processor time is of all threads. Where client and servers share few cores with other work, rates fall and latencies
grow; microseconds of processor time per completion hardly change.
"""

from __future__ import annotations

import array
import dataclasses
import itertools
import json
import os
import pathlib
import socket
import tempfile
import time
from collections.abc import Callable, Sequence

import numpy as np
from absl import flags

from benchmarks.servers import Server, Usage, endless_groups, sampling, serving, usage
from benchmarks.shared import names, print_head, print_row
from benchmarks.small_runs import save_model
from isocompute_jax import app
from isocompute_jax.model import EMBEDDED
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.service.client.fleet import RemoteSampler

PARTS = ("scaling", "latency", "saturation", "vllm")

_PARTS = flags.DEFINE_list("parts", list(PARTS), f"Of {', '.join(PARTS)}; the last only with --vllm_python.")
_SERVERS = flags.DEFINE_list("servers", ["1", "2", "4"], "Numbers of servers.")
_GROUPS = flags.DEFINE_integer("groups", 1000, "Groups in flight.", 1)
_GROUP_SIZE = flags.DEFINE_integer("group_size", 8, "Rollouts per group.", 1)
_COMPLETIONS = flags.DEFINE_integer("completions", 100_000, "Completions of each line of `saturation`.", 10_000)
_SECONDS = flags.DEFINE_float("seconds", 20.0, "How long a line of `scaling` and `latency` is measured.", 1.0)
_MEDIAN_LENGTH = flags.DEFINE_integer("median_length", 64, "Median length of simulated completions, in tokens.", 1)
_TAIL = flags.DEFINE_float("tail", 0.5, "Standard deviation of the logarithm of that length.")
_VLLM_PYTHON = flags.DEFINE_string("vllm_python", "", "Python of the environment of `make vllm-env`.")
_REPEATS = flags.DEFINE_integer("repeats", 7, "Repetitions with the real engine.", 1)

MAX_TOKENS = 512
SCALING = {"slots": 256, "tokens_per_s": 128.0}
"""About 0.55 s and 460 rollouts per second and server: four of them leave two cores mostly idle."""
LATENCY = {"slots": 65_536, "tokens_per_s": 16.0}
"""About 1,000 rollouts per second with 1,000 groups of 8 in flight."""
SATURATION = {"slots": 65_536, "tokens_per_s": 1e9}
SAMPLED_EVERY = 1_000
WARM_UP = 0.1
SHAPE = dataclasses.replace(EMBEDDED, max_positions=1024)
LARGER = dataclasses.replace(SHAPE, embed_dim=512, num_layers=8, num_heads=8, num_kv_heads=2, head_dim=64, mlp_dim=1536)
REAL = (("embedded", SHAPE, 9, 128), ("embedded", SHAPE, 64, 128), ("25 M parameters", LARGER, 64, 16))
"""Model, tokens per completion, and groups of a repetition."""


@dataclasses.dataclass
class Load:
    """What a closed loop of groups was like, once as many groups as are in flight were done."""

    seconds: float  # measured
    rollouts: int  # that were done in that time
    tokens: int  # of these
    # [groups] seconds that a group took beyond what its longest rollout takes in the engine; without the groups of the
    # beginning, which were all submitted at once
    overhead_s: np.ndarray
    before: list[Usage]  # what this process and the servers had used, in this order
    after: list[Usage]  # the same at the end
    memory: np.ndarray  # [samples, 2 + servers] completions so far; MiB of this process and of each server

    def cpu_us(self) -> tuple[float, float]:
        """Microseconds of processor time per completion, in this process and in the servers."""
        used = [after.cpu_s - before.cpu_s for before, after in zip(self.before, self.after, strict=True)]
        return 1e6 * used[0] / self.rollouts, 1e6 * sum(used[1:]) / self.rollouts

    def growth_mib(self) -> np.ndarray:
        """[1 + servers] MiB per 100,000 completions, without the first tenth."""
        steady = self.memory[int(WARM_UP * len(self.memory)) :]
        return 1e5 * np.polyfit(steady[:, 0], steady[:, 1:], 1)[0]


def usages(servers: Sequence[Server]) -> list[Usage]:
    """Of this process and of the servers."""
    return [usage(os.getpid()), *(server.usage for server in servers)]


def drive(
    sampler: RemoteSampler, servers: Sequence[Server], *, tokens_per_s: float, enough: Callable[[int, float], bool]
) -> Load:
    """Keeps as many groups in flight as asked for, until `enough(rollouts, seconds)`."""
    source, submitted, burst = endless_groups(_GROUP_SIZE.value, max_tokens=MAX_TOKENS), {}, set()

    def submit(count: int) -> None:
        batch = list(itertools.islice(source, count))
        submitted.update(dict.fromkeys([request.problem_id for request in batch], time.monotonic()))
        sampler.submit(batch)

    overhead, memory = array.array("d"), []
    rollouts = tokens = 0
    began, before = 0.0, []
    submit(_GROUPS.value)
    burst.update(submitted)
    for number, group in enumerate(sampler.completed()):
        now = time.monotonic()
        engine_s = max(len(completion.tokens) for completion in group.completions) / tokens_per_s
        taken_s = now - submitted.pop(group.problem_id)
        submit(1)
        if number < _GROUPS.value:
            continue
        if not before:
            began, before = now, usages(servers)
        if group.problem_id not in burst:
            overhead.append(taken_s - engine_s)
        rollouts, tokens = rollouts + len(group.completions), tokens + group.num_tokens
        if rollouts >= SAMPLED_EVERY * len(memory):
            memory.append([rollouts, *(use.rss_mib for use in usages(servers))])
        if enough(rollouts, now - began):
            break
    return Load(
        time.monotonic() - began, rollouts, tokens, np.array(overhead), before, usages(servers), np.array(memory)
    )


def simulate(
    root: pathlib.Path, count: int, engine: dict[str, float], enough: Callable[[int, float], bool]
) -> tuple[Load, float]:
    """The load on servers with a simulated engine, and tokens per second over those that all slots could draw."""
    arguments = [
        f"--model={root / 'embedded'}",
        f"--median_length={_MEDIAN_LENGTH.value}",
        f"--tail={_TAIL.value}",
        *(f"--{name}={value}" for name, value in engine.items()),
    ]
    with (
        serving("benchmarks.simulated", arguments, count=count, root=root) as servers,
        sampling(",".join(server.address for server in servers), SHAPE) as sampler,
    ):
        load = drive(sampler, servers, tokens_per_s=engine["tokens_per_s"], enough=enough)
    return load, load.tokens / load.seconds / (count * engine["slots"] * engine["tokens_per_s"])


def scaling(root: pathlib.Path) -> None:
    """Slots are the limit."""
    per_server = 0.0
    table("servers", "groups/s", "rollouts/s", "of ideal", "times one server", "client us", "server us")
    for count in map(int, _SERVERS.value):
        load, share = simulate(root, count, SCALING, lambda _, seconds: seconds >= _SECONDS.value)
        rate = load.rollouts / load.seconds
        per_server = per_server or rate / count
        print_row(
            count, f"{rate / _GROUP_SIZE.value:,.0f}", f"{rate:,.0f}", f"{share:.1%}",
            f"{rate / per_server:.2f}", *(f"{us:.0f}" for us in load.cpu_us()),
        )  # fmt: skip


def latency(root: pathlib.Path) -> None:
    """There is a slot for every rollout."""
    table("servers", "rollouts/s", "beyond the engine's delay: p50 ms", "p99 ms", "max ms")
    for count in map(int, _SERVERS.value):
        load, _ = simulate(root, count, LATENCY, lambda _, seconds: seconds >= _SECONDS.value)
        rate, times = load.rollouts / load.seconds, 1e3 * np.quantile(load.overhead_s, [0.5, 0.99, 1.0])
        print_row(count, f"{rate:,.0f}", *(f"{ms:.1f}" for ms in times))


def saturation(root: pathlib.Path) -> None:
    """The engine takes no time."""
    table(
        *("servers", "completions", "rollouts/s", "client us", "server us"),
        *("client MiB", "grows by", "server MiB", "grows by"),
    )
    for count in map(int, _SERVERS.value):
        load, _ = simulate(root, count, SATURATION, lambda rollouts, _: rollouts >= _COMPLETIONS.value)
        growth, last, rate = load.growth_mib(), load.memory[-1, 1:], load.rollouts / load.seconds
        print_row(
            count, f"{load.rollouts:,}", f"{rate:,.0f}", *(f"{us:.0f}" for us in load.cpu_us()),
            f"{last[0]:.0f}", f"{growth[0]:+.1f}", f"{last[1:].max():.0f}", f"{growth[1:].max():+.1f}",
        )  # fmt: skip
    print("(growth in MiB per 100,000 completions; of several servers the largest)")


def vllm(root: pathlib.Path) -> None:
    """The same groups, drawn in the server's process and through the service, in turns."""
    table("model", "tokens", "rollouts", "tokens/s", "direct s", "service s", "ratio", "from .. to", "CPU ratio")
    for name, config, tokens, count in REAL:
        directory = root / name.replace(" ", "-")
        save_model(directory, config)
        path = directory / "socket"
        arguments = [f"--model={directory}", f"--socket={path}"]
        with (
            serving("benchmarks.direct", arguments, count=1, root=root, python=_VLLM_PYTHON.value) as [server],
            sampling(server.address, config) as sampler,
        ):
            turns = [take_turn(sampler, server, path, tokens, count, repeat) for repeat in range(_REPEATS.value + 1)]
            del turns[0]
        seconds = np.array(turns)  # [repeats, (direct, service), (wall, processor)]
        ratios = seconds[:, 1, 0] / seconds[:, 0, 0]
        direct_s, service_s = np.median(seconds[..., 0], axis=0)
        cpu_ratio = np.median(seconds[:, 1, 1] / seconds[:, 0, 1])
        rollouts = count * _GROUP_SIZE.value
        print_row(
            name, tokens, f"{rollouts:,}", f"{rollouts * tokens / direct_s:,.0f}", f"{direct_s:.2f}",
            f"{service_s:.2f}", f"{np.median(ratios):.3f}", f"{ratios.min():.3f} .. {ratios.max():.3f}",
            f"{cpu_ratio:.3f}",
        )  # fmt: skip


Seconds = tuple[float, float]
"""Wall time, and processor time of all processes that take part."""


def take_turn(
    sampler: RemoteSampler, server: Server, path: pathlib.Path, tokens: int, count: int, repeat: int
) -> tuple[Seconds, Seconds]:
    """Directly and through the service; who comes first alternates. Both draw the same tokens."""
    groups = list(itertools.islice(endless_groups(_GROUP_SIZE.value, max_tokens=tokens, step=repeat), count))

    def through_service() -> Seconds:
        began, cpu_s = time.monotonic(), server.session_cpu_s() + usage(os.getpid()).cpu_s
        sampler.submit(groups)
        drawn = sum(group.num_tokens for group in sampler.completed())
        assert drawn == len(groups) * _GROUP_SIZE.value * tokens, drawn
        return time.monotonic() - began, server.session_cpu_s() + usage(os.getpid()).cpu_s - cpu_s

    def directly() -> Seconds:
        cpu_s = server.session_cpu_s()
        return ask_directly(path, groups), server.session_cpu_s() - cpu_s

    if repeat % 2:
        service = through_service()
        return directly(), service
    return directly(), through_service()


def ask_directly(path: pathlib.Path, groups: Sequence[SampleRequest]) -> float:
    """Seconds that the engine of `benchmarks.direct` took for the groups."""
    asked = [
        {
            "problem_id": group.problem_id,
            "step": group.step,
            "prompt_tokens": group.prompt_tokens.tolist(),
            "group_size": group.group_size,
            "max_tokens": group.params.max_tokens,
        }
        for group in groups
    ]
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rw", encoding="ascii") as file:
        connection.connect(str(path))
        file.write(json.dumps(asked) + "\n")
        file.flush()
        return json.loads(file.readline())["seconds"]


def table(*columns: str) -> None:
    """The head of one more table."""
    print()
    print_head(columns, left=())


def main() -> None:
    """Flags -> tables."""
    chosen = names(_PARTS, PARTS)
    parts = {"scaling": scaling, "latency": latency, "saturation": saturation, "vllm": vllm}
    if not _VLLM_PYTHON.value:
        del parts["vllm"]
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        save_model(root / "embedded", SHAPE)
        for name, part in parts.items():
            if name in chosen:
                part(root)


if __name__ == "__main__":
    app.run(main)
