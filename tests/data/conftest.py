"""What tests of data share."""

import pytest


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """Run the test in a folder of its own, also for the copies that `datasets` makes."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TLITE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
