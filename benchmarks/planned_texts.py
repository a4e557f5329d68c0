"""What docs and recipes say of planned costs, made from docs/plans.json; see `benchmarks.planned_costs`.

A page has `<!-- planned: NAME -->`, then what the function NAME here makes, then `<!-- /planned -->`. A docstring of
configs has a paragraph that begins with "Cost, by its plan": its sentences up to the memory of a device are made here,
and what follows them in the paragraph is kept.
"""

from __future__ import annotations

import pathlib
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.shared import head, row
from isocompute_jax.accelerators import DEVICES, GIB

Plans = Mapping[str, Mapping[str, Any]]
BLOCK = re.compile(r"(<!-- planned: (\w+) -->)(.*?)(<!-- /planned -->)", re.DOTALL)
COST = re.compile(r'Cost, by its plan.*?(?=\n\n|\n""")', re.DOTALL)
MADE = re.compile(
    r"Cost, by its plan.*? It takes [\d.]+ of the \d+ GiB of each (?:H200|\w+ chip)(?: that learns)?\."
    r"(?: On one host, .*? H200-hours\.)?"
)
ONE_HOST = {"isocompute_hard_qwen2_5_7b": "reproduce_n16", "isocompute_easy_qwen2_5_7b": "reproduce_easy"}
"""Recipe -> the case in which half a host learns and the other half samples; for others it is RECIPE_one_host."""
GROUP_SIZES = (8, 16, 32, 64, 128)
COLUMNS = (65_536, 131_072, 262_144, 524_288)
WHOLE, EIGHTH, QUARTER, PILOT = 524_288, 65_536, 131_072, 32_768


def texts(plans: Plans, root: pathlib.Path) -> dict[str, str]:
    """Path from the root -> the whole text of every page and config that states a planned cost."""
    found = {}
    for page in sorted(root.glob("docs/*.md")):
        text = page.read_text(encoding="utf-8")
        if BLOCK.search(text):
            found[page.relative_to(root).as_posix()] = BLOCK.sub(lambda part: _block(part, plans), text)
    for name, plan in plans.items():
        text = (root / plan["config"]).read_text(encoding="utf-8")
        if pathlib.Path(plan["config"]).stem == name:
            half = plans.get(ONE_HOST.get(name, f"{name}_one_host"))
            found[plan["config"]] = COST.sub(lambda part, made=(plan, half): _paragraph(part[0], *made), text, count=1)
    return found


def _block(part: re.Match[str], plans: Plans) -> str:
    made = BLOCKS[part[2]](plans)
    inline = "\n" not in part[3]
    return f"{part[1]}{made}{part[4]}" if inline else f"{part[1]}\n{made}\n{part[4]}"


def _paragraph(old: str, plan: Mapping[str, Any], half: Mapping[str, Any] | None) -> str:
    kept = MADE.sub("", " ".join(old.split())).strip()
    made = f"{cost_sentence(plan)} {half_sentence(half)}".strip()
    return textwrap.fill(f"{made} {kept}".strip(), 120, break_on_hyphens=False, break_long_words=False)


def half_sentence(half: Mapping[str, Any] | None) -> str:
    """What the same run takes on one host; nothing where that was not planned."""
    if half is None:
        return ""
    flags = [f"--config.{field}={half['fields'][field]}" for field in ("mesh.fsdp", "recipe.microbatch_tokens")]
    hours = span(half["figures"]["device_hours"])
    return f"On one host, where 4 learn and 4 sample ({' '.join(flags)}; weights go by a file): {hours} H200-hours."


def cost_sentence(plan: Mapping[str, Any]) -> str:
    """What a docstring says: hours, what a step consists of, memory."""
    figures = plan["figures"]
    kind = figures["topology"].removeprefix("tpu:").partition(":")[0]
    device = DEVICES[kind]
    one, hours = ("H200", "H200-hours") if kind == "h200" else (f"{kind} chip", "chip-hours")
    updates = figures["updates_per_step"]
    update = (
        f"{span(figures['step_s'])} s of update"
        if updates == 1
        else f"{updates} updates of {span(figures['step_s'])} s"
    )
    engine = "vLLM" if kind == "h200" else "the JAX engine"
    meanwhile = ", meanwhile" if figures["asynchronous"] else ""
    rollouts, steps = figures["rollouts"], figures["steps"]
    return (
        f"Cost, by its plan (estimates from rooflines; nothing was run): {span(figures['device_hours'])} {hours} for "
        f"{rollouts * steps:,} rollouts in {steps:,} steps of {rollouts:,}, each {update}, "
        f"{span(figures['weights_s'])} s of sending weights and {span(figures['sampling_s'])} s of sampling by "
        f"{engine} on {figures['sampler_devices']} others{meanwhile}; evaluations and the last checkpoint are counted. "
        f"It takes {figures['needed'] / GIB:.1f} of the {device.memory / GIB:.0f} GiB of each {one} that learns."
    )


def span(ends: Sequence[float]) -> str:
    """Both ends, or one where they read the same."""
    low, high = (f"{end:,.0f}" if end >= 10 else f"{end:.2g}" for end in ends)
    return low if low == high else f"{low} to {high}"


def _share(ends: Sequence[float]) -> str:
    low, high = (f"{100 * end:.0f}" for end in ends)
    return f"{low}%" if low == high else f"{low} to {high}%"


def _total(*ranges: Sequence[float]) -> list[float]:
    return [sum(each[0] for each in ranges), sum(each[1] for each in ranges)]


def _times(ends: Sequence[float], factor: float) -> list[float]:
    return [end * factor for end in ends]


def _hours(plans: Plans, name: str, compute: int = WHOLE) -> list[float]:
    return plans[name]["by_compute"][str(compute)]["device_hours"]


def _wall(plans: Plans, name: str, compute: int = WHOLE) -> list[float]:
    return plans[name]["by_compute"][str(compute)]["wall_hours"]


def _sweep(plans: Plans, compute: int) -> list[float]:
    return _total(*(_hours(plans, f"reproduce_n{n}", compute) for n in GROUP_SIZES))


def _seeds(plans: Plans) -> list[float]:
    """One more run up to C of an n and of its neighbours."""
    return _total(*(_hours(plans, f"reproduce_n{n}") for n in (32, 64, 128)))


def _batches(plans: Plans) -> list[float]:
    return _total(*(_hours(plans, f"reproduce_b{problems}", QUARTER) for problems in (32, 128, 256)))


def _verification(plans: Plans) -> list[float]:
    return _total(_seeds(plans), _batches(plans), _times(_hours(plans, "reproduce_easy", QUARTER), 2))


def reproduce_phases(plans: Plans) -> str:
    """The table of phases."""
    ends = [_hours(plans, f"reproduce_n{n}") for n in GROUP_SIZES]
    further = [min(end[0] for end in ends), max(end[1] for end in ends)]
    rows = (
        ("1 Model and problems", "0", "that prompts read as they should", "three of them look right"),
        (
            "2 Curation",
            span(plans["isocompute_hard_qwen2_5_7b"]["curation"]),
            "how often the model solves what; Easy and Hard",
            "each set has 300 + 5,000 problems",
        ),
        (
            "3 Pilot",
            span(_hours(plans, "reproduce_n16", PILOT)),
            "what an hour buys here, and that the reward rises",
            "32,768 rollouts",
        ),
        (
            "4 The sweep",
            span(_sweep(plans, WHOLE)),
            "which n, or that little hangs on it",
            "five n up to C, one seed",
        ),
        (
            "5 Fit, and further runs",
            f"{span(further)} a run",
            "the same, where the sweep left it open",
            "the verdict is *clear* or *no matter*",
        ),
        (
            "6 Verification",
            span(_verification(plans)),
            "how sure the lead is; whether B_problem and regularisation matter",
            "each question's runs are done",
        ),
        ("7 Report", "0", "what the paper's findings are here", ""),
    )
    lines = head(("phase", "device-hours", "what you know after it", "it ends when"), left=(0, 2, 3))
    for name, *cells in rows:
        anchor = name.lower().replace(",", "").replace(" ", "-")
        lines.append(row(f"[{name}](#{anchor})", *cells))
    return "\n".join(lines)


def reproduce_total(plans: Plans) -> str:
    """What all phases take together."""
    parts = plans["isocompute_hard_qwen2_5_7b"]["curation"], _hours(plans, "reproduce_n16", PILOT), _sweep(plans, WHOLE)
    total = _total(*parts, _verification(plans))
    return (
        f"For Hard that is {span(total)} device-hours without further runs, {span(_times(total, 1 / 16))} hours of two "
        "nodes; for Easy phases 4 and 5 come again."
    )


def reproduce_curation(plans: Plans) -> str:
    """Device-hours of curating on one node."""
    return span(plans["isocompute_hard_qwen2_5_7b"]["curation"])


def reproduce_pilot(plans: Plans) -> str:
    """Device-hours of the pilot."""
    return span(_hours(plans, "reproduce_n16", PILOT))


def reproduce_sweep(plans: Plans) -> str:
    """Device-hours of each n and budget, and how long that is."""
    lines = head(("n", "steps to C", *(f"{compute:,}" for compute in COLUMNS)), left=())
    for n in GROUP_SIZES:
        cells = (span(_hours(plans, f"reproduce_n{n}", compute)) for compute in COLUMNS)
        lines.append(row(n, f"{WHOLE // (64 * n):,}", *cells))
    lines.append(f"| all | | {' | '.join(span(_sweep(plans, compute)) for compute in COLUMNS)} |")
    wall, two = _wall(plans, "reproduce_n8"), _times(_sweep(plans, WHOLE), 1 / 16)
    said = (
        "(`--config.max_compute` for the other columns.) B_problem is 64 throughout, so that a step of a small n is "
        "too small for the GPUs, and its rollouts are dear. On five nodes or more the runs go side by side and the "
        f"longest takes {span(wall)} hours; on two, with `--workers=2`, it is {span(two)} hours in all. Rates follow B "
        "by the square root; warm-up is ten steps whatever n is."
    )
    return "\n".join([*lines, "", _wrapped(said)])


def reproduce_seeds(plans: Plans) -> str:
    """Device-hours of one more seed."""
    return span(_seeds(plans))


def reproduce_questions(plans: Plans) -> str:
    """The table of phase 6."""
    run, easy = _hours(plans, "reproduce_n16", QUARTER), _hours(plans, "reproduce_easy", QUARTER)
    smaller = _total(*(_hours(plans, f"reproduce_n{n}", QUARTER) for n in (16, 32, 64)))
    rows = (
        ("does B_problem matter at fixed n", "32, 128 and 256, beside 64", span(_batches(plans))),
        (
            "do KL and entropy terms hurt Hard",
            "`recipe.healthy=none`, `loss.kl_coef=0.001`, `loss.entropy_coef=0.001`, on Hard",
            f"{span(easy)} for each, by the second command: the Easy recipe's step has the same terms",
        ),
        (
            "does a smaller D lower the saturation",
            "`problem_set_size=1000`, at the n that won and its neighbours",
            f"{span(smaller)} for 16, 32 and 64, by the table of phase 4",
        ),
        (
            "do mixtures keep Easy, does Hard alone forget it",
            "the mixture and Hard at the n that won, each with `evaluation.sets.easy` and `evaluation.sets.hard`",
            f"{span(run)} a run, and its evaluations once more",
        ),
        (
            "do base models differ",
            "phases 1 to 5 with `isocompute_hard_qwen3_4b.py` or `isocompute_hard_llama3_1_8b.py`, and their Hard sets",
            "by their own plan",
        ),
        (
            "Easy: a higher saturation, worst@k for larger n",
            "phases 4 and 5 with `isocompute_easy_qwen2_5_7b.py` and `curated/easy`",
            f"as on Hard: at n = 16 the plans say {span(easy)} and {span(run)}",
        ),
    )
    lines = head(("question", "runs", "device-hours"), left=(0, 1))
    return "\n".join([*lines, *(row(*cells) for cells in rows)])


def cluster_study(plans: Plans) -> str:
    """The table of learners and servers, and what the study takes."""
    half = {n: plans[f"reproduce_n{n}"]["figures"] for n in GROUP_SIZES}
    study = _total(*(figures["device_hours"] for figures in half.values()))
    hard = plans["isocompute_hard_qwen2_5_7b"]
    other = "8 on the other host"
    rows = [
        *(("**4**, `mesh.fsdp=4`", "**4 on the same host**", n, figures) for n, figures in half.items()),
        ("8", other, 16, hard["figures"]),
        ("8, `service.push=nccl`", other, 16, hard["nccl"]),
        ("8, that and `max_staleness=8`", other, 16, hard["stale"]),
        ("2 x 8, `mesh.fsdp=16`", "16 on two more hosts", 16, plans["cluster_two"]["figures"]),
        ("8, sampling in their own process", "none", 16, plans["in_process"]["figures"]),
    ]
    said = (
        "Each row is a run of 2^19 rollouts, as `--dry_run` estimates it from rooflines; nothing was run. The study is "
        f"the first five runs: {span(study)} device-hours, {span(_times(study, 1 / 16))} hours with one on each host."
    )
    return f"{_wrapped(said)}\n\n{_runs(rows)}"


def cluster_weights(plans: Plans) -> str:
    """What weighs in the table."""
    apart, beside = (plans[name]["figures"]["weights_s"] for name in ("isocompute_hard_qwen2_5_7b", "reproduce_n16"))
    said = (
        "On-policy, learner and servers wait for each other, and half of what is paid for idles. On another host every "
        f"server is streamed the weights, one after the other: {span(apart)} s of each step. On the learner's own host "
        f"all of them read one file, {span(beside)} s. So take servers on the learner's host as long as the model fits "
        "([one host](one_host.md), [the whole reproduction on such hosts](reproduce.md)); between hosts `--config."
        "service.push=nccl` saves most of that, and no GPU has run it yet. Asynchronous training, where a recipe "
        "allows it, hides the slower side alone. A learner over both hosts buys room for larger models and for "
        "longer answers."
    )
    return _wrapped(said)


def cluster_slice(plans: Plans) -> str:
    """The same on a slice of TPUs."""
    return _runs([("4 x 4 x 4", "64 chips", 128, plans["cluster_slice"]["figures"])])


def _runs(rows: Sequence[tuple[str, str, int, Mapping[str, Any]]]) -> str:
    lines = head(("learner", "servers", "n", "device-hours", "hours", "the learner is busy"), left=(0, 1))
    last = ("", "")
    for learner, servers, n, figures in rows:
        who = ("", "") if (learner, servers) == last else (learner, servers)
        last = learner, servers
        hours, wall, busy = span(figures["device_hours"]), span(figures["wall_hours"]), _share(figures["learner"])
        lines.append(row(*who, n, hours, wall, busy))
    return "\n".join(lines)


def in_process(plans: Plans) -> str:
    """What sampling in the learner's process costs, as compiled."""
    own, served = plans["in_process"]["figures"], plans["isocompute_hard_qwen2_5_7b"]["figures"]
    unit, both = own["unit"], own["together"]
    together = unit["problems"] * unit["rollouts"]
    said = (
        "**Rather do not sample in the learner's process on GPUs.** As that program is compiled, weights, keys and "
        "values are read where they lie, but every token reads those of all 8,192 positions that a completion may "
        f"reach, and launches some {round(unit['launches'], -2):,} kernels; and a unit of {together:,} rollouts ends "
        "with its longest, while no other takes the place of one that has stopped. A step "
        f"of 1,024 rollouts takes {span(own['sampling_s'])} s, by vLLM on as many GPUs {span(served['sampling_s'])} s, "
        f"and the run {span(own['device_hours'])} device-hours. While it samples, each device holds "
        f"{both['sampling'] / GIB:.0f} GiB. It is what a run does that is given no servers "
        "(`config.service.endpoints`)."
    )
    return _wrapped(said)


PUBLISHED = {
    "scalerl_8b": (
        "100,000 GPU-hours, 7,400 steps too ([2510.13786](https://arxiv.org/abs/2510.13786), figure 1)",
        100_000,
        "Known: if every completion were as long as it may be, the plan would say {longest}; and the paper's own "
        "Scout, with twice the active parameters, took half of the hours for nearly as many steps, so that arithmetic "
        "does not decide them. Not known: its lengths, how many GPUs waited for others and were counted, the speed of "
        "its engines. **The rest is unexplained**, and the plan may be too low.",
    ),
    "scalerl_scout": ("50,000 GPU-hours, 7,100 steps too (the same figure)", 50_000, "Within what is said above."),
    "dr_grpo_one_host": (
        "27 hours on 8 A100: 216 A100-hours ([2503.20783](https://arxiv.org/abs/2503.20783))",
        216,
        "By NVIDIA's data sheets an A100 has 0.32 of an H200's products and 0.42 of its memory bandwidth.",
    ),
}
"""Case -> what its paper says, in words and in device-hours, and what is known of the difference."""


def published(plans: Plans) -> str:
    """Plans beside what papers say of the runs themselves."""
    longest = span(plans["scalerl_8b_longest"]["figures"]["device_hours"])
    lines = head(("recipe", "plan, H200-hours", "published", "times the plan", "why"), left=(0, 2, 4))
    for name, (said, hours, why) in PUBLISHED.items():
        low, high = plans[name]["figures"]["device_hours"]
        times = span([hours / high, hours / low])
        recipe = f"`{name.removesuffix('_one_host')}`" + ", on one host" * name.endswith("_one_host")
        lines.append(row(recipe, span([low, high]), said, times, why.format(longest=longest)))
    return "\n".join(lines)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 140, break_on_hyphens=False, break_long_words=False)


BLOCKS: dict[str, Callable[[Plans], str]] = {
    function.__name__: function
    for function in (
        reproduce_phases, reproduce_total, reproduce_curation, reproduce_pilot, reproduce_sweep, reproduce_seeds,
        reproduce_questions, cluster_study, cluster_weights, cluster_slice, in_process, published,
    )
}  # fmt: skip
"""Name -> what stands between its marks."""
