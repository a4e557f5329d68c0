"""Collectives of a compiled program, read from its text: kinds, bytes, who takes part, how often a step runs them.

The text is XLA's HLO after all optimisation (https://openxla.org/xla/operation_semantics). A loop's body counts as many
times as the loop runs: XLA notes it, or the loop's condition compares a counter with a constant. The loop over
micro-batches runs a number of times that only the step knows.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

import numpy as np

KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
ELEMENTWISE = (
    "reduce",
    "all-reduce",
    "all-reduce-start",
    "reduce-scatter",
    "reduce-scatter-start",
    "sort",
    "scatter",
    "map",
)
FREE = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id",
    "opt-barrier",
})  # fmt: skip
"""Operations that no device is asked to run."""
COUNTING = FREE | {"compare", "copy"}
"""What the condition of a loop has that counts, and looks at nothing else."""
_BITS = {"pred": 8, "s4": 4, "u4": 4, "c64": 64, "c128": 128, "token": 0}
_HEAD = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\) -> .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (.*)$")
_ARRAY = re.compile(r"\b([a-z]+[0-9]*(?:e[0-9]m[0-9]\w*)?)\[([0-9,]*)\]")
_CALLED = re.compile(
    r"(?:calls|to_apply|body|true_computation|false_computation|branch_computations|called_computations)="
    r"(\{[^}]*\}|%?[\w.-]+)"
)
_IOTA = r"\[([\d,]+)\](?:T\(([\d,]+)\))?"
Groups = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line: result type, operation, and what follows it."""

    name: str
    result: str
    operation: str
    rest: str


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of a program."""

    kind: str  # one of `KINDS`
    # what each participant receives in one run, by a ring: (g - 1) / g of what is gathered or scattered, twice that of
    # an all-reduce
    wire_bytes: float
    count: int  # how often a step runs it
    groups: Groups  # numbers of the devices, in the order of the mesh, that take part together


def collectives(text: str, *, num_devices: int, microbatches: int) -> list[Collective]:
    """Every collective that a step runs.

    Args:
      text: of the optimised program (`Compiled.as_text()`).
      num_devices: of the mesh.
      microbatches: how often loops run whose count is not in the program.
    """
    entry, computations = parse(text)
    return _collectives(entry, computations, num_devices, microbatches)


def _collectives(
    name: str, computations: Mapping[str, list[Instruction]], num_devices: int, microbatches: int
) -> list[Collective]:
    found: list[Collective] = []
    for instruction, count in _runs(name, computations, microbatches):
        kind = instruction.operation.removesuffix("-start")
        if kind in KINDS:
            groups = replica_groups(instruction.rest, num_devices)
            size = max(len(group) for group in groups)
            if size > 1 or kind == "collective-permute":
                found.append(Collective(kind, wire_bytes(instruction, size), count, groups))
    return found


def parse(text: str) -> tuple[str, dict[str, list[Instruction]]]:
    """The entry's name, and the instructions of every computation."""
    entry, name = "", ""
    computations: dict[str, list[Instruction]] = {}
    for line in text.splitlines():
        if head := _HEAD.match(line):
            name = head[2]
            computations[name] = []
            entry = name if head[1] else entry
        elif name and (found := _INSTRUCTION.match(line)):
            result, operation, rest = _split(found[2])
            computations[name].append(Instruction(found[1], result, operation, rest))
    return entry, computations


def _split(right: str) -> tuple[str, str, str]:
    """`type operation(rest`; a tuple's type is in parentheses."""
    if right.startswith("("):
        depth = 0
        for end, letter in enumerate(right):  # noqa: B007 (read after the loop)
            depth += (letter == "(") - (letter == ")")
            if not depth:
                break
        result, right = right[: end + 1], right[end + 2 :]
    else:
        result, _, right = right.partition(" ")
    operation, _, rest = right.partition("(")
    return result, operation.strip(), rest


def _runs(
    name: str, computations: Mapping[str, list[Instruction]], microbatches: int, count: int = 1
) -> Iterator[tuple[Instruction, int]]:
    """Every instruction that runs, with how often; a branch counts as taken."""
    for instruction in computations.get(name, ()):
        yield instruction, count
        if instruction.operation in ELEMENTWISE:
            continue  # what they call is arithmetic on elements
        times = 1
        if instruction.operation == "while":
            times = trip_count(instruction, computations) or microbatches
        for called in _CALLED.findall(instruction.rest):
            for one in re.findall(r"[\w.-]+", called):
                yield from _runs(one, computations, microbatches, count * times)


def trip_count(loop: Instruction, computations: Mapping[str, list[Instruction]]) -> int | None:
    """How often a loop runs; None where its program does not say."""
    if noted := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.rest):
        return int(noted[1])
    condition = re.search(r"condition=%?([\w.-]+)", loop.rest)
    if condition is None:
        return None
    body = computations.get(condition[1], [])
    constants = {one.name: one.rest for one in body if one.operation == "constant"}
    for one in body:
        if one.operation == "compare" and "direction=LT" in one.rest:
            operands = re.findall(r"%([\w.-]+)", one.rest.partition(")")[0])
            bound = constants.get(operands[-1] if operands else "", "").partition(")")[0]
            return int(bound) if bound.isdigit() else None
    return None


def wire_bytes(instruction: Instruction, size: int) -> float:
    """What each of `size` participants receives; see `Collective`."""
    kind = instruction.operation.removesuffix("-start")
    total = float(sum(array_bytes(found) for found in _ARRAY.finditer(instruction.result)))
    if kind == "all-gather":
        gathered = total * size / (size + 1) if instruction.operation.endswith("-start") else total
        return gathered * (size - 1) / size
    if kind == "reduce-scatter":
        kept = total / (size + 1) if instruction.operation.endswith("-start") else total
        return kept * (size - 1)
    if kind == "all-reduce":
        return 2 * total * (size - 1) / size
    # Of these, what is started has its operands, of the same size, in its type.
    total = total / 2 if instruction.operation.endswith("-start") else total
    return total if kind == "collective-permute" else total * (size - 1) / size


def array_bytes(found: re.Match[str]) -> float:
    """Of one array type, such as `bf16[8,128]`."""
    kind, shape = found[1], found[2]
    digits = re.match(r"[a-z]+?(\d+)", kind)
    bits = _BITS.get(kind) if kind in _BITS else int(digits[1]) if digits else 0
    return math.prod(int(size) for size in shape.split(",") if size) * (bits or 0) / 8


def replica_groups(rest: str, num_devices: int) -> Groups:
    """Who takes part together: of lists, of iota tiles, of named axes of a mesh, or of a permutation's pairs.

    Raises:
      ValueError: spelled in none of the ways that XLA is known to.
    """
    if found := re.search(r"replica_groups=\{(\{[\d,{} ]+\})\}", rest):
        return tuple(_sizes(group) for group in re.findall(r"\{([\d, ]+)\}", found[1]))
    if found := re.search(rf"replica_groups=\[([\d,]+)\]<={_IOTA}", rest):
        tiles = _sizes(found[1])
        return _tuples(_iota(found[2], found[3]).reshape(tiles[0], math.prod(tiles[1:])))
    if found := re.search(rf"replica_groups=@?mesh\[([^\]]+)\](?:, device_ids=\({_IOTA}\))? \{{([^}}]*)\}}", rest):
        axes = {name: int(size) for name, size in re.findall(r"'([\w.-]+)'=(\d+)", found[1])}
        among = re.findall(r"'([\w.-]+)'", found[4])
        ids = _iota(found[2], found[3]) if found[2] else np.arange(math.prod(axes.values()))
        order = sorted(range(len(axes)), key=lambda axis: list(axes)[axis] in among)  # stable: those among it last
        size = math.prod(axes[name] for name in among)
        return _tuples(ids.reshape(tuple(axes.values())).transpose(order).reshape(ids.size // size, size))
    if found := re.search(r"source_target_pairs=(\{[\d,{} ]+\})", rest):
        return tuple(_sizes(pair) for pair in re.findall(r"\{([\d, ]+)\}", found[1]))
    if "replica_groups={}" in rest:
        return (tuple(range(num_devices)),)
    raise ValueError(f"the devices of a collective are spelled in an unknown way: {rest[:300]}")


def _iota(sizes: str, order: str | None) -> np.ndarray:
    """`[4,16]T(1,0)`: the numbers from 0 on in that shape, transposed, one after the other."""
    shape = _sizes(sizes)
    return np.arange(math.prod(shape)).reshape(shape).transpose(_sizes(order) if order else None).ravel()


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))


def _tuples(ids: np.ndarray) -> Groups:
    return tuple(tuple(int(i) for i in group) for group in ids)


def token_loop(text: str, *, num_devices: int) -> tuple[list[Collective], int]:
    """What one round of a sampler's loop over tokens runs: the one of the entry that does not merely count.

    Returns:
      Its collectives, with their counts a token, and the kernels and copies that a GPU is asked for, one by one.

    Raises:
      ValueError: the program has no such loop, or several.
    """
    entry, computations = parse(text)
    loops = [one for one in computations.get(entry, ()) if one.operation == "while" and not _counts(one, computations)]
    if len(loops) != 1:
        raise ValueError(
            f"the sampler's program has {len(loops)} loops that end by what they find, and should have one"
        )
    body = re.search(r"body=%?([\w.-]+)", loops[0].rest)
    assert body is not None  # of every `while`
    return _collectives(body[1], computations, num_devices, 1), _launches(body[1], computations)


def _counts(loop: Instruction, computations: Mapping[str, list[Instruction]]) -> bool:
    """Whether a loop ends after so many rounds, whatever it computes."""
    condition = re.search(r"condition=%?([\w.-]+)", loop.rest)
    found = computations.get(condition[1], ()) if condition else ()
    return "known_trip_count" in loop.rest or all(one.operation in COUNTING for one in found)


def _launches(name: str, computations: Mapping[str, list[Instruction]]) -> int:
    """Kernels of a computation; those of an inner loop as often as it runs, once where that is unknown."""
    total = 0
    for one in computations.get(name, ()):
        if one.operation in ("while", "call", "conditional"):
            times = (trip_count(one, computations) or 1) if one.operation == "while" else 1
            called = [name for group in _CALLED.findall(one.rest) for name in re.findall(r"[\w.-]+", group)]
            total += times * sum(_launches(each, computations) for each in called)
        elif one.operation not in FREE and not one.operation.endswith("-done"):
            total += 1
    return total
