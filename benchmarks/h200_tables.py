"""The results of `benchmarks.h200` as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.shared import head, row

GIB = 2**30
Line = dict[str, Any]

HEADS = {
    "rate": ("bfloat16 products", "TFLOP/s"),
    "attention": ("attention, forward and backward", "ms", "TFLOP/s", "of products", "peak GiB", "compiled in"),
    "learner": (
        "update", "remat, moments, attention", "s", "tokens/s", "MFU", "peak GiB", "of XLA's account", "not tuned",
        "compiled in", "not tuned",
    ),
    "torch": ("transformers on torch", "s", "tokens/s", "ours takes", "peak GiB"),
    "decode": ("slots engine", "tokens/s", "of full chunks", "of the limit", "peak GiB", "compiled in"),
}  # fmt: skip
"""First the name, then numbers."""


def tables(lines: Sequence[Line]) -> Iterator[str]:
    """A table of each measured kind, after versions and missing kernels; what failed or was skipped says why."""
    for line in lines:
        if line["kind"] == "versions":
            yield ", ".join(f"{name} {value or '-'}" for name, value in line.items() if name != "kind")
        elif line["kind"] == "missing":
            yield f"Missing: {line['name']}: {line['why']}"
    for kind, columns in HEADS.items():
        found = [line for line in lines if line["kind"] == kind]
        if not found:
            continue
        yield ""
        yield from head(columns)
        for line in found:
            cells = _cells(line, lines) if line["status"] == "ok" else [f"{line['status']}: {line['why']}"]
            yield row(line["name"], *cells, *[""] * (len(columns) - 1 - len(cells)))


def _cells(line: Line, lines: Sequence[Line]) -> list[str]:
    """The numbers of a measurement, in the order of its table's head."""
    peak = _gib(line.get("peak_bytes"))
    match line["kind"]:
        case "rate":
            return [f"{line['product_rate'] / 1e12:,.2f}"]
        case "attention":
            rate = line["flops"] / line["seconds"]
            share = f"{rate / line['product_rate']:.0%}"
            return [f"{1e3 * line['seconds']:,.2f}", f"{rate / 1e12:,.2f}", share, peak, f"{line['compile_s']:.0f} s"]
        case "learner":
            case = line["case"]
            return [
                f"{case['remat']}, {case['moments']}, {line['attention']}",
                f"{line['seconds']:.3f}",
                f"{line['tokens_per_s']:,.0f}",
                f"{line['mfu']:.1%}",
                peak,
                _gib(line["predicted_bytes"]),
                _gib(line["predicted_not_tuned_bytes"]),
                f"{line['compile_s']:.0f} s",
                f"{line['compile_not_tuned_s']:.0f} s",
            ]
        case "torch":
            return [f"{line['seconds']:.3f}", f"{line['tokens_per_s']:,.0f}", _ratio(line, lines), peak]
        case _:
            limit = line["limit_tokens_per_s"]
            return [
                f"{line['tokens_per_s']:,.0f}",
                f"{line['chunk_tokens_per_s']:,.0f}",
                "-" if limit is None else f"{line['chunk_tokens_per_s'] / limit:.0%}",
                peak,
                f"{line['compile_s']:.0f} s",
            ]


def _ratio(line: Line, lines: Sequence[Line]) -> str:
    """Our time of the same rows over the peer's."""
    same = ("model", "layers", "row_tokens", "rows", "sequence")
    ours = [
        other["seconds"]
        for other in lines
        if other["kind"] == "learner"
        and other["status"] == "ok"
        and all(other["case"][name] == line["case"][name] for name in same)
    ]
    return f"{ours[-1] / line['seconds']:.2f} of it" if ours else "-"


def _gib(size: float | None) -> str:
    return "-" if size is None else f"{size / GIB:,.2f}"
