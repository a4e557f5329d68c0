"""What the page takes from a fit's summary."""

from isocompute_jax.watching.frontier import shown


def test_switches_beyond_the_largest_budget_are_not_shown():
    budgets = [{"compute": compute, "reward": 0.1, "group_size": 8, "problems_per_batch": 8} for compute in (512, 2048)]
    switches = [
        {"compute": compute, "interval95": None, "from_group_size": 4, "to_group_size": 8, "established": False}
        for compute in (1024, 4290)
    ]
    frontier = {"metric": "avg@4", "budgets": budgets, "switches": switches}
    summary = {"frontier": frontier, "compute_unit": "rollouts", "inputs": ["a", "b"]}
    summary["warnings"] = ["seeds differ", "runs of several base models are fitted as one sweep: a (1), b (1)"]
    found = shown(summary)
    assert found["switches"] == switches[:1] and found["budgets"] == budgets
    assert found["metric"] == "avg@4" and found["runs"] == 2
    assert found["notes"] == summary["warnings"][1:]
