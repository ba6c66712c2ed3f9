"""Options and detection of several processes, and their exchanges (real ones are in `system/`)."""

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
def detect(monkeypatch):
    """Return a function that detects the cluster of an environment."""
    for name in (*SLURM, *MPI, "JOB_COMPLETION_INDEX", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)

    def call(names):
        for name, value in names.items():
            monkeypatch.setenv(name, value)
        return detect_cluster()

    return call


INVALID = {
    ("host:1", None, None): "needs --coordinator HOST:PORT, --processes N and --process I",
    ("host", 2, 0): "--coordinator must be HOST:PORT, not 'host'",
    (":1", 2, 0): "HOST:PORT",
    ("host:65536", 2, 0): "HOST:PORT",
    ("host:x", 2, 0): "HOST:PORT",
    ("host:1", 0, 0): "--process must be from 0 to --processes 0 - 1, not 0",
    ("host:1", 2, 2): "--process must be from 0 to --processes 2 - 1, not 2",
}


@pytest.mark.parametrize("options", INVALID, ids=str)
def test_inconsistent_options_are_errors(options):
    with pytest.raises(UserError, match=INVALID[options]):
        initialize(*options)


def test_a_port_in_use_is_an_error_in_process_0():
    with socket.create_server(("", 0)) as server:
        address = f"localhost:{server.getsockname()[1]}"
        with pytest.raises(UserError, match=f"address {address}: address already in use"):
            validate_process_args(address, 2, 0)
        validate_process_args(address, 2, 1)


JOBS = [
    (SLURM, "slurm"),
    (MPI, "ompi"),
    ({"JOB_COMPLETION_INDEX": "0"}, None),  # a pod of a sweep
    ({}, None),
    ({name: SLURM[name] for name in ("SLURM_JOB_ID", "SLURM_NTASKS")}, None),  # a shell in a job
    (SLURM | {"SLURM_NTASKS": "1"}, None),
    (SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, None),
    (MPI | {"OMPI_COMM_WORLD_SIZE": "1"}, None),
]


@pytest.mark.parametrize(("names", "cluster"), JOBS, ids=str)
def test_clusters_are_detected_by_jax(detect, names, cluster):
    assert detect(names) == cluster


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
def test_a_tpu_is_recognized_by_vendor_and_device(tmp_path, vendor, device, platforms, cluster):
    card = tmp_path / "devices" / "0000:00:04.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text(f"{vendor}\n")
    (card / "device").write_text(f"{device}\n")
    names = {"TPU_WORKER_HOSTNAMES": "a,b", "MEGASCALE_NUM_SLICES": "1"}
    names |= {"TPU_LIBRARY_PATH": str(card / "device")}
    environment = os.environ | names | {"JAX_PLATFORMS": platforms}
    command = [sys.executable, "-W", "ignore", "-c", TPU_POD, str(tmp_path)]
    output = subprocess.check_output(command, env=environment, text=True, timeout=60)
    assert output == f"{cluster}\n"


def test_open_mpi_without_a_coordinator_is_an_error(detect):
    names = {name: MPI[name] for name in ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")}
    with pytest.raises(UserError, match="--processes \\$OMPI_COMM_WORLD_SIZE"):
        detect(names)


DEVICES = [
    (SLURM, None),
    (MPI, None),
    (SLURM | {"CUDA_VISIBLE_DEVICES": "0,1"}, None),
    (SLURM | {"CUDA_VISIBLE_DEVICES": "3"}, []),
    (SLURM | {"CUDA_VISIBLE_DEVICES": "MIG-5c6e"}, []),
    (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "1(x4)"}, []),
    (MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, []),
]


@pytest.mark.parametrize(("names", "expected"), DEVICES, ids=str)
def test_processes_of_one_machine_get_one_gpu_each(detect, names, expected):
    detect(names)
    assert local_devices() == expected


def test_a_single_process_imports_no_jax():
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


class FakeClient:
    """Client of a coordination service in this process."""

    def __init__(self):
        self.values = {}

    def key_value_set(self, key, value):
        self.values[key] = value

    def blocking_key_value_get(self, key, _):
        return self.values[key]

    def key_value_delete(self, key):
        self.values = {k: v for k, v in self.values.items() if not k.startswith(key + "/")}


@given(st.lists(st.tuples(st.text(), st.integers()), max_size=4))
def test_gathered_values_arrive_and_are_deleted(values):
    with pytest.MonkeyPatch.context() as patch:
        client = FakeClient()
        first, second = (ProcessGroup(client, 2, process) for process in (0, 1))
        for number, (one, other) in enumerate(values):
            client.values[f"tlite/{number}/1"] = json.dumps(["tag", other])
            for group, value in ((first, one), (second, other)):
                patch.setattr(distributed, "_group", group)
                assert all_gather("tag", value) == [one, other]
        assert len(client.values) <= 3  # those of the last exchange


def test_a_skipped_exchange_is_an_error_in_all_processes(monkeypatch):
    client = FakeClient()
    client.values["tlite/0/1"] = json.dumps(["losses", 2.0])
    for group, tag in (
        (ProcessGroup(client, 2, 0), "signals"),
        (ProcessGroup(client, 2, 1), "losses"),
    ):
        monkeypatch.setattr(distributed, "_group", group)
        with pytest.raises(RuntimeError, match="signals, losses"):
            all_gather(tag, 0)


@pytest.mark.parametrize("seconds", [0, 2**31, 10**20])
def test_an_invalid_heartbeat_is_an_error(seconds):
    with pytest.raises(UserError, match=f"--heartbeat must be .* not {seconds}"):
        initialize(detect=False, heartbeat=seconds)
