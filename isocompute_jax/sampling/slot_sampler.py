"""A continuous-batching sampler: groups in, completions out as they end, one chunk of steps per call.

The host's side of `slots`: who waits, who sits in which slot, and what has been drawn so far. Groups are served in the
order they came; one that is larger than the free slots is cut, and its rollouts follow as slots become free.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh

from isocompute_jax import model
from isocompute_jax.model import ModelConfig, Params
from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.records.rollout import Completion
from isocompute_jax.sampling.draw import key_words
from isocompute_jax.sampling.slots import (
    KEY_BLOCK,
    Admission,
    admit,
    advance,
    clear,
    init_slots,
    prefill,
    release,
)

PREFILL_ROWS = 4
"""Prompts that are read at once."""

ADMITTED = 16
"""Rollouts that enter slots in one call."""

T = TypeVar("T")


@dataclasses.dataclass
class _Submission:
    """A group that was submitted; `begun` of its rollouts have been given slots."""

    ticket: int
    request: SampleRequest
    begun: int = 0


@dataclasses.dataclass
class _Running:
    """The rollout in a slot: [t] arrays of each chunk drawn so far."""

    submission: _Submission
    index: int
    tokens: list[np.ndarray] = dataclasses.field(default_factory=list)
    logprobs: list[np.ndarray] = dataclasses.field(default_factory=list)
    versions: list[np.ndarray] = dataclasses.field(default_factory=list)
    experts: list[np.ndarray] = dataclasses.field(default_factory=list)  # those of the prompt first

    def completion(self) -> Completion:
        tokens = np.concatenate(self.tokens)
        reason = "stop" if int(tokens[-1]) in self.submission.request.stop_tokens else "length"
        experts = np.concatenate(self.experts) if self.experts else None
        return Completion.drawn(tokens, np.concatenate(self.logprobs), np.concatenate(self.versions), reason, experts)


class SlotSampler:
    """Samples groups in slots. It is not thread-safe.

    A completion depends on its request and the weights alone: not on what else is sampled, nor on slots, order or
    `chunk_steps`. Other numbers of slots draw the same tokens up to float rounding, as everywhere in this room.

    Args:
      config: model shape.
      params: weights to start from, version 0; cast to the dtype of `config`.
      slots: sequences at once; a multiple of `slots.ROW_MULTIPLE` per shard, or the slot may show in the last digit.
      length: longest prompt and completion together, in tokens.
      chunk_steps: tokens drawn in each slot per call; cancelled and finished rollouts keep their slots until then.
      key_block: positions of a block of keys.
      mesh: where the weights and slots are sharded; None for one device.
      routing: whether completions say which experts of a mixture their tokens went to when they were first read.
    """

    def __init__(
        self,
        config: ModelConfig,
        params: Params,
        *,
        slots: int,
        length: int,
        chunk_steps: int,
        key_block: int = KEY_BLOCK,
        mesh: Mesh | None = None,
        routing: bool = False,
    ):
        self._config = config
        self._params = model.sampling_params(config, params, mesh)
        self._version = 0
        self._length = length
        self._chunk_steps = chunk_steps
        self._mesh = mesh
        self._routing = routing and config.num_experts > 0
        self._slots = init_slots(config, slots=slots, length=length, key_block=key_block, mesh=mesh)
        self._prefill_tokens = min(256, max(16, length // 128 * 16))  # with the rows a multiple of ROW_MULTIPLE
        self._waiting: collections.deque[_Submission] = collections.deque()
        self._rollouts: list[_Running | None] = [None] * slots
        self.tokens_generated = 0

    @property
    def busy(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self._waiting) or any(rollout is not None for rollout in self._rollouts)

    def compile(self) -> None:
        """Compiles everything, so that the first group does not wait for it. Nothing may run or wait."""
        prompt = np.zeros(min(2, self._length - 1), np.int32)
        self.submit(0, SampleRequest("", prompt, 1, 0, 0, (), SamplingParams(1.0, 1.0, 1)))
        self.step()
        none = np.zeros(len(self._rollouts), bool)
        self._slots = clear(release(self._slots, none, mesh=self._mesh), none, mesh=self._mesh)
        self.tokens_generated = 0

    def submit(self, ticket: int, request: SampleRequest) -> None:
        """Queues a group, which `step` will call by its ticket.

        Raises:
          InputError: prompt and `max_tokens` together are longer than `length`, or the prompt is empty.
        """
        request.check_prompt(self._length - request.params.max_tokens, "length - max_tokens")
        self._waiting.append(_Submission(ticket, request))

    def cancel(self, tickets: Iterable[int]) -> None:
        """Drops groups. Unknown tickets are ignored."""
        tickets = set(tickets)
        self._waiting = collections.deque(group for group in self._waiting if group.ticket not in tickets)
        chosen = np.array([r is not None and r.submission.ticket in tickets for r in self._rollouts])
        if chosen.any():
            self._slots = release(self._slots, chosen, mesh=self._mesh)
            self._free(np.flatnonzero(chosen).tolist())
            # Keys recomputed since the last chunk may not be finite, and no log-probability has shown it yet.
            self._slots = clear(self._slots, chosen, mesh=self._mesh)

    def step(self) -> list[tuple[int, int, Completion]]:
        """Fills free slots, draws a chunk of tokens, and returns what ended: (ticket, rollout index, completion).

        A chunk ends early once an eighth of the slots is free and groups wait.
        """
        self._admit()
        active = sum(rollout is not None for rollout in self._rollouts)
        at_least = max(1, active - len(self._rollouts) // 8) if self._waiting else 1
        self._slots, drawn = advance(
            self._params,
            self._slots,
            np.int32(at_least),
            config=self._config,
            steps=self._chunk_steps,
            routing=self._routing,
            mesh=self._mesh,
        )
        return self._harvest(jax.device_get(drawn))

    def update_weights(self, params: Params, *, version: int, recompute: bool) -> None:
        """Draws with `params`, of any dtype, from now on, and marks what is drawn with `version`.

        With `recompute` keys and values of running sequences are computed anew; else those of the old weights stay.
        """
        self._params = model.sampling_params(self._config, params, self._mesh)
        self._version = version
        if recompute:
            self._prefill(
                [
                    (slot, np.concatenate([rollout.submission.request.prompt_tokens, *rollout.tokens]))
                    for slot, rollout in enumerate(self._rollouts)
                    if rollout is not None
                ]
            )

    def _admit(self) -> None:
        free = collections.deque(slot for slot, rollout in enumerate(self._rollouts) if rollout is None)
        heads: list[tuple[int, np.ndarray]] = []
        admitted: list[tuple[int, int]] = []  # slot, slot of the group's prompt
        while free and self._waiting:
            group = self._waiting[0]
            source = free[0]
            heads.append((source, group.request.prompt_tokens))
            while free and group.begun < group.request.group_size:
                slot = free.popleft()
                self._rollouts[slot] = _Running(group, group.begun)
                admitted.append((slot, source))
                group.begun += 1
            if group.begun == group.request.group_size:
                self._waiting.popleft()
        chosen = self._prefill(heads)
        if self._routing:
            for slot, source in admitted:
                rollout = self._rollouts[slot]
                assert rollout is not None
                rollout.experts.append(chosen[source])
        for batch in _batched(admitted, ADMITTED):
            self._slots = admit(self._slots, self._admission(batch), mesh=self._mesh)

    def _prefill(self, sequences: Sequence[tuple[int, np.ndarray]]) -> dict[int, np.ndarray]:
        """Puts into each slot the keys and values of its sequence but the last token, in chunks that begin at 0.

        Returns:
          slot -> [tokens, L, A] the experts that they went to; nothing unless asked.
        """
        width = self._prefill_tokens
        padding = self._slots.cache.length
        chosen: dict[int, list[np.ndarray]] = {}
        if self._routing:
            none = np.zeros((0, self._config.num_layers, self._config.experts_per_token), np.int16)
            chosen = {slot: [none] for slot, _ in sequences}
        # Prompts alike in length go together, so that few chunks are padding.
        for batch in _batched(sorted(sequences, key=lambda sequence: len(sequence[1])), PREFILL_ROWS):
            for start in range(0, len(batch[-1][1]) - 1, width):
                tokens = np.zeros((PREFILL_ROWS, width), np.int32)
                positions = np.full(tokens.shape, padding, np.int32)
                rows = np.zeros(PREFILL_ROWS, np.int32)
                for row, (slot, sequence) in enumerate(batch):
                    part = sequence[:-1][start : start + width]
                    tokens[row, : len(part)] = part
                    positions[row, : len(part)] = start + np.arange(len(part))
                    rows[row] = slot
                self._slots, experts = prefill(
                    self._params,
                    self._slots,
                    tokens,
                    positions,
                    rows,
                    config=self._config,
                    routing=self._routing,
                    mesh=self._mesh,
                )
                if experts is not None:
                    for read, place, (slot, _) in zip(np.asarray(experts), positions, batch, strict=False):
                        chosen[slot].append(read[place < padding])
        return {slot: np.concatenate(parts) for slot, parts in chosen.items()}

    def _admission(self, batch: Sequence[tuple[int, int]]) -> Admission:
        arrays: Any = Admission(  # the host's: they travel with the call
            slot=_rows(np.int32, fill=len(self._rollouts)),
            source=_rows(np.int32),
            token=_rows(np.int32),
            position=_rows(np.int32),
            left=_rows(np.int32),
            key_words=_rows(np.uint32, 5),
            rollout=_rows(np.uint32),
            temperature=_rows(np.float32, fill=1),
            top_p=_rows(np.float32, fill=1),
            stops=_rows(np.bool_, self._config.vocab_size),
        )
        for i, (slot, source) in enumerate(batch):
            rollout = self._rollouts[slot]
            assert rollout is not None
            request = rollout.submission.request
            arrays.slot[i], arrays.source[i] = slot, source
            arrays.token[i], arrays.position[i] = request.prompt_tokens[-1], len(request.prompt_tokens) - 1
            arrays.left[i] = request.budget(rollout.index)
            arrays.key_words[i] = key_words(request)
            arrays.rollout[i] = request.first_rollout + rollout.index
            arrays.temperature[i], arrays.top_p[i] = request.params.temperature, request.params.top_p
            arrays.stops[i, list(request.stop_tokens)] = True
        return arrays

    def _harvest(self, drawn: Any) -> list[tuple[int, int, Completion]]:
        """Takes what was drawn (`Drawn` on the host), and what ended out of its slots."""
        finished = []
        ended = []
        for slot, rollout in enumerate(self._rollouts):
            if rollout is None:
                continue
            count = int(drawn.counts[slot])
            rollout.tokens.append(drawn.tokens[:count, slot].copy())
            rollout.logprobs.append(drawn.logprobs[:count, slot].copy())
            rollout.versions.append(np.full(count, self._version, np.int32))
            if drawn.experts is not None:
                rollout.experts.append(drawn.experts[:count, slot].copy())
            self.tokens_generated += count
            if not drawn.running[slot]:
                finished.append((rollout.submission.ticket, rollout.index, rollout.completion()))
                ended.append(slot)
        self._free(ended)
        return finished

    def _free(self, slots: Iterable[int]) -> None:
        poisoned = np.zeros(len(self._rollouts), bool)
        for slot in slots:
            rollout = self._rollouts[slot]
            assert rollout is not None
            poisoned[slot] = not all(np.isfinite(part).all() for part in rollout.logprobs)
            self._rollouts[slot] = None
        if poisoned.any():
            self._slots = clear(self._slots, poisoned, mesh=self._mesh)


def _rows(dtype: Any, *shape: int, fill: int = 0) -> Any:
    """An array for so many admissions."""
    return np.full((ADMITTED, *shape), fill, dtype)


def _batched(items: Sequence[T], size: int) -> Iterable[list[T]]:
    iterator = iter(items)
    return iter(lambda: list(itertools.islice(iterator, size)), [])
