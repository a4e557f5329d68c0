"""Phases and whole steps of a trainer that is not ours, timed from outside."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from benchmarks.peers.job import Timed


class Clock:
    """A step lasts from the end of the one before it to its own; the first cannot be timed."""

    def __init__(self) -> None:
        self._ends: list[float] = []
        self._phases: list[dict[str, float]] = []
        self._phase: dict[str, float] = {}
        self._lengths: list[float] = []
        self._rewards: list[float] = []

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What runs inside is part of the phase `name`."""
        start = time.perf_counter()
        yield
        self.add(name, time.perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        """The phase `name` took so many seconds more."""
        self._phase[name] = self._phase.get(name, 0.0) + seconds

    def sampled(self, lengths: list[int]) -> None:
        """Lengths of the completions of this step, in tokens."""
        self._lengths.append(sum(lengths) / len(lengths))

    def graded(self, rewards: list[float]) -> None:
        """Rewards of this step."""
        self._rewards.append(sum(rewards) / len(rewards))

    def end_step(self) -> None:
        """The step ends now."""
        self._ends.append(time.perf_counter())
        self._phases.append(self._phase)
        self._phase = {}

    def timed(self, warmup: int, versions: str) -> Timed:
        """All but the first `warmup` steps."""
        seconds = [after - before for before, after in zip(self._ends[:-1], self._ends[1:], strict=True)]
        lengths, rewards = self._lengths[warmup:], self._rewards[warmup:]
        return Timed(
            step_s=seconds[warmup - 1 :],
            phase_s=self._phases[warmup:],
            completion_tokens=sum(lengths) / len(lengths),
            reward=sum(rewards) / len(rewards),
            versions=versions,
        )
