"""Which of several processes this one is, by options and by what a cluster sets; how they agree.

Real ones are in `system/`.
"""

import json
import os
import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlite import distributed
from tlite.distributed import (
    ProcessGroup,
    all_gather,
    detect_cluster,
    initialize,
    local_devices,
    validate_process_args,
)
from tlite.errors import UserError

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

    def call(names):
        for name, value in names.items():
            monkeypatch.setenv(name, value)
        return detect_cluster()

    return call


MISTAKES = {
    ("host:1", None, None): "needs --coordinator HOST:PORT, --processes N and --process I",
    ("host", 2, 0): "--coordinator must be HOST:PORT, not 'host'",
    (":1", 2, 0): "HOST:PORT",
    ("host:65536", 2, 0): "HOST:PORT",
    ("host:x", 2, 0): "HOST:PORT",
    ("host:1", 0, 0): "--process must be from 0 to --processes 0 - 1, not 0",
    ("host:1", 2, 2): "--process must be from 0 to --processes 2 - 1, not 2",
}


@pytest.mark.parametrize("given", MISTAKES, ids=str)
def test_options_that_do_not_fit_are_told(given):
    with pytest.raises(UserError, match=MISTAKES[given]):
        initialize(*given)


def test_a_port_that_is_taken_is_told():
    with socket.create_server(("", 0)) as taken:
        place = f"localhost:{taken.getsockname()[1]}"
        with pytest.raises(UserError, match=f"address {place}: address already in use"):
            validate_process_args(place, 2, 0)
        validate_process_args(place, 2, 1)


JOBS = [
    (SLURM, "slurm"),
    (MPI, "ompi"),
    ({"JOB_COMPLETION_INDEX": "0"}, None),  # a pod of a sweep
    ({}, None),
    ({name: SLURM[name] for name in ("SLURM_JOB_ID", "SLURM_NTASKS")}, None),  # a shell in a job
    (SLURM | {"SLURM_NTASKS": "1"}, None),
    (MPI | {"OMPI_COMM_WORLD_SIZE": "1"}, None),
]


@pytest.mark.parametrize(("names", "cluster"), JOBS, ids=str)
def test_clusters_are_detected_by_jax(within, names, cluster):
    assert within(names) == cluster


TPU_POD = """
import glob, sys
real = glob.glob
glob.glob = lambda path, **options: real(path.replace("/sys/bus/pci", sys.argv[1]), **options)
from tlite.distributed import detect_cluster
print(detect_cluster())
"""


@pytest.mark.parametrize(
    ("vendor", "device", "platforms", "cluster"),
    [
        ("0x1ae0", "0x0042", "", None),  # Google's network card, in every virtual machine of GCE
        ("0x1ae0", "0x0063", "", "gketpu"),  # v5e
        ("0x1ae0", "0x0063", "tpu,cpu", "gketpu"),
        ("0x1ae0", "0x0063", "cpu", None),
        ("0x10de", "0x0063", "", None),
    ],
)
def test_a_tpu_is_known_by_vendor_and_device(tmp_path, vendor, device, platforms, cluster):
    card = tmp_path / "devices" / "0000:00:04.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text(f"{vendor}\n")
    (card / "device").write_text(f"{device}\n")
    names = {"TPU_WORKER_HOSTNAMES": "a,b", "MEGASCALE_NUM_SLICES": "1"}
    names |= {"TPU_LIBRARY_PATH": str(card / "device")}
    environment = os.environ | names | {"JAX_PLATFORMS": platforms}
    command = [sys.executable, "-W", "ignore", "-c", TPU_POD, str(tmp_path)]
    found = subprocess.check_output(command, env=environment, text=True, timeout=60)
    assert found == f"{cluster}\n"


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


def test_one_alone_needs_no_jax():
    code = (
        "import sys; from tlite import distributed as p\n"
        "p.initialize(detect=False); p.initialize('localhost:1', 1, 0)\n"
        "assert (p.process_count(), p.is_process0()) == (1, True)\n"
        "assert p.broadcast_from_process0(lambda: {'a': (1,)}) == {'a': [1]}\n"
        "p.shutdown(); sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    )
    names = ("SLURM", "OMPI", "JAX", "TPU")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(names)}
    assert subprocess.run([sys.executable, "-c", code], env=clean, timeout=60).returncode == 0


class Service:
    """The coordination service's values, as a client sees them."""

    def __init__(self):
        self.values = {}

    def key_value_set(self, key, value):
        self.values[key] = value

    def blocking_key_value_get(self, key, _):
        return self.values[key]

    def key_value_delete(self, key):
        self.values = {k: v for k, v in self.values.items() if not k.startswith(key + "/")}


@given(st.lists(st.tuples(st.text(), st.integers()), max_size=4))
def test_what_is_gathered_arrives_whole_and_does_not_stay(contents):
    with pytest.MonkeyPatch.context() as patch:
        service = Service()
        first, second = (ProcessGroup(service, 2, number) for number in (0, 1))
        for round, (one, other) in enumerate(contents):
            service.values[f"tlite/{round}/1"] = json.dumps(["tag", other])
            for group, value in ((first, one), (second, other)):
                patch.setattr(distributed, "_group", group)
                assert all_gather("tag", value) == [one, other]
        assert len(service.values) <= 3  # those of the last exchange


def test_a_skipped_exchange_is_an_error_in_all_processes(monkeypatch):
    service = Service()
    service.values["tlite/0/1"] = json.dumps(["losses", 2.0])
    for group, tag in (
        (ProcessGroup(service, 2, 0), "signals"),
        (ProcessGroup(service, 2, 1), "losses"),
    ):
        monkeypatch.setattr(distributed, "_group", group)
        with pytest.raises(RuntimeError, match="signals, losses"):
            all_gather(tag, 0)


@pytest.mark.parametrize("seconds", [0, 2**31, 10**20])
def test_a_heartbeat_that_jax_cannot_take_is_refused(seconds):
    with pytest.raises(UserError, match=f"not {seconds}"):
        initialize(detect=False, heartbeat=seconds)
