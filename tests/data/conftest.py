"""What tests of data share."""

import pytest


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """Files and the copies that `datasets` makes of them lie in a folder of the test's own."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TLITE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
