"""How much of a GPU's memory JAX takes: one number, said before it starts, and counted on by plans."""

import pytest
from jaxlib import xla_client

from isocompute_jax.accelerators import GIB, H200, SHARE, SHARE_VARIABLES, V5P, claim_memory, claimed, memory_share
from isocompute_jax.plan.topology import parse_topology
from isocompute_jax.records.errors import InputError
from tests import mains

OLD, NEW = SHARE_VARIABLES


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    for name in SHARE_VARIABLES:
        monkeypatch.setenv(name, "")  # so that it is put back, whoever sets it
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("said", "share"),
    [({}, SHARE), ({OLD: ""}, SHARE), ({NEW: ""}, SHARE), ({OLD: "0.4"}, 0.4), ({NEW: ".85"}, 0.85), ({OLD: "1"}, 1.0)],
    ids=str,
)
def test_jax_takes_what_plans_count_on_and_a_users_own_share_rules(monkeypatch, said, share):
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    claim_memory()
    assert xla_client.generate_pjrt_gpu_plugin_options()["memory_fraction"] == share == memory_share()
    assert parse_topology("h200:1x8").device.usable == share * H200.memory - 1 * GIB
    assert claimed(V5P) == V5P  # whole, whatever is said of GPUs


def test_jax_has_still_a_lower_share_of_its_own():
    """Else nothing need be said."""
    assert "memory_fraction" not in xla_client.generate_pjrt_gpu_plugin_options()


@pytest.mark.parametrize("text", ["all", "0", "-0.5", "nan", "inf", "95%"])
def test_what_is_no_share_names_its_variable(text):
    with pytest.raises(InputError, match=f"^{NEW} = '{text}' is no share of a GPU's memory: give a number"):
        claim_memory({NEW: text})


def test_two_shares_are_refused():
    with pytest.raises(InputError, match=f"^{OLD} and {NEW} are both set, and JAX refuses that: unset one of them"):
        claim_memory({OLD: "0.9", NEW: "0.9"})


PROGRAM = """
import os, sys
from isocompute_jax import app
{before}
sys.argv = ["main"]
app.run(lambda: print(os.environ[{name!r}]))
"""


@pytest.mark.parametrize(
    ("before", "code", "printed", "said"),
    [
        ("", 0, "0.95\n", ""),
        (f"os.environ[{OLD!r}] = '0.4'", 0, "0.4\n", ""),
        (f"os.environ[{OLD!r}] = 'most'", 2, "", f"error: {OLD} = 'most' is no share of a GPU's memory"),
    ],
)
def test_mains_say_it_before_anything_else(before, code, printed, said):
    done = mains.run("-c", [PROGRAM.format(before=before, name=OLD)])
    assert (done.returncode, done.stdout) == (code, printed)
    assert done.stderr.startswith(said)
