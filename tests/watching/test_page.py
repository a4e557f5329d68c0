"""The page in a real browser: what a reader sees of made-up runs and their fit, and that text of a run stays text."""

import json
import time

import pytest

from isocompute_jax.records import run_files
from isocompute_jax.watching import watched_runs
from isocompute_jax.watching.server import serving
from isocompute_jax.watching.watched_runs import WatchedRuns
from tests.fit.report.browser import Browser, browser
from tests.watching.builders import HOSTILE, PROMPT, ledger, make_fleet, make_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """(the page in a browser, its server, the runs' directory)"""
    root = tmp_path_factory.mktemp("watched")
    for size in (4, 16):
        make_run(root / "sweep" / f"n={size}", group_size=size, steps=40, done=True, alarm=30 if size == 4 else 10**9)
    make_run(root / "hostile <img src=x onerror=alert(1)>", steps=12)
    make_fleet(root / "hostile <img src=x onerror=alert(1)>", written=time.time())
    with serving(WatchedRuns(root), port=0, fit=True) as server, browser() as window:
        window.send("Emulation.setDeviceMetricsOverride", width=1300, height=900, deviceScaleFactor=1, mobile=False)
        window.send("Page.navigate", url=server.url)
        until(window, "document.querySelectorAll('.tokens span').length > 0")
        yield window, server, root


def until(window: Browser, expression: str, *, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not window.evaluate(expression):
        assert time.monotonic() < end, (expression, window.errors)
        time.sleep(0.1)


def choose(window: Browser, run: str) -> None:
    window.evaluate(f"document.querySelector('[data-run=' + CSS.escape({json.dumps(run)}) + ']').click()")
    until(window, f"document.getElementById('detail-name').textContent === {json.dumps(run)}")


def pick(window: Browser, select: str, value: str) -> None:
    window.evaluate(
        f"(() => {{ const select = document.getElementById('{select}'); select.value = '{value}';"
        "select.dispatchEvent(new Event('change')); })()"
    )


def text(window: Browser, selector: str) -> str:
    return window.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")


def test_runs_and_their_curves_are_shown(page):
    window, _, root = page
    assert text(window, "#root") == str(root)
    assert window.evaluate("[...document.querySelectorAll('.run .name')].map((name) => name.textContent)") == [
        "hostile <img src=x onerror=alert(1)>",
        "sweep/n=16",
        "sweep/n=4",
    ]
    assert window.evaluate("[...document.querySelectorAll('.run > .chip')].map((chip) => chip.textContent)") == [
        "running",
        "done",
        "done",
    ]
    paths = window.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#curves-view path')].map((path) => "
        "[path.dataset.curve, path.getAttribute('d').split(/[ML]/).length - 1]))"
    )
    paths.pop("best n so far", None)  # of a quick fit
    assert paths == {"hostile <img src=x onerror=alert(1)>": 3, "sweep/n=16": 10, "sweep/n=4": 10}  # log C leaves 0 out
    assert window.evaluate("document.getElementById('metric').value") == "eval/validation/avg@4"


def test_metrics_and_axes_can_be_chosen(page):
    window, _, _ = page
    pick(window, "metric", "train/kl")
    until(window, "document.querySelector('#curves-view svg')?.getAttribute('aria-label').startsWith('kl against')")
    pick(window, "axis", "wall_s")
    until(window, "document.querySelector('#curves-view svg').textContent.includes('wall time')")
    assert " min " in window.evaluate("document.querySelector('#curves-view svg').textContent")


def test_text_of_a_run_stays_text(page):
    window, _, _ = page
    choose(window, "hostile <img src=x onerror=alert(1)>")
    until(window, "document.querySelectorAll('.completion').length === 2")
    assert text(window, ".prompt") == PROMPT
    shown = window.evaluate("[...document.querySelectorAll('.tokens')].map((tokens) => tokens.textContent)")
    assert shown == ["The answer is 42.", HOSTILE]
    assert window.evaluate("document.querySelectorAll('main script, main img, main b > b').length") == 0
    assert "owned" not in window.evaluate("document.title")
    assert "cannot be reached: <b>refused</b>" in text(window, "#fleet-rows")


def test_the_fleet_is_shown(page):
    window, _, _ = page
    choose(window, "hostile <img src=x onerror=alert(1)>")
    rows = window.evaluate("[...document.querySelectorAll('#fleet-rows tr')].map((row) => row.innerText.split('\\t'))")
    assert rows[0][:3] == ["10.0.0.1:50051", "up", "v7"]
    assert rows[1][1] == "down 1 min 15 s" and "5 groups wait" in text(window, "#fleet-note")
    assert rows[2][1] == "leaving"


def test_tokens_say_their_log_probability_and_version(page):
    window, _, _ = page
    choose(window, "sweep/n=16")
    until(window, "document.querySelectorAll('.completion').length === 2")
    backgrounds = window.evaluate(
        "[...document.querySelector('.tokens').children].map((token) => getComputedStyle(token).backgroundColor)"
    )
    assert backgrounds[0] == "rgba(214, 104, 20, 0)" and len(set(backgrounds)) > 3
    window.evaluate("document.querySelector('.tokens span').scrollIntoView({ block: 'center' })")
    box = window.evaluate(
        "(() => { const box = document.querySelectorAll('.tokens span')[1].getBoundingClientRect();"
        "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    window.move(*box)
    until(window, "!document.getElementById('tip').hidden")
    tip = text(window, "#tip")
    assert "log-probability -1.7500 (17%)" in tip and "weights v3" in tip and tip.startswith('"answ" token 1')


def test_alarms_and_the_split_of_a_step(page):
    window, _, _ = page
    choose(window, "sweep/n=4")
    assert "Alarm: kl is on since step 30" in text(window, "#alarms")
    legend = text(window, "#time-legend")
    assert "sampling" in legend and "46%" in legend and "waiting" not in legend
    assert (
        window.evaluate("document.querySelectorAll('#time-view rect').length") == 39 * 7
    )  # the first step is left out
    tiles = text(window, "#tiles")
    assert "40 of 100" in tiles.replace("\n", " ") and "25%" in tiles and "1.00 GiB" in tiles


def test_the_fit_so_far_is_shown(page):
    """It began when the page first asked, beside the tests above."""
    window, server, _ = page
    until(window, "document.querySelectorAll('#frontier-view svg path').length > 0", seconds=400)
    found = json.loads(server.answer("/api/frontier")[2])["result"]
    switches = [(one["from_group_size"], one["to_group_size"]) for one in found["switches"]]
    assert switches == [(4, 8), (8, 16)]  # as in truth: n = 8 leads from 840 to 1,560 rollouts, beyond its own data
    assert {row["group_size"] for row in found["budgets"]} == {4, 8, 16}
    said = text(window, "#frontier-said")
    assert f"is n = 16, with avg@4 {found['budgets'][-1]['reward']:.3f}; " in said and ". It was 4 up to " in said
    assert text(window, "#frontier-state").startswith("of 3 runs, ")
    labels = "[...document.querySelectorAll('#frontier-view text')].map((label) => label.textContent)"
    assert {"best n", "4", "16"} <= set(window.evaluate(labels))
    pick(window, "axis", "compute")
    pick(window, "metric", "eval/validation/avg@4")
    until(window, "document.querySelector('#curves-view path[data-curve=\"best n so far\"]') !== null")
    assert "best n so far" in text(window, "#curves-legend")
    assert "<html" in window.evaluate("fetch('/frontier/report.html').then((answer) => answer.text())")


def test_what_is_logged_appears_by_itself(page, monkeypatch):
    monkeypatch.setattr(watched_runs, "FRESH_S", -1.0)
    window, _, root = page
    choose(window, "hostile <img src=x onerror=alert(1)>")
    path = root / "hostile <img src=x onerror=alert(1)>" / run_files.METRICS
    run_files.append_line(path, ledger(13, 64) | {"reward": 0.5, "alarms": ["entropy_collapse"]})
    until(window, "document.getElementById('alarms').innerText.includes('entropy collapse is on since step 13')")
    until(window, "document.querySelector('.run .facts').innerText.includes('step 13 of 100')")


def test_it_asks_nobody_else_and_nothing_failed(page):
    window, server, _ = page
    asked = [error for error in window.errors if not error.startswith(f"asked for {server.url}")]
    assert asked == []


def test_a_fit_without_an_answer_is_said_and_nothing_else_is_lost(page):
    """As of runs that no step was paid of; then one over runs of several base models."""
    window, _, _ = page
    empty = {"metric": "avg@4", "unit": "rollouts", "budgets": [], "switches": [], "runs": 4, "differ": []}
    row = {"compute": 2048, "reward": 0.1, "group_size": 8, "problems_per_batch": 8, "verdict": "open", "named": [8]}
    said = "document.getElementById('frontier-said').innerText"
    window.evaluate("window.asked = window.fetch")
    for result, words in (
        (empty, "No step could be paid yet: nothing is best."),
        (empty | {"budgets": [row], "differ": ["model"]}, "Careful: the runs differ in model too."),
    ):
        answer = json.dumps({"state": "ready", "message": "", "fitted_at": time.time(), "result": result})
        window.evaluate(
            "window.fetch = (url, ...rest) => String(url).includes('/api/frontier')"
            f" ? Promise.resolve(new Response({json.dumps(answer)})) : window.asked(url, ...rest); 0"
        )
        until(window, f"{said}.endsWith({json.dumps(words)})")
        assert window.evaluate("document.getElementById('pulse').className") != "lost"
    window.evaluate("window.fetch = window.asked; 0")
