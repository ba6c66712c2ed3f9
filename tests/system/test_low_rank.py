"""Fine-tuning of folders of transformers, of all arrays or by low-rank updates, and back again."""

import jax
import numpy as np
import pytest

import tlite
from tests.helpers import transformers_models as hf
from tests.helpers.runs import labelled
from tests.helpers.tokenizers import words
from tlite.cli import main
from tlite.data import TextFile
from tlite.experiment import ClassifierExperiment, GeneratorExperiment, Pretrained
from tlite.models import ClassifierConfig, GeneratorConfig
from tlite.models.low_rank import LowRank
from tlite.runs import Run
from tlite.training import TrainingConfig

pytestmark = pytest.mark.usefixtures("one_device")
LOW_RANK = LowRank("*.attention.*", rank=4)
TRAINING = TrainingConfig(steps=10, batch_size=8, learning_rate=1e-2, evaluate_every=10)
WORDS = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "[PAD]": hf.PAD}
WORDS |= {f"w{i}": i for i in range(50) if i not in WORDS.values()}
BERT = "bert ForSequenceClassification"


@pytest.fixture
def one_device(monkeypatch):
    first = jax.devices()[:1]
    for name in ("devices", "local_devices"):
        monkeypatch.setattr(jax, name, lambda *_, **__: first)


def fine_tuned(name, low_rank, tmp_path):
    """Return the folder of a transformers model, and a run that starts from it."""
    folder = hf.edited(name, tmp_path / "original")
    rows = [(f"w{i} w{i + 1} w{i + 2}", str(i % 3)) for i in range(3, 40)]
    marks = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]"}
    around = ("[CLS]", "[SEP]") if name == BERT else ()
    words(WORDS, around=around, **marks).save(folder, model_max_length=40)
    training = tlite.override(TRAINING, {"low_rank": low_rank})
    settings = {"init_from": Pretrained(str(folder)), "training": training}
    if name == BERT:
        labels = {str(i): f"class {i}" for i in range(3)}
        data = labelled(tmp_path / "texts.jsonl", rows, labels=labels)
        model = ClassifierConfig(context=40, dropout=0.0)
        experiment = ClassifierExperiment("tuned", data=data, model=model, **settings)
    else:
        text = " ".join(text for text, _ in rows)
        (tmp_path / "text.txt").write_text(" ".join([text] * 10))
        data, model = (
            TextFile(str(tmp_path / "text.txt"), 0.2),
            GeneratorConfig(context=64, dropout=0.0),
        )
        experiment = GeneratorExperiment("tuned", data, model, prompt="w3", **settings)
    return folder, Run.create(experiment, tmp_path / "run")


def base_logits(folder, parameters):
    """Return the logits of transformers' model with the new head of a run."""
    model = hf.in_transformers(folder).eval()
    if "head.bias" in parameters:
        with hf.torch.no_grad():
            model.classifier.weight.copy_(hf.torch.tensor(np.array(parameters["head.kernel"][0].T)))
            model.classifier.bias.copy_(hf.torch.tensor(np.array(parameters["head.bias"][0])))
    return hf.hf_logits(model)


@pytest.mark.parametrize(
    ("name", "low_rank"),
    [(BERT, LOW_RANK), ("gpt2", LOW_RANK), ("gpt2", None)],
    ids=["bert-low_rank", "gpt2-low_rank", "gpt2-full"],
)
def test_fine_tuning_goes_from_transformers_and_back(name, low_rank, tmp_path):
    folder, run = fine_tuned(name, low_rank, tmp_path)
    state = run.init_state()
    initial = {n: np.array(a) for n, a in state.parameters.items()}
    start, model = base_logits(folder, initial), run.trainer.models(state.parameters)[0]
    np.testing.assert_allclose(hf.tlite_logits(model), start, rtol=0, atol=1e-5)

    run.train(report=False)
    last = {n: np.array(a) for n, a in run.parameters("last")[0].items()}
    changed = {n for n, array in last.items() if not np.array_equal(array, initial[n])}
    updates = {n for n in last if ".lora_" in n}
    new = {"head.kernel", "head.bias"} if name == BERT else set()
    assert changed == (updates | new if low_rank else last.keys())
    for array, base in ((last[n], a) for n, a in run.init_params().items() if n not in changed):
        np.testing.assert_array_equal(array[0].view(np.uint32), np.asarray(base).view(np.uint32))

    exported = tmp_path / "exported"
    assert main(["export", str(run.dir.path), str(exported), "--checkpoint", "last"]) == 0
    ours = hf.tlite_logits(tlite.load(run, checkpoint="last")[0])
    np.testing.assert_allclose(hf.hf_logits(hf.in_transformers(exported)), ours, rtol=0, atol=1e-5)
    assert np.abs(ours - start).max() > 0.01
    if low_rank:
        stored, original = (hf.load_file(f / "model.safetensors") for f in (exported, folder))
        assert stored.keys() == original.keys()
        for key in (n for n in stored if not any(s in n for s in ("attn", "atten", "class"))):
            np.testing.assert_array_equal(stored[key], original[key], err_msg=key)
