"""JAX's settings: CPU cores as devices, the compilation cache, deterministic operations."""

import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

from tlite.distributed import devices
from tlite.distributed.devices import cache_folder, num_cores, platform_error_message, prune_cache
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
USER_SETTINGS = {"JAX_NUM_CPU_DEVICES": "3", "JAX_COMPILATION_CACHE_DIR": "mine"}
FLAG = {"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}
FLAG |= {"JAX_COMPILATION_CACHE_DIR": "mine"}


@pytest.mark.parametrize(
    ("jax_import", "settings"),
    [("before", {}), ("after", {}), ("before", USER_SETTINGS), ("after", FLAG)],
)
def test_every_core_is_a_device_unless_set(tmp_path, jax_import, settings):
    environment = {k: v for k, v in os.environ.items() if "JAX" not in k and "XLA" not in k}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"} | settings
    command = [sys.executable, "-c", CODE, jax_import]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    default = f"{num_cores()} {tmp_path / 'tlite' / 'compiled'}\n"
    assert process.stdout == ("3 mine\n" if settings else default), process.stderr


@pytest.mark.parametrize("plugin", ["xla_cuda12", "xla_rocm7", "other"])
def test_deterministic_operations_are_set_once_with_a_gpu(monkeypatch, plugin):
    plugins = lambda group: [SimpleNamespace(name=plugin)]  # noqa: E731
    monkeypatch.setattr(devices.importlib.metadata, "entry_points", plugins)
    monkeypatch.setenv("XLA_FLAGS", "--mine")
    for _ in range(2):
        devices.use_deterministic_operations()
    flag = " --xla_gpu_deterministic_ops=true" * (plugin != "other")
    assert os.environ["XLA_FLAGS"] == f"--mine{flag}"


def test_a_missing_home_folder_is_a_user_error(monkeypatch):
    def no_home(_):
        raise RuntimeError

    monkeypatch.setattr("pathlib.Path.home", classmethod(no_home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(UserError, match="set HOME, or XDG_CACHE_HOME"):
        cache_folder()


def test_an_unknown_platform_is_named(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "nonsense")
    assert platform_error_message() is None  # JAX has started

    def fail():
        raise RuntimeError("Unknown backend nonsense")

    monkeypatch.setattr(jax, "devices", fail)
    assert "Unknown backend nonsense" in platform_error_message()
    monkeypatch.delenv("JAX_PLATFORMS")
    assert platform_error_message() is None


def test_the_compilation_cache_is_bounded(tmp_path):
    for age, name in enumerate(["newest", "middle", "oldest"]):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    prune_cache(tmp_path, 250)
    assert {path.name for path in tmp_path.iterdir()} == {"newest", "middle"}
    prune_cache(tmp_path / "nowhere", 0)
