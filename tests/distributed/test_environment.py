"""Which process of how many: one golden for each kind of cluster, and a list of hosts spelt out by brute force."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute_jax.distributed.environment import PORT, Cluster, Place, find_place, first_host
from isocompute_jax.records.errors import InputError

# As `srun env` prints them in a step of two tasks on two hosts, JobSet's pods and GKE's TPU pods likewise.
STEP = {
    "SLURM_JOB_ID": "200505", "SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gnode[010,20]", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0", "SLURM_NTASKS": "8",
}  # fmt: skip
STEP_PLACE = Place(1, 2, f"gnode010:{20000 + 2 * ((37 * 200505 + 1) % 6000)}", "slurm")
BATCH_SCRIPT = {
    "SLURM_JOB_ID": "200505",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_JOB_NODELIST": "gnode[10,20]",
}
JOBSET = {"JOBSET_COORDINATOR": "run-learners-0-0.run", "JOBSET_PROCESS_COUNT": "2", "JOB_COMPLETION_INDEX": "1"}
JOBSET_PLACE = Place(1, 2, f"run-learners-0-0.run:{PORT}", "jobset")
TPU = {"TPU_WORKER_HOSTNAMES": "t-0.svc,t-1.svc,t-2.svc,t-3.svc", "TPU_WORKER_ID": "3"}
TPU_PLACE = Place(3, 4, f"t-0.svc:{PORT}", "tpu pod")
ALONE = Place(0, 1, "", "alone")


def find(environ=(), *, cluster: Cluster = "auto", coordinator=None, count=None, index=None) -> Place:
    return find_place(
        cluster=cluster,
        coordinator=coordinator,
        process_count=count,
        process_index=index,
        environ=dict(environ),
    )


@pytest.mark.parametrize(
    ("environ", "cluster", "place"),
    [
        ({}, "auto", ALONE), (STEP, "auto", STEP_PLACE), (STEP, "slurm", STEP_PLACE),
        (STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, "auto", ALONE),
        (STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, "slurm", Place(0, 1, "", "slurm")),
        (BATCH_SCRIPT, "auto", ALONE), (JOBSET, "auto", JOBSET_PLACE), (JOBSET, "jobset", JOBSET_PLACE),
        (TPU, "auto", TPU_PLACE), (TPU, "tpu", TPU_PLACE),
        ({"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}, "auto", Place(0, 1, "", "tpu pod")),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, "auto", Place(0, 1, "", "tpu pod")),
        (STEP | JOBSET | TPU, "auto", STEP_PLACE), (JOBSET | TPU, "auto", JOBSET_PLACE),
        (STEP | JOBSET | TPU, "tpu", TPU_PLACE), (STEP | JOBSET | TPU, "none", ALONE),
    ],
)  # fmt: skip
def test_what_each_cluster_says(environ, cluster, place):
    assert find(environ, cluster=cluster) == place


@pytest.mark.parametrize("coordinator", ["10.0.0.2:29000", "learner-0.a_b.svc:65534", "[fe80::1]:1"])
def test_flags_come_before_every_cluster(coordinator):
    place = find(STEP | JOBSET | TPU, coordinator=coordinator, count=3, index=2)
    assert place == Place(2, 3, coordinator, "flags")
    assert find(coordinator=coordinator, count=1, index=0) == Place(0, 1, "", "flags")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coordinator": "a:1"}, "--coordinator without --process_count and --process_index"),
        ({"count": 2, "index": 0}, "--process_count and --process_index without --coordinator"),
        ({"index": 0}, "--process_index without --coordinator and --process_count"),
        ({"coordinator": "a:1", "count": 2, "index": 2}, "--process_index=2 is outside of 0..1"),
        ({"coordinator": "a:1", "count": 2, "index": -1}, "--process_index=-1 is outside of 0..1"),
        ({"coordinator": "a:1", "count": 0, "index": 0}, "--process_count=0"),
        ({"coordinator": "a", "count": 2, "index": 0}, "--coordinator: 'a' is no host:port"),
        ({"coordinator": ":1", "count": 2, "index": 0}, "--coordinator: ':1' is no host:port"),
        ({"coordinator": "fe80::1:5", "count": 2, "index": 0}, "is no host:port"),
        ({"coordinator": "grpc://a:5", "count": 2, "index": 0}, "is no host:port"),
        ({"coordinator": "a:65535", "count": 2, "index": 0}, "port 65535 is not in 1..65534"),
        ({"coordinator": "a:0", "count": 2, "index": 0}, "port 0 is not in 1..65534"),
        ({"coordinator": "a:1", "cluster": "slurm"}, "--cluster=slurm goes without --coordinator"),
        ({"coordinator": "a:1", "count": 2, "index": 0, "cluster": "none"}, "--cluster=none goes without"),
        ({"cluster": "slurm"}, "SLURM_STEP_NUM_TASKS is not set: --cluster=slurm holds inside of a step"),
        ({"cluster": "slurm", "environ": BATCH_SCRIPT}, "SLURM_STEP_NUM_TASKS is not set"),
        ({"environ": {**STEP, "SLURM_PROCID": "2"}}, "SLURM_PROCID=2 is outside of 0..1, for SLURM_STEP_NUM_TASKS"),
        ({"environ": {**STEP, "SLURM_STEP_NUM_TASKS": "two"}}, "SLURM_STEP_NUM_TASKS='two' is no number"),
        ({"environ": {**STEP, "SLURM_STEP_NODELIST": "a[1"}}, "SLURM_STEP_NODELIST='a[1' is no list of hosts"),
        ({"environ": {**STEP, "SLURM_STEP_NODELIST": ""}}, "SLURM_STEP_NODELIST is not set"),
        ({"cluster": "jobset"}, "JOBSET_PROCESS_COUNT is not set"),
        ({"environ": {"JOBSET_PROCESS_COUNT": "2"}}, "JOB_COMPLETION_INDEX is not set"),
        ({"environ": {**JOBSET, "JOB_COMPLETION_INDEX": "2"}}, "JOB_COMPLETION_INDEX=2 is outside of 0..1"),
        ({"environ": {**JOBSET, "JOBSET_COORDINATOR": ""}}, "JOBSET_COORDINATOR is not set"),
        ({"cluster": "tpu"}, "TPU_WORKER_HOSTNAMES is not set: GKE sets it"),
        ({"environ": {"TPU_WORKER_HOSTNAMES": "a,b"}}, "TPU_WORKER_ID is not set"),
        (
            {"environ": {"TPU_WORKER_HOSTNAMES": "a:8476,b:8476", "TPU_WORKER_ID": "0"}},
            "TPU_WORKER_HOSTNAMES: 'a:8476:28470'",
        ),
        ({"environ": {**TPU, "MEGASCALE_NUM_SLICES": "2"}}, "MEGASCALE_NUM_SLICES=2: a learner takes one slice"),
    ],
)
def test_what_makes_no_sense_is_named(options, message):
    with pytest.raises(InputError) as error:
        find(**options)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("n1", "n1"), ("n1,n2", "n1"), ("gpu[003-004,7]", "gpu003"), ("gpu[3,7-9],a1", "gpu3"),
        ("a-[1,3]-x", "a-1-x"), ("rack[0-1]node[08-15]", "rack0node08"),
        ("login.example.org,gpu[1-2]", "login.example.org"),
    ],
)  # fmt: skip
def test_the_first_host_of_a_list(nodelist, host):
    assert first_host(nodelist) == host


@pytest.mark.parametrize("nodelist", ["", ",", "a,", "a[]", "a[1-]", "a]1", "a[1,]", "a[[1]]", "a b"])
def test_what_is_no_list_is_refused(nodelist):
    with pytest.raises(InputError, match="no list of hosts"):
        first_host(nodelist)


LETTERS = st.text("abz.-_", min_size=1, max_size=3)
RANGES = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 3), st.integers(1, 3), st.booleans()), min_size=1, max_size=3
)
NAMES = st.tuples(LETTERS, st.lists(st.tuples(RANGES, st.sampled_from(["", "-x", "n"])), max_size=2))


def spelt(name) -> tuple[str, list[str]]:
    """A name as SLURM would compress it, and every host that it stands for, in order."""
    text, parts = name[0], [[name[0]]]
    for ranges, after in name[1]:
        written, numbers = [], []
        for start, more, width, alone in ranges:
            end = start if alone else start + more
            written.append(f"{start:0{width}}" if alone else f"{start:0{width}}-{end:0{width}}")
            numbers += [f"{number:0{width}}" for number in range(start, end + 1)]
        text += f"[{','.join(written)}]{after}"
        parts += [numbers, [after]]
    return text, ["".join(chosen) for chosen in itertools.product(*parts)]


@given(st.lists(NAMES, min_size=1))
def test_the_first_host_is_the_first_of_all(names):
    texts, hosts = zip(*map(spelt, names), strict=True)
    assert first_host(",".join(texts)) == hosts[0][0]


@given(st.integers(0, 2**31), st.integers(0, 2**32 - 1))
def test_two_ports_are_left_whatever_the_numbers_of_job_and_step(job, step):
    place = find(STEP | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})
    assert 20000 <= int(place.coordinator.rpartition(":")[2]) < 32767
