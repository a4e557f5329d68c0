"""The pairs that judge math graders are well formed: a broken line would flatter a grader, or wrong it."""

from __future__ import annotations

import collections
import json
import pathlib

import pytest

PAIRS = pathlib.Path(__file__).parent / "graded_pairs"
FIELDS = {"id": str, "class": str, "gold": str, "completion": str, "verdict": bool, "why": str}
MAX_LINE_BYTES = 20_000


@pytest.mark.parametrize("path", sorted(PAIRS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_pairs_are_well_formed(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert max(len(line.encode()) for line in lines) < MAX_LINE_BYTES
    pairs = [json.loads(line) for line in lines]
    for pair in pairs:
        assert {name: type(value) for name, value in pair.items()} == FIELDS, pair["id"]
        assert pair["gold"].strip() and pair["why"].strip(), pair["id"]
        assert pair["id"].rpartition("-")[0] == pair["class"]
    assert len(pairs) >= 150
    assert len({pair["id"] for pair in pairs}) == len(pairs)
    assert len({(pair["gold"], pair["completion"]) for pair in pairs}) == len(pairs)

    verdicts = collections.defaultdict(list)
    for pair in pairs:
        verdicts[pair["class"]].append(pair["verdict"])
    one_sided = [name for name, given in verdicts.items() if len(given) >= 4 and len(set(given)) == 1]
    assert not one_sided


@pytest.mark.parametrize("half", ["first_half", "second_half"])
def test_both_halves_are_there(half):
    assert len((PAIRS / f"{half}.jsonl").read_text(encoding="utf-8").splitlines()) >= 150
