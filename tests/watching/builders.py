"""Run directories as runs write them, made up: no model is run."""

import json
import math
import pathlib

from isocompute_jax.records import run_files

PHASES = {
    "weights": 0.1, "sampling": 3.0, "waiting": 0.0, "grading": 0.3, "logprobs": 0.5, "packing": 0.2, "update": 2.0,
    "checkpoint": 0.4,
}  # fmt: skip
PROMPT = "What is 12+30?"
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">&amp;"


def ledger(step: int, per_step: int) -> dict:
    wall = 7.0 * step
    return {
        "step": step,
        "compute": per_step * step,
        "tokens": 100 * per_step * step,
        "evaluation_rollouts": 0,
        "evaluation_tokens": 0,
        "wall_s": wall,
        "device_hours": wall / 3600,
        "redrawn_rollouts": 0,
    }


def completion(text: str, *, version: int = 3, reason: str = "stop") -> dict:
    pieces = [text[i : i + 4] for i in range(0, len(text), 4)]
    return {
        "text": text,
        "finish_reason": reason,
        "num_tokens": len(pieces),
        "omitted": None,
        "tokens": list(range(len(pieces))),
        "pieces": pieces,
        "logprobs": [-((i * 7) % 13) / 4 for i in range(len(pieces))],
        "policy_versions": [version] * len(pieces),
        "drawn": [1] * len(pieces),
    }


def make_run(
    path: pathlib.Path, *, group_size: int = 8, steps: int = 40, seed: int = 0, done: bool = False, alarm: int = 10**9
) -> pathlib.Path:
    """A run of so many steps, its alarm `kl` on from step `alarm`; its rollouts are hostile now and then."""
    path.mkdir(parents=True)
    per_step = 8 * group_size
    config = {
        "group_size": group_size, "problems_per_batch": 8, "num_steps": 100, "problem_set_size": 64,
        "model_params": 3_000_000, "seed": seed, "config": {"max_compute": 100 * per_step}, "devices": ["cpu:0"],
        "commit": "0123abc",
    }  # fmt: skip
    (path / run_files.CONFIG).write_text(json.dumps(config))

    def score(step: int) -> float:
        half, top = 40 * group_size**0.5, 0.35 + 0.07 * math.log2(group_size)
        wave = 0.004 * math.sin(9.7 * step + seed)
        return 0.1 + (top - 0.1) * step * per_step / (step * per_step + 8 * half) + wave

    for step in range(steps + 1):
        base = ledger(step, per_step)
        if step:
            columns = {
                "reward": score(step), "entropy": 1.2 - 0.01 * step, "kl": 0.01 * step, "learning_rate": 1e-4,
                "completion_length": 30 + step / 4, "truncation_rate": 0.02, "padding": 0.25, "phase_s": PHASES,
                "speed": {
                    "step_s": 6.5, "sampled_tokens_per_s": 900.0 + step, "trained_tokens_per_s": 500.0, "mfu": None,
                    "device_memory": None, "host_memory": 2**30,
                },
                "alarms": ["kl"] if step >= alarm else [],
            }  # fmt: skip
            run_files.append_line(path / run_files.METRICS, base | columns)
            group = {
                "problem_id": f"p{step}", "task": "numeric", "prompt": PROMPT, "rewards": [1.0, 0.0], "failures": {},
                "completions": [completion("The answer is 42."), completion(HOSTILE, version=2, reason="length")],
            }  # fmt: skip
            run_files.append_line(path / run_files.ROLLOUTS, base | {"groups": [group]})
        if step % 4 == 0:
            found = {"eval_set": "validation", "avg@4": score(step), "best@4": score(step) + 0.1, "entropy": 1.0}
            run_files.append_line(path / run_files.EVAL, base | found)
    if done:
        (path / run_files.DONE).write_text("")
    return path


def make_fleet(path: pathlib.Path, *, written: float) -> None:
    """Three servers: one is up, one is gone, and one draws what it was sent before it leaves."""
    one = {
        "endpoint": "10.0.0.1:50051", "up": True, "version": 7, "receiving_weights": False, "groups": 3, "rollouts": 24,
        "tokens_drawn": 123456, "groups_running": 3, "groups_waiting": 0, "silent_s": 0.4, "down_s": 0.0, "error": "",
        "last_error": "",
    }  # fmt: skip
    gone = {"up": False, "version": None, "down_s": 75.0, "error": "cannot be reached: <b>refused</b>"}
    leaving = {"endpoint": "10.0.0.3:50051", "leaving": True}
    members = [one, one | gone | {"endpoint": "10.0.0.2:50051", "last_error": gone["error"]}, one | leaving]
    content = {"written": written, "groups_queued": 5, "redrawn_rollouts": 16, "members": members}
    (path / run_files.FLEET).write_text(json.dumps(content))
