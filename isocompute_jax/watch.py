"""`python -m isocompute_jax.watch`: runs in the browser, while they go on.

    python -m isocompute_jax.watch --runs=runs/sweep
    python -m isocompute_jax.watch --runs=runs --port=9000 --nofit

Shows every run at or below --runs: learning curves over each other, the best n so far, the fleet of servers, sampled
rollouts token by token, alarms, and what a step's time goes to. It reads the files of run directories and writes
nothing; runs need not know of it. The page is for browsers of this machine alone; from elsewhere, forward the port:
`ssh -L 9000:127.0.0.1:9000 HOST`. Ctrl-C ends it.
"""

from __future__ import annotations

import pathlib

from absl import flags

from isocompute_jax import app

RUNS = flags.DEFINE_string("runs", None, "Directory that holds run directories, or is one.")
PORT = flags.DEFINE_integer("port", 8790, "Port of the page, on 127.0.0.1; 0 for any that is free.", 0, 65535)
FIT = flags.DEFINE_bool("fit", True, "Fit the runs from time to time, in a process beside.")


def main() -> None:
    """Flags -> one call."""
    from isocompute_jax.watching.server import watch

    runs = app.needed(RUNS, "give the directory that holds the run directories")
    watch(pathlib.Path(runs), port=PORT.value, fit=FIT.value)


if __name__ == "__main__":
    app.run(main)
