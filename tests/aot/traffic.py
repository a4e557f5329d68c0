"""Bytes that one round of a sampler's loop over tokens moves, counted from the text of its program."""

import re

from isocompute_jax.plan import hlo

ALIASED = frozenset({"bitcast", "get-tuple-element", "tuple", "parameter"})
NAME = re.compile(r"%([\w.-]+)")
CALLED = re.compile(r"(?:calls|body)=%?([\w.-]+)")


def token_bytes(text: str) -> float:
    """Read and written by the kernels of the loop's body; of a larger array, what a kernel cuts out of it."""
    entry, computations = hlo.parse(text)
    loops = [one for one in computations[entry] if one.operation == "while" and not hlo._counts(one, computations)]
    [loop] = loops
    [body] = CALLED.findall(loop.rest)
    return _moved(body, computations)


def _moved(name, computations) -> float:
    """Of every instruction of a computation that runs by itself."""
    sizes = {one.name: _bytes(one.result) for one in computations[name]}
    total = 0.0
    for one in computations[name]:
        operation = one.operation.removesuffix("-start")
        if one.operation in hlo.FREE or one.operation.endswith("-done"):
            continue
        if operation in ("while", "call", "conditional"):
            times = (hlo.trip_count(one, computations) or 1) if operation == "while" else 1
            total += times * sum(_moved(called, computations) for called in CALLED.findall(one.rest))
            continue
        operands = _operands(one)
        read = [sizes[each] for each in operands]
        written = _bytes(one.result)
        if operation == "fusion":
            body = computations[CALLED.findall(one.rest)[0]]
            read, written = _of_fusion(body, read, sum(sizes_of_root(body)))
        elif operation == "dynamic-update-slice":
            read, written = [read[1]], read[1]
        elif operation in ("dynamic-slice", "slice", "gather"):
            read = [written]
        total += sum(read) + written
    return total


def _bytes(result: str) -> float:
    """Of all arrays of a type."""
    return sum(hlo.array_bytes(found) for found in hlo._ARRAY.finditer(result))


def _operands(one) -> list[str]:
    return NAME.findall(one.rest.split("), ")[0])


def sizes_of_root(body) -> list[float]:
    """Bytes that a fusion writes: of an array that it updates, the update."""
    by_name = {one.name: one for one in body}
    root = body[-1]
    roots = [by_name[each] for each in _operands(root)] if root.operation == "tuple" else [root]
    found = []
    for one in roots:
        while one.operation in ("bitcast", "copy") and _operands(one) and _operands(one)[0] in by_name:
            one = by_name[_operands(one)[0]]
        update = one.operation == "dynamic-update-slice"
        found.append(_bytes(by_name[_operands(one)[1]].result if update else one.result))
    return found


def _of_fusion(body, read: list[float], written: float) -> tuple[list[float], float]:
    """A fusion reads of a parameter what it cuts out of it, and nothing of one that it updates."""
    places = {one.name: int(one.rest.split(")")[0]) for one in body if one.operation == "parameter"}
    alias = {name: name for name in places}  # of a parameter, or a view of one
    cuts: dict[str, list[float]] = {name: [] for name in places}
    for one in body:
        operands = _operands(one)
        if one.operation == "bitcast" and operands[0] in alias:
            alias[one.name] = alias[operands[0]]
            continue
        for position, operand in enumerate(operands):
            if operand not in alias:
                continue
            whole = read[places[alias[operand]]]
            if position == 0 and one.operation in ("dynamic-slice", "slice", "gather"):
                whole = _bytes(one.result)
            elif position == 0 and one.operation == "dynamic-update-slice":
                whole = 0.0
            cuts[alias[operand]].append(whole)
    return [max(each, default=0.0) for each in cuts.values()], written
