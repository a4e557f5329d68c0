"""The page's server: who is answered, with what, and what a request can never reach."""

import http.client
import json
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

from isocompute_jax.records.errors import InputError
from isocompute_jax.watching import frontier as frontiers
from isocompute_jax.watching.frontier import FrontierSoFar
from isocompute_jax.watching.server import load_page, serving
from isocompute_jax.watching.watched_runs import WatchedRuns
from tests.watching.builders import HOSTILE, make_run

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    make_run(root / "a b", steps=8)
    with serving(WatchedRuns(root), port=0, fit=False) as server:
        yield server


def get(server, target: str, *, host: str = "", method: str = "GET") -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest(method, target, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply, body


def test_the_page_is_one_file_that_loads_nothing(server):
    reply, body = get(server, "/")
    assert reply.status == 200 and reply.headers["Content-Type"] == "text/html; charset=utf-8"
    policy = reply.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy
    text = body.decode()
    assert text.count("<script>") == 1 and "/* script */" not in text and "/* style */" not in text
    assert "innerHTML" not in text and "insertAdjacentHTML" not in text and "document.write" not in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace('"isocompute', "")
    assert load_page()[0] == body


def test_what_the_page_asks_for(server):
    overview = json.loads(get(server, "/api/runs")[1])
    assert [run["name"] for run in overview["runs"]] == ["a b"]
    assert json.loads(get(server, "/api/run?name=a+b")[1])["step"] == 8
    curves = json.loads(get(server, "/api/curves?metric=eval/validation/avg@4")[1])
    assert curves["runs"]["a b"]["step"] == [0, 4, 8]
    line = json.loads(get(server, "/api/rollouts?name=a%20b&index=2")[1])
    assert line["groups"][0]["completions"][1]["text"] == HOSTILE
    assert json.loads(get(server, "/api/frontier")[1]) == {"state": "off"}


@pytest.mark.parametrize("target", ["/", "/api/runs", "/api/frontier", "/nothing"])
def test_head_is_get_without_its_body(server, target):
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
        host = f"Host: 127.0.0.1:{server.server_port}"
        connection.sendall(f"HEAD {target} HTTP/1.1\r\n{host}\r\nConnection: close\r\n\r\n".encode())
        with connection.makefile("rb") as file:
            head, _, rest = file.read().partition(b"\r\n\r\n")
    reply, body = get(server, target)
    assert int(head.split()[1]) == reply.status and rest == b""
    if target != "/api/runs":  # its ages grow
        assert f"Content-Length: {len(body)}".encode() in head
    assert get(server, "/", host="evil.example", method="HEAD")[0].status == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.", "[::1]", "0.0.0.0"]
)
def test_other_names_of_this_machine_are_refused(server, host):
    for target in ("/", "/api/runs"):
        reply, body = get(server, target, host=host)
        assert reply.status == 403 and b"a b" not in body


def test_localhost_is_answered(server):
    assert get(server, "/", host=f"localhost:{server.server_port}")[0].status == 200


def test_it_listens_on_the_loopback_address_alone(server):
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "target",
    [
        "/../config.json", "/a%20b/config.json", "/api/../../etc/passwd", "/etc/passwd", "//etc/passwd",
        "/page_files/main.js",
        "/api/run?name=../a%20b", "/api/run?name=/etc", "/api/rollouts?name=..%2f..&index=0", "/frontier/report.html",
        "/frontier/../summary.json", "/%2e%2e/%2e%2e/etc/passwd",
    ],
)  # fmt: skip
def test_paths_lead_nowhere(server, target):
    reply, body = get(server, target)
    assert reply.status == 404 and "error" in json.loads(body)
    assert b"root:" not in body and b"group_size" not in body


@pytest.mark.parametrize(
    "target", ["/api/run", "/api/curves", "/api/rollouts?name=a+b", "/api/rollouts?name=a+b&index=x"]
)
def test_a_question_that_is_no_question_is_refused(server, target):
    assert get(server, target)[0].status == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_sent_to_it(server, method):
    assert get(server, "/", method=method)[0].status == 501


def test_a_port_that_is_taken_is_named(server):
    with (
        pytest.raises(InputError, match=f"--port={server.server_port}: .*choose another"),
        serving(WatchedRuns(ROOT / "tests"), port=server.server_port, fit=False),
    ):
        pass


# --- the best n so far


class Runs:
    root = pathlib.Path("runs")

    def __init__(self):
        self.found: tuple[int, int] = (1, 10)

    def evaluated(self):
        return self.found


@pytest.fixture
def fitting(monkeypatch):
    """A fit that takes a moment and writes what the real one writes."""
    program = """
import json, pathlib, sys, time
time.sleep(0.3)
out = pathlib.Path(sys.argv[1]); out.mkdir(exist_ok=True)
size = {"group_size": 8, "problems_per_batch": 8}
answer = {"budget": 1.0, "choices": [{"reward": 0.5, **size}], "verdict": "open", "named": [size]}
data = {"span": [1.0, 1.0], "varies": ["group_size"]}
summary = dict(metric="avg@4", compute_unit="rollouts", inputs=[1, 2], data=data, grid=[answer], switches=[])
(out / "summary.json").write_text(json.dumps(summary))
(out / "report.html").write_text("<p>report")
"""
    start = subprocess.Popen
    started = []

    def popen(command, **options):
        started.append(command)
        if "fail" in program_of:
            return start([sys.executable, "-c", "import sys; sys.exit('error: no curve')"], **options)
        [out] = [word.removeprefix("--out=") for word in command if word.startswith("--out=")]
        return start([sys.executable, "-c", program, out], **options)

    program_of: set[str] = set()
    monkeypatch.setattr(frontiers.subprocess, "Popen", popen)
    monkeypatch.setattr(frontiers, "AGAIN_S", 0.0)
    monkeypatch.setattr(frontiers, "AGAIN_TIMES", 0.0)
    return started, program_of


def until(condition) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def test_the_frontier_is_fitted_beside_and_again_when_there_is_more(fitting):
    started, how = fitting
    runs = Runs()
    frontier = FrontierSoFar(runs)  # pyright: ignore[reportArgumentType]
    try:
        assert frontier.now()["state"] == "waiting" and "two group sizes" in frontier.now()["message"]
        runs.found = (2, 12)
        began = time.monotonic()
        assert frontier.now()["state"] == "fitting" and time.monotonic() - began < 0.25  # it is not waited for
        assert frontier.report() is None
        until(lambda: frontier.now()["state"] == "ready")
        found = frontier.now()["result"]
        (row,) = found["budgets"]
        assert (row["compute"], row["reward"], row["group_size"], row["verdict"]) == (1.0, 0.5, 8, "open")
        assert (found["metric"], found["runs"]) == ("avg@4", 2) and frontier.report() == b"<p>report"
        assert len(started) == 1  # nothing new, no fit
        runs.found = (2, 13)
        how.add("fail")
        assert frontier.now()["state"] == "fitting"
        until(lambda: frontier.now()["message"])
        assert frontier.now()["message"] == "no curve" and frontier.now()["result"] == found  # the last one stays
        assert len(started) == 2
    finally:
        frontier.close()


# --- the command


def test_the_command_serves_until_it_is_ended(tmp_path):
    make_run(tmp_path / "run", steps=4)
    command = [sys.executable, "-m", "isocompute_jax.watch", f"--runs={tmp_path}", "--port=0", "--nofit"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("http://127.0.0.1:") and str(tmp_path) in line
        connection = http.client.HTTPConnection(line.split("/")[2], timeout=10)
        connection.request("GET", "/api/runs")
        assert len(json.loads(connection.getresponse().read())["runs"]) == 1
        connection.close()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (0, "")
