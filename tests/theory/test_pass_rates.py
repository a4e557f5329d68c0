"""pass@1 from files: counts are smoothed into a distribution, rates are taken as they are."""

import json

import numpy as np
import pytest

from isocompute_jax.records.errors import InputError
from isocompute_jax.theory.pass_rates import LEAST, read_pass_rates, smoothed


@pytest.mark.parametrize("most", [1, 16], ids=["cut at 1 of 16", "not cut"])
def test_the_distribution_behind_counts_is_found(most):
    """Also where the set was cut by these counts, and their mean is too low."""
    rng = np.random.default_rng(0)
    truth = rng.beta(0.5, 1.3, size=20_000)
    counts = rng.binomial(16, truth)
    truth, counts = truth[counts <= most], counts[counts <= most]
    found = smoothed(counts, 16)
    assert found.mean() == pytest.approx(truth.mean(), rel=0.1)
    levels = [25, 50, 75, 95]
    np.testing.assert_allclose(np.percentile(found, levels), np.percentile(truth, levels), rtol=0.25, atol=0.002)


def test_what_curation_writes_is_read(tmp_path):
    rows = [{"id": str(i), "avg@16": i % 2 / 16, "avg@64": 0.25 * (i % 3)} for i in range(60)]
    (tmp_path / "set.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = smoothed(np.array([16 * (i % 3) for i in range(60)]), 64, seed=1)
    np.testing.assert_array_equal(read_pass_rates(tmp_path / "set.jsonl", seed=1), expected)


def test_rates_are_taken_as_they_are(tmp_path):
    (tmp_path / "rates.csv").write_text("problem,pass@1\na,0.25\nb,0\nc,1\n")
    np.testing.assert_array_equal(read_pass_rates(tmp_path / "rates.csv"), [0.25, LEAST, 1 - LEAST])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("none.jsonl", None, "no such file"),
        ("a.parquet", "", "give a .jsonl or .csv file"),
        ("a.jsonl", "", "has no problems"),
        ("a.jsonl", '{"avg@4": 0.5}\n{"id": 1}\n', "a.jsonl:2: no avg@k, pass_rate or pass@1"),
        ("a.jsonl", '{"avg@4": 0.5}\n{"avg@8": 0.5}\n', "a.jsonl:2: avg@8, where the rows before it have 4 samples"),
        ("a.jsonl", '{"avg@4": 0.5}\n[\n', "a.jsonl:2: not a JSON object"),
        ("a.csv", "pass_rate\n0.5\n50%\n", "a.csv:3: pass_rate is '50%', and not a share"),
        ("a.csv", "pass_rate\n1.5\n", "a.csv:2: pass_rate is '1.5', and not a share"),
    ],
)
def test_bad_files_are_one_message(tmp_path, name, text, said):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as error:
        read_pass_rates(tmp_path / name)
    assert said in str(error.value)
