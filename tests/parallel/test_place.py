"""Which of several processes this one is: by options, and by what a cluster sets."""

import socket

import pytest

from tlite.errors import UserError
from tlite.parallel import processes
from tlite.parallel.processes import Place, check_address, given_place, in_a_job, local_devices

SLURM = {
    "SLURM_JOB_ID": "71",
    "SLURM_STEP_NODELIST": "node[03-04]",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}
MPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}


@pytest.fixture
def within(monkeypatch):
    """Sets an environment that says nothing else of clusters."""
    for name in (*SLURM, *MPI, "JOB_COMPLETION_INDEX", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(processes, "has_tpu", lambda: False)

    def call(names):
        for name, value in names.items():
            monkeypatch.setenv(name, value)
        return in_a_job()

    return call


def test_the_options_name_a_place():
    assert given_place(None, None, None) is None
    assert given_place("host:1", 2, 1) == Place("host:1", 2, 1)
    assert given_place("[::1]:80", 1, 0) == Place("[::1]:80", 1, 0)


MISTAKES = {
    ("host:1", None, None): "--processes and --process must be given too",
    (None, 2, 0): "--coordinator must be given too: .*--coordinator HOST:PORT",
    ("host", 2, 0): "--coordinator must be HOST:PORT, not 'host'",
    (":1", 2, 0): "HOST:PORT",
    ("host:65536", 2, 0): "HOST:PORT",
    ("host:x", 2, 0): "HOST:PORT",
    ("host:1", 0, 0): "--processes must be at least 1, not 0",
    ("host:1", 2, 2): "--process must be from 0 to 1, not 2",
    ("host:1", 2, -1): "--process must be from 0 to 1, not -1",
}


@pytest.mark.parametrize("given", MISTAKES, ids=str)
def test_options_that_do_not_fit_are_told(given):
    with pytest.raises(UserError, match=MISTAKES[given]):
        given_place(*given)


@pytest.mark.parametrize("job", [SLURM, MPI, {"JOB_COMPLETION_INDEX": "0"}], ids=str)
def test_a_process_of_a_job_is_to_be_found_by_jax(within, job):
    assert within(job)


ALONE = [
    {},
    {name: SLURM[name] for name in ("SLURM_JOB_ID", "SLURM_NTASKS")},  # a shell in a job
    SLURM | {"SLURM_NTASKS": "1"},
    MPI | {"OMPI_COMM_WORLD_SIZE": "1"},
]


@pytest.mark.parametrize("names", ALONE, ids=str)
def test_who_has_no_others_is_alone(within, names):
    assert not within(names)


def test_an_open_mpi_that_tells_no_address_is_asked_for_it(within):
    names = {name: MPI[name] for name in ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")}
    with pytest.raises(UserError, match="--processes \\$OMPI_COMM_WORLD_SIZE"):
        within(names)


DEVICES = [
    (SLURM, None),
    (MPI, None),
    (SLURM | {"CUDA_VISIBLE_DEVICES": "0,1"}, None),
    (SLURM | {"CUDA_VISIBLE_DEVICES": "3"}, []),
    (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "1(x4)"}, []),
    (MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, []),
]


@pytest.mark.parametrize(("names", "expected"), DEVICES, ids=str)
def test_processes_of_one_machine_have_a_gpu_each(within, names, expected):
    within(names)
    assert local_devices() == expected


def test_a_port_that_is_taken_and_a_host_that_is_unknown_are_told():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"address localhost:{port}: address already in use"):
            check_address(Place(f"localhost:{port}", 2, 0))
    with pytest.raises(UserError, match="can't use the coordinator's address no host:1: "):
        check_address(Place("no host:1", 2, 1))
