"""What is set before JAX starts."""

import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

from tlite.distributed import devices
from tlite.distributed.devices import cache_folder, lack_of_platform, num_cores, prune
from tlite.errors import UserError

CODE = """
import sys
from tlite.distributed.devices import prepare_devices
if sys.argv[1] == "before":
    import jax
prepare_devices()
assert ("jax" in sys.modules) == (sys.argv[1] == "before")
import jax
print(jax.device_count(), jax.config.jax_compilation_cache_dir)
"""


OWN = {"JAX_NUM_CPU_DEVICES": "3", "JAX_COMPILATION_CACHE_DIR": "mine"}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("own", [{}, OWN], ids=["", "set"])
def test_every_core_is_a_device_whenever_jax_is_imported_unless_it_is_set(tmp_path, when, own):
    environment = {k: v for k, v in os.environ.items() if "JAX" not in k and "XLA" not in k}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"} | own
    command = [sys.executable, "-c", CODE, when]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    expected = "3 mine\n" if own else f"{num_cores()} {tmp_path / 'tlite' / 'compiled'}\n"
    assert done.stdout == expected, done.stderr


@pytest.mark.parametrize("plugin", ["xla_cuda12", "xla_rocm7", "other"])
def test_deterministic_operations_are_asked_for_once_with_a_gpu(monkeypatch, plugin):
    plugins = lambda group: [SimpleNamespace(name=plugin)]  # noqa: E731
    monkeypatch.setattr(devices.importlib.metadata, "entry_points", plugins)
    monkeypatch.setenv("XLA_FLAGS", "--mine")
    for _ in range(2):
        devices.use_deterministic_operations()
    asked = " --xla_gpu_deterministic_ops=true" * (plugin != "other")
    assert os.environ["XLA_FLAGS"] == f"--mine{asked}"


def test_without_a_home_it_is_asked_for(monkeypatch):
    def homeless(_):
        raise RuntimeError

    monkeypatch.setattr("pathlib.Path.home", classmethod(homeless))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(UserError, match="set HOME, or XDG_CACHE_HOME"):
        cache_folder()


def test_a_platform_that_jax_has_not_is_told(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "nonsense")
    assert lack_of_platform() is None  # started already

    def fail():
        raise RuntimeError("Unknown backend nonsense")

    monkeypatch.setattr(jax, "devices", fail)
    assert "Unknown backend nonsense" in lack_of_platform()
    monkeypatch.delenv("JAX_PLATFORMS")
    assert lack_of_platform() is None


def test_the_cache_of_compiled_programs_is_bounded(tmp_path):
    for age, name in enumerate(["newest", "middle", "oldest"]):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    prune(tmp_path, 250)
    assert {path.name for path in tmp_path.iterdir()} == {"newest", "middle"}
    prune(tmp_path / "nowhere", 0)
