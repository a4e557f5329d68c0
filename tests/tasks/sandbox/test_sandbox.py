"""What the sandbox gives back, what it limits, what it says about itself, and that nothing outlives it."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time

import psutil
import pytest

from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.tasks.sandbox import Failed, Sandbox, SandboxLimits, isolation
from isocompute_jax.tasks.sandbox.inside.jail import MEASURES
from isocompute_jax.tasks.sandbox.inside.program import plain

ECHO = "import sys\nsys.stdout.write(sys.stdin.read())"
PATIENT = SandboxLimits(test_s=30)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(PATIENT) as sandbox:
        yield sandbox


@pytest.fixture(
    scope="module", params=[MEASURES, ("user", "landlock", "system_calls"), ()], ids=["all", "fallback", "limits alone"]
)
def each(request):
    """A sandbox with all that this kernel grants, and with what is left where it grants no namespaces."""
    with Sandbox(PATIENT, measures=request.param) as sandbox:
        yield sandbox


def printed(sandbox: Sandbox, source: str, text: str = "") -> str:
    [outcome] = sandbox.run(source, [text])
    assert outcome.ending == "ended", outcome
    return outcome.stdout.decode()


# What comes back.


def test_a_program_reads_and_prints(each):
    outcomes = each.run("print(int(input()) * 2)", ["1", "-4", "no number"])
    assert [(o.ending, o.stdout) for o in outcomes] == [("ended", b"2\n"), ("ended", b"-8\n"), ("failed", b"")]
    assert outcomes[2].stderr.decode().splitlines()[1:2] == ['  File "program.py", line 1, in <module>']


def test_functions_methods_and_expressions_are_called(each):
    source = """
class Solution:
    def twice(self, x): return 2 * x
def f(a, b): return {"sum": a + b, "both": (a, b), "set": {3, 1, 2}}
print("[0, 5]")
"""
    values = each.call(source, [("twice", [4]), ("f", [1, 2]), ("f", [1]), ("f(1, 1)['sum'] + 1", None), ("g", [])])
    assert values == [8, {"sum": 3, "both": [1, 2], "set": [1, 2, 3]}, Failed, 3, Failed]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("import sys\nprint(open(0).read())", "open by its number"),
        ("import os\nprint(os.read(0, os.fstat(0).st_size).decode())", "read by its size"),
        ("import sys\nprint(sys.stdin.buffer.readline().decode())", "as bytes"),
        (
            "import atexit, io, os\nb = io.StringIO(input())\natexit.register(lambda: os.write(1, b.read().encode()))",
            "late",
        ),
        (
            "import sys, threading as t\nsys.setrecursionlimit(9999)\nt.Thread(target=lambda: print(input())).start()",
            "t",
        ),
        ("print(input())\nexit()", "exit"),
        ("print(input(), flush=True)\nimport os\nos._exit(0)", "at once"),
        ("if __name__ == '__main__': print(input())", "main"),
        ("d = defaultdict(list)\nx: List[int] = list(accumulate([1, 2]))\nprint(input(), end='')", "without imports"),
        (
            "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nprint(A(1) == A(1) and input())",
            "classes",
        ),
    ],
)
def test_what_contestants_write_works(sandbox, source, text):
    assert printed(sandbox, source, text).strip() == text


def test_large_input_and_output(sandbox):
    text = "0123456789abcde\n" * 60_000
    assert printed(sandbox, ECHO, text) == text
    assert sandbox.call("def f(x): return x", [("f", [list(range(100_000))])]) == [list(range(100_000))]


def test_too_much_output_is_cut_and_said(each):
    each.limits = dataclasses.replace(PATIENT, output_kb=4)
    try:
        [outcome] = each.run("import sys\nwhile True: print('x' * 999)", [""])
        assert (outcome.ending, len(outcome.stdout)) == ("output", 4096)
        assert each.call("def f(x): return 'a' * x", [("f", [3]), ("f", [5000])]) == [Failed, Failed]
        # What a function prints is not judged, and not kept.
        assert each.call("def f(x):\n    print('x' * 9999)\n    return x", [("f", [3])]) == [3]
    finally:
        each.limits = PATIENT


def test_every_test_has_a_fresh_process_and_directory(each):
    source = "import os, random\nprint(os.listdir())\nopen('a', 'w').close()\nprint(random.random(), hash('a'))"
    first, second = each.run(source, ["", ""])
    assert first.stdout == second.stdout and first.stdout.startswith(b"[]\n")


def test_random_numbers_and_hashes_are_those_of_every_other_run():
    source = "import random\nprint(random.random(), hash('a'), list({'a', 'b', 'c'}))"
    both = []
    for _ in range(2):
        with Sandbox(PATIENT) as sandbox:
            both.append(printed(sandbox, source))
    assert both[0] == both[1]


def test_surrogates_and_broken_text_come_through(sandbox):
    outcome = sandbox.run("import sys\nprint(repr(sys.stdin.read()))", ["\ud800 ä"])[0]
    assert (outcome.ending, outcome.stdout.decode()) == ("ended", "'\ufffd\ufffd\ufffd ä'\n")


# Results that nobody can forge.


def test_guessing_is_no_answer(sandbox):
    both = "import os\nfor line in ('[0, true]', '[0, false]'): os.write(3, line.encode() + b'\\n')\nos._exit(0)"
    assert sandbox.call(both, [("f", [1])]) == [Failed]
    for line in ("[0, 1, 2]", "[-1, 1]", "[true, 1]", "[1, 1]", "{}", "[]", "x", "[0, " + "[" * 30_000):
        source = f"import os\nos.write(3, {line!r}.encode() + b'\\n')\ndef f(x): return 7"
        assert sandbox.call(source, [("f", [1])]) == [Failed]


def test_only_plain_values_are_compared():
    class Same(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    assert plain({(1, 2): ({3}, None)}) == {"[1, 2]": [[3], None]}
    for value in (Same(), [Same()], {"a": Same()}, object(), 1j, b"a", iter(())):
        with pytest.raises(TypeError, match="cannot compare"):
            plain(value)


# Limits.


def test_time_is_over(each):
    each.limits = dataclasses.replace(PATIENT, test_s=0.1)
    try:
        outcomes = each.run("if input() == 'wait':\n    while True: pass\nprint(1)", ["wait", "go", "go"])
    finally:
        each.limits = PATIENT
    assert [outcome.ending for outcome in outcomes] == ["time", "not run", "not run"]


@pytest.mark.slow  # a few seconds, so that a busy machine does not matter
def test_each_call_has_its_time_and_all_have_theirs(sandbox):
    source = "import time\ndef f(x):\n    time.sleep(x)\n    return x"
    try:
        sandbox.limits = SandboxLimits(test_s=2, wall_s=30)
        assert sandbox.call(source, [("f", [0.6])] * 4 + [("f", [60]), ("f", [0])]) == [0.6] * 4 + [Failed] * 2
        sandbox.limits = SandboxLimits(test_s=30, wall_s=2)
        assert sandbox.call(source, [("f", [0]), ("f", [60])]) == [0, Failed]
    finally:
        sandbox.limits = PATIENT


def test_limits_are_those_that_were_asked_for(sandbox):
    source = """
import resource
for name in ("CPU", "AS", "FSIZE", "NOFILE", "NPROC", "CORE"):
    print(*resource.getrlimit(getattr(resource, "RLIMIT_" + name)))
"""
    sandbox.limits = SandboxLimits(cpu_s=2.5, memory_mb=300, file_mb=3, open_files=17, processes=5)
    try:
        found = printed(sandbox, source).split("\n")
    finally:
        sandbox.limits = PATIENT
    if "user" not in sandbox.measures():
        found[4] = "5 5"  # those of the sandbox, or of others, are counted too: see the next test
    assert found[:6] == ["3 3", "314572800 314572800", "3145728 3145728", "17 17", "5 5", "0 0"]


def test_so_many_processes_and_no_more(sandbox):
    if "processes" not in sandbox.measures():
        pytest.skip("they are counted together with other processes, or not at all")
    source = """
import os, time
started = 1
try:
    while os.fork(): started += 1
    time.sleep(999)
except OSError: print(started)
"""
    sandbox.limits = dataclasses.replace(PATIENT, processes=7)
    try:
        assert printed(sandbox, source) == "7\n"
    finally:
        sandbox.limits = PATIENT


@pytest.mark.parametrize(("field", "value"), [("wall_s", 0), ("memory_mb", 1), ("processes", 0), ("output_kb", -1)])
def test_a_limit_that_leaves_nothing_is_refused(field, value):
    with pytest.raises(InputError, match=f"SandboxLimits.{field}.*at least"):
        SandboxLimits(**{field: value})


# What is left.


def test_a_daemon_is_gone_with_its_test(each):
    """Where processes are found by user, or by their parents, as well as where a namespace ends them."""
    source = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(999)\n    os._exit(0)"
    )
    [outcome] = each.run(source, [""])
    assert outcome.ending == "ended"
    assert psutil.Process(each._server.pid).children(recursive=True) == []


def test_close_leaves_nothing(each):
    with Sandbox(PATIENT, measures=each.measures()) as sandbox:
        printed(sandbox, ECHO)
        server, scratch = sandbox._server, sandbox._scratch
    assert server is not None and server.returncode == 0
    assert not os.path.exists(scratch)
    sandbox.close()
    assert printed(sandbox, ECHO, "again") == "again"
    sandbox.close()


def test_a_lost_server_is_replaced(sandbox):
    printed(sandbox, ECHO)
    os.kill(sandbox._server.pid, signal.SIGKILL)
    assert printed(sandbox, ECHO, "again") == "again"


def test_threads_take_turns(sandbox):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        texts = [str(index) for index in range(12)]
        assert list(pool.map(lambda text: printed(sandbox, ECHO, text), texts)) == texts


@pytest.mark.parametrize(
    "measures", [MEASURES, pytest.param(("user", "landlock", "system_calls"), marks=pytest.mark.slow)]
)
def test_when_the_grader_is_killed_all_of_it_ends(tmp_path, measures):
    source = f"""
from isocompute_jax.tasks.sandbox import Sandbox
sandbox = Sandbox(measures={measures})
print(sandbox.measures() and sandbox._server.pid, flush=True)
sandbox.run("import time\\ntime.sleep(999)", [""])
"""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    tmp_path.chmod(0o755)
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, env=environment) as grader:
        assert grader.stdout is not None
        server = psutil.Process(int(grader.stdout.readline()))
        while not server.children(recursive=True):
            time.sleep(0.01)
        processes = [server, *server.children(recursive=True)]
        grader.kill()
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert alive == [] and list(tmp_path.iterdir()) == []


def test_a_sandbox_that_cannot_start_says_so(monkeypatch, capfd):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RunError, match=r"does not start: .*/bin/false"):
        Sandbox().run("", [""])
    assert capfd.readouterr().err == ""


# What it says about itself.


def test_what_is_said_to_be_in_force_is(sandbox):
    found = isolation(sandbox)
    source = """
import ctypes, os, socket
print(os.getpid(), os.getuid(), os.getcwd(), sorted(os.listdir("/")), os.path.exists("/proc/self"))
print([name for _, name in socket.if_nameindex()], dict(os.environ).keys())
"""
    first, second = printed(sandbox, source).splitlines()
    if found.processes:
        assert first.startswith("2 ")
    if found.user:
        assert first.split()[1] != str(os.getuid())
    if found.files:
        assert "False" in first and "'home'" not in first
    if found.network:
        assert second.startswith("['lo']")  # and it is down
    assert second.endswith("dict_keys(['HOME', 'TMPDIR', 'LANG'])")


def test_nothing_is_missing_without_a_sentence():
    with Sandbox(measures=()) as bare:
        found = isolation(bare)
    assert not (found.processes or found.network or found.files or found.user or found.landlock)
    starts = [sentence.split(":")[0] for sentence in found.missing]
    assert starts[:4] == ["Processes", "Network", "Files", "Shared memory"]
    assert "that the user who started this may read" in found.missing[2]
    assert str(found).startswith("The sandbox for code isolates: limits alone. Processes: ")


def test_what_a_kernel_refuses_is_missing(sandbox):
    """The sentences are those of the measures that could not be had, whatever this kernel grants."""
    found = isolation(sandbox)
    held = {"Processes": found.processes, "Network": found.network, "Files": found.files}
    assert {sentence.split(":")[0] for sentence in found.missing} & held.keys() == {n for n in held if not held[n]}


def test_a_library_that_programs_cannot_read_is_said():
    if os.geteuid() != 0:
        pytest.skip("programs keep the user, who can read what this process reads")
    with Sandbox(measures=("user",)) as sandbox:
        found = isolation(sandbox)
        [outcome] = sandbox.run("import wave, datetime", [""])
    assert (outcome.ending == "ended") == found.library
    assert any(sentence.startswith("Library") for sentence in found.missing) != found.library
    assert tempfile.gettempdir() not in str(found)
