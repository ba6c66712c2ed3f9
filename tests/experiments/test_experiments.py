import json
import sys

import pytest

from tests.helpers.lines import read_line
from tlite.config import from_dict, to_dict
from tlite.experiment import Experiment
from tlite.runs.experiment_files import find_experiments, load_experiment
from tlite.runs.run import build


@pytest.mark.parametrize("name", find_experiments())
def test_every_experiment_survives_json(name):
    experiment = load_experiment(name)
    assert experiment.name == name
    content = json.loads(json.dumps(to_dict(experiment)))
    assert from_dict(Experiment, content) == experiment


@pytest.mark.parametrize("name", ["reviews", "reviews_binary", "sst2", "multi30k"])
def test_data_of_experiments_do_not_depend_on_existing_folders(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TLITE_DATA", str(tmp_path))
    before = load_experiment(name).data
    for folder in ("reviews", "sst2", "multi30k"):
        (tmp_path / folder).mkdir()
    for module in [module for module in sys.modules if module.startswith("experiments.")]:
        monkeypatch.delitem(sys.modules, module)
    assert load_experiment(name).data == before


OWN = {
    "my_labels": "review,stars\n" + "".join(f"word {i} a {i % 2}b,{i % 2}\n" for i in range(60)),
    "my_pairs": "en,de\n" + "".join(f"number {i},Nummer {i}\n" for i in range(60)),
    "my_text": "id,text\n" + "".join(f"{i},number {i} is a word\n" for i in range(99)),
}


@pytest.mark.parametrize("name", OWN)
def test_a_user_table_fits_the_experiments_for_tables(name, tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.csv").write_text(OWN[name])
    arguments = ["--path", "own.csv", "--precision", "float32"]
    if name != "my_text":
        arguments += (
            ["--num-subwords", "60"] if name == "my_pairs" else ["--validation-fraction", "0.2"]
        )
    (experiment,) = read_line(arguments, load_experiment(name))[0].values()
    resolved = experiment.resolve()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")  # absolute paths: it can be read from anywhere
    built = build(resolved)
    assert len(getattr(built.train, "tokens", built.train))
    assert len(getattr(built.validation, "tokens", built.validation))
    assert built.experiment.model.vocabulary_size == len(built.tokenizer) > 10
