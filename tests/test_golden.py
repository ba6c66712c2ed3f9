"""What version 0.2.0 wrote is opened, and gives the numbers and texts that it gave then.

The cases, which `tests/helpers/golden.py` describes, were made on the tree of 23 November 2026.
Losses of float32 agree to 1e-6 of themselves, whatever XLA makes of the program: the kept runs were
trained with its optimisations on two devices, and the tests are not (measured: 8e-7 at most, also
where XLA may use AVX2 or SSE4.2 alone).
"""

import dataclasses
import sys

import jax
import numpy as np
import pytest

from tests.helpers import golden
from tlite.cli.experiment_files import find_experiments, load_variants
from tlite.config import from_dict
from tlite.experiment import Experiment
from tlite.models import make_model
from tlite.models.parameters import by_name
from tlite.user_code import name_files

EXPECTED = golden.read("expected.json")
EXPERIMENTS = golden.read("experiments.json")
CLOSE = 1e-6  # of float32 losses, relative
MIXED = 1e-3  # of those in mixed precision

each_case = pytest.mark.parametrize("name", golden.CASES)


@pytest.fixture(autouse=True)
def own_functions(tmp_path):
    """The file that the user would name."""
    name_files([golden.own_file(tmp_path)])


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The kept run of a case, opened once; what is asked of it leaves it as it is."""
    folder = tmp_path_factory.mktemp("kept")
    return {name: golden.unpack(name, folder) for name in golden.CASES}


def assert_losses(found, expected, tolerance=CLOSE):
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=0)


@pytest.mark.parametrize("name", [n for n, case in golden.CASES.items() if case.how != "killed"])
def test_a_kept_run_writes_the_same(name, kept):
    found = [golden.said(line, run=kept[name]) for line in golden.CASES[name].ask]
    expected = EXPECTED[name]["said"]
    if name == "translator":  # of n-best lists each line names its source since
        named = [f"{line}\ttwo red birds" for line in expected[1].splitlines()]
        expected = [expected[0], "\n".join(named)]
    assert found == expected


@each_case
def test_a_kept_run_is_evaluated_to_the_same_digits_and_goes_on_to_the_same_losses(name, tmp_path):
    case, folder = golden.CASES[name], golden.unpack(name, tmp_path)
    means, losses = golden.gone_on(golden.run_of(folder, case.how))
    assert means.keys() == EXPECTED[name]["evaluated"].keys()
    for measure, values in means.items():
        expected = EXPECTED[name]["evaluated"][measure]
        np.testing.assert_allclose(values, expected, rtol=CLOSE, err_msg=measure)
    assert len(losses) == golden.MORE
    assert_losses(losses, EXPECTED[name]["gone on"])
    if case.how == "killed":
        assert [golden.said(line, run=folder) for line in case.ask] == EXPECTED[name]["said"]


@pytest.mark.parametrize(
    ("name", "devices"), [(n, d) for n, case in golden.CASES.items() for d in case.devices]
)
def test_a_new_run_with_a_kept_config_has_the_same_batches_and_losses(
    name, devices, kept, tmp_path
):
    first, losses = golden.course(kept[name], tmp_path / "new", devices)
    assert first == EXPECTED[name]["first batch"]
    assert len(losses) == golden.COURSE
    assert_losses(losses, EXPECTED[name]["course"])
    if before := EXPECTED[name].get("before"):
        assert_losses(golden.losses_of(tmp_path / "new" / "pretraining"), before)


def test_in_mixed_precision_a_new_run_has_nearly_the_same_losses(kept, tmp_path):
    _, losses = golden.course(kept["characters"], tmp_path / "new", 1, precision="mixed")
    assert_losses(losses, EXPECTED["characters"]["mixed"], MIXED)


GONE = [name for name in EXPERIMENTS if golden.has_gone(EXPERIMENTS[name]["written"]["model"])]
each_experiment = pytest.mark.parametrize("name", [n for n in EXPERIMENTS if n not in GONE])


def test_what_was_written_of_a_part_that_is_gone_is_told_in_a_sentence():
    assert GONE == ["record_shakespeare", "record_tiny_shakespeare", "record_tiny_shakespeare_long"]
    for name in GONE:
        for config in (EXPERIMENTS[name]["written"], EXPERIMENTS[name]["config"]):
            with pytest.raises(ValueError, match=golden.SAID_OF_GONE):
                from_dict(Experiment, config)


@each_experiment
def test_the_config_of_an_experiment_is_read_into_the_same_model(name):
    experiment = from_dict(Experiment, EXPERIMENTS[name]["config"])
    shapes = jax.eval_shape(lambda: make_model(experiment.model, rng=jax.random.key(0)))
    found = {name: list(leaf.shape) for name, leaf in by_name(shapes).items()}
    assert found == EXPERIMENTS[name]["parameters"]


@pytest.fixture
def real_data(data_folder, monkeypatch):
    """Experiments that look for real data when they are imported find it."""
    monkeypatch.setenv("TLITE_DATA", str(data_folder))
    for module in [name for name in sys.modules if name.startswith("experiments.")]:
        monkeypatch.delitem(sys.modules, module)


@each_experiment
def test_an_experiment_is_what_it_was(name, real_data):
    """No default of a config has changed unseen: the file gives what was written of it then."""
    experiment, variants = load_variants(name)
    written = from_dict(Experiment, EXPERIMENTS[name]["written"])
    assert golden.settled(written) == golden.settled(experiment)
    assert len(variants) == EXPERIMENTS[name]["variants"]


@pytest.mark.parametrize("name", GONE)
def test_the_records_have_the_parameters_that_they_had_without_value_residuals(name, real_data):
    experiment, kept = load_variants(name)[0], EXPERIMENTS[name]["parameters"]
    model = dataclasses.replace(experiment.model, vocabulary_size=kept["embedding.table"][0])
    shapes = jax.eval_shape(lambda: make_model(model, rng=jax.random.key(0)))
    found = {name: list(leaf.shape) for name, leaf in by_name(shapes).items()}
    assert found == golden.convolved(kept)


def test_every_experiment_of_then_is_there():
    assert EXPERIMENTS.keys() <= find_experiments().keys()


def test_noise_and_orders_are_the_same_numbers():
    expected = golden.read("randomness.json")
    found = golden.randomness()
    assert found.keys() == expected.keys()
    for name, numbers in expected.items():
        np.testing.assert_array_equal(found[name], np.asarray(numbers), err_msg=name)
