"""Commands on Hugging Face folders: one exported from a run, and one that a run fine-tunes."""

import json
import math
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tlite as library
from tests.helpers.complaints import complaint
from tests.helpers.tokenizers import words
from tlite import functional as F
from tlite import models as M
from tlite.cli.commands import encode_prompt
from tlite.comparison.flops import parameter_sizes
from tlite.data import LabelledText
from tlite.decoding.translate import translate
from tlite.errors import UserError
from tlite.experiment import ClassifierExperiment, Pretrained
from tlite.models.low_rank import LowRank
from tlite.planning.plan import plan, planned_trainer, with_planned_sizes
from tlite.pretrained import PretrainedTokenizer, save_pretrained
from tlite.runs import Run
from tlite.runs.experiment_files import load_experiment
from tlite.runs.init_from import load_init
from tlite.runs.run import build
from tlite.runs.study import DatasetCache
from tlite.text import ByteTokenizer
from tlite.training import ParameterGroup

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.usefixtures("one_device")
GPT2 = (
    "--positions learned --norm layer --feed-forward.activation gelu --bias "
    "--attention.qkv-bias --head.tied --block pre_norm "
    "--context 16 --width 8 --num-heads 2 --num-blocks 1 --steps 4 --evaluate-every 2 "
    "--batch-size 4 --precision float32"
)
TEXTS = ["it was a good film", "the film was bad", "so good a good film", "bad bad film it was"]
MARKS = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"


def word_tokenizer() -> PretrainedTokenizer:
    """A word is a token; a text is [CLS] ... [SEP]."""
    vocabulary = dict.fromkeys([*MARKS, *(word for text in TEXTS for word in text.split())])
    ids = {token: index for index, token in enumerate(vocabulary)}
    roles = dict(zip(("pad", "unk", "cls", "sep", "mask"), MARKS, strict=True))
    return words(ids, "[UNK]", ("[CLS]", "[SEP]"), **roles)


@pytest.fixture(scope="module")
def trained(train):
    """A generator of GPT-2's architecture."""
    return train(f"demo {GPT2}")


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "gpt2"
    save_pretrained(folder, *library.load(trained.run))
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A masked language model of BERT's architecture, with random parameters."""
    config = M.MaskedConfig(
        vocabulary_size=len(word_tokenizer()), context=16, width=8, num_heads=2, num_blocks=1,
        feed_forward=M.FeedForward(activation="gelu_exact"), attention=M.Attention(qkv_bias=True),
        embedding=M.Embedding(norm=True, type_vocab_size=2), norm=M.Norm(epsilon=1e-12),
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("bert") / "bert"
    save_pretrained(folder, M.MaskedLM(config, rng=jax.random.key(0)), word_tokenizer())
    return folder


# Export and load


def test_unknown_characters_of_a_text_are_counted(tlite, exported, tmp_path):
    path = tmp_path / "text.txt"
    for text, number in (("def ☃(x):☃\n" * 3, 6), ("def f(x):\n" * 3, 0)):
        path.write_text(text)
        code, _, err = tlite(f"evaluate {exported} --path {path}")
        assert code == 0
        assert err.count(f"{number} of {len(text)}") == (number > 0)


def test_an_exported_generator_writes_the_same_text(works, tmp_path):
    folder = tmp_path / "new" / "gpt2"
    assert works(f"export {{trained}} {folder}").startswith("saved as a gpt2 model")
    options = "--prompt 'def f' --tokens 40 --greedy"
    assert works(f"generate {folder} {options}") == works(f"generate {{trained}} {options}")


def test_evaluate_prints_the_loss_of_the_model_on_a_text(works, exported, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("def f(x):\n    return x + 1\n" + "f(2)\n")
    out = works(f"evaluate {exported} --path {path}")
    model, tokenizer = library.load(exported)
    tokens = jnp.asarray(tokenizer.encode(path.read_text(), add_special_tokens=False))
    context = model.config.context
    starts = range(0, len(tokens) - 1, context)  # the last window may be shorter
    windows = [tokens[start : start + context + 1] for start in starts]
    summed = jax.jit(
        lambda model: sum(F.token_cross_entropy(model(w[:-1]), w[1:]).sum() for w in windows)
    )
    loss = float(summed(model)) / (len(tokens) - 1)
    assert f"loss {loss:.4f} nats per token, perplexity {math.exp(loss):.3f}" in out
    assert f"{loss / math.log(2):.4f} bits per byte" in out  # a character here is a byte
    assert f"{len(tokens) - 1:,} tokens in windows of {context}" in out


def test_generation_follows_the_folders_settings(tlite, works, exported, tmp_path):
    """It ends at the end token; settings that are not supported are warned of."""
    model, tokenizer = library.load(exported)
    options = "--prompt d --tokens 30 --greedy"
    written = works(f"generate {exported} {options}").strip("\n")
    save_pretrained(folder := tmp_path / "ends", model, tokenizer)
    end = {"eos_token_id": int(tokenizer.encode(written[5])[0])}
    unsupported = {"repetition_penalty": 1.2, "no_repeat_ngram_size": 0}
    for name, more in {"config.json": {}, "generation_config.json": unsupported}.items():
        content = json.loads((folder / name).read_text()) | end | more
        (folder / name).write_text(json.dumps(content))
    code, out, err = tlite(f"generate {folder} {options}")
    assert (code, err) == (0, f"warning: {folder} sets repetition_penalty: ignored\n")
    assert out.strip("\n") == "d" + written[1:].split(written[5])[0]


# Fine-tuning


TUNED = """
from tlite.data import LabelledText
from tlite.experiment import ClassifierExperiment, Pretrained
from tlite.models import ClassifierConfig
from tlite.training import TrainingConfig
experiment = ClassifierExperiment(
    "tuned",
    data=LabelledText(training=("{data}",), validation=("{data}",), labels={labels}),
    init_from=Pretrained("{folder}"),
    model=ClassifierConfig(dropout=0.0, {model}),
    training=TrainingConfig(steps=8, learning_rate=3e-3, evaluate_every=4, batch_size=4),
)
"""


def classifier_file(path, bert, model="context=6"):
    """The file of an experiment that tunes a BERT on `TEXTS`."""
    data = path.with_suffix(".jsonl")
    lines = [{"text": text, "label": int("good" in text)} for text in TEXTS]
    data.write_text("\n".join(map(json.dumps, lines)))
    labels = {"0": "bad", "1": "good"}
    path.write_text(TUNED.format(data=data, labels=labels, folder=bert, model=model))
    return path


@pytest.fixture(scope="module")
def tuned(train, bert, tmp_path_factory):
    return train(str(classifier_file(tmp_path_factory.mktemp("tuned") / "tuned.py", bert)))


def test_a_fine_tuned_bert_is_exported_as_one(works, tuned, tmp_path):
    texts = " ".join(map(repr, TEXTS))
    assert "as a bert model" in works(f"export {{tuned}} {tmp_path / 'out'}")
    lines, exported_lines = (
        map(json.loads, works(f"classify {folder} {texts} --format jsonl").splitlines())
        for folder in (tuned.run, tmp_path / "out")
    )
    for line, exported_line in zip(lines, exported_lines, strict=True):
        assert exported_line["class"] == line["class"]
        assert exported_line["probabilities"] == pytest.approx(line["probabilities"], abs=1e-5)
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert fields["id2label"] == {"0": "bad", "1": "good"}
    assert library.load(tuned.run)[0].config.context == 6


@pytest.mark.parametrize("change", [{"tokenizer.word_ngrams": 2}, {"padding": "unknown"}])
def test_a_pretrained_model_sets_tokenizer_and_padding(bert, tmp_path, change):
    experiment = load_experiment(str(classifier_file(tmp_path / "tuned.py", bert)))
    message = complaint(Run.create, library.override(experiment, change), tmp_path / "run")
    assert "tokenizer and padding" in message


def test_a_plan_of_a_pretrained_classifier_needs_its_classes(bert):
    start, data = Pretrained(str(bert)), LabelledText(path="a.csv")
    experiment = ClassifierExperiment("x", data, init_from=start)
    assert "--labels" in complaint(with_planned_sizes, experiment)


def test_low_rank_updates_of_a_bert_are_trained_with_a_new_head(bert, tmp_path, capsys):
    """The plan, which reads no data, counts the same bytes as the run."""
    experiment = load_experiment(str(classifier_file(tmp_path / "tuned.py", bert)))
    low_rank = {"training.low_rank": LowRank(rank=2), "training.seeds": 2}
    experiment = library.override(experiment, low_rank)
    run = Run.create(experiment, tmp_path / "run")
    new = "projection.kernel projection.bias head.kernel head.bias"
    assert run.experiment.training.trainable == new
    trained = 4 * 2 * (8 + 8) + (8 * 8 + 8) + (8 * 2 + 2)  # A and B of 4 matrices, and the head
    run.print_summary()
    assert f" trained={trained} " in capsys.readouterr().out
    planned = with_planned_sizes(experiment)
    trainer = planned_trainer(planned.model, planned.training, jax.devices())
    shapes = [
        {path: leaf.shape for path, leaf in jax.tree.leaves_with_path(each.abstract_state)}
        for each in (trainer, run.trainer)
    ]
    assert shapes[0] == shapes[1]
    plan(experiment)
    assert f" parameters, {trained} trained, float32" in capsys.readouterr().out


def test_export_without_the_original_folder_needs_a_family(works, fails, tuned, bert, tmp_path):
    run = shutil.copytree(tuned.run, tmp_path / "run")
    config = (run / "config.json").read_text().replace(str(bert), str(tmp_path / "gone"))
    (run / "config.json").write_text(config)
    message = fails(f"export {run} {tmp_path / 'out'}")
    assert "there is no folder" in message
    assert "name a --family" in message
    assert not (tmp_path / "out").exists()
    assert "as a bert model" in works(f"export {run} {tmp_path / 'out'} --family bert")


# Translation


def test_a_folder_with_an_encoder_and_a_decoder_translates(works, tmp_path):
    config = M.Seq2SeqConfig(
        vocabulary_size=len(word_tokenizer()), source_vocabulary_size=len(word_tokenizer()),
        context=16, width=8, num_heads=2, num_blocks=1, norm="rms", block="pre_norm", bias=False,
        positions="relative", attention=M.Attention(scale=1.0),
        embedding=M.Embedding(init_std=8**-0.5, scale=False),
        head=M.TranslatorHead(scale=8**-0.5), special_tokens=M.SpecialTokens(bos_id=0, eos_id=3),
    )  # fmt: skip
    model, noise = M.Seq2Seq(config, rng=jax.random.key(0)), np.random.default_rng(5)
    model = jax.tree.map(lambda a: a + np.float32(0.5 * noise.normal(size=a.shape)), model)
    save_pretrained(tmp_path / "t5", model, word_tokenizer())
    texts, tokenizer = ["it was a good film", "so bad"], word_tokenizer()
    results = translate(model, [tokenizer.encode(text) for text in texts], beam=2)
    first, second = (tokenizer.decode(tokens) for (tokens, _), *_ in results)
    assert first != second
    texts = " ".join(map(repr, texts))
    out = works(f"translate {tmp_path / 't5'} {texts} --beam 2")
    assert out == f"{first}\n{second}\n"


# Mistakes


def test_errors_with_a_pretrained_folder_are_one_line(fails, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    for line, says in {
        "evaluate {exported}": "name a text, --path FILE",
        f"evaluate {{trained}} --path {empty}": "is too short: it has 0 tokens",
        f"evaluate {{exported}} --path {empty}": "is too short: it has 0 tokens",
        f"evaluate {{exported}} --replica all --path {empty}": "this folder has one model",
        "translate {exported} a --replica all": "this folder has one model",
        "generate {bert} --prompt a": "another kind of model",
        "classify {exported} a": "another kind of model",
        "translate {exported} a": "another kind of model",
        "generate {exported} --replica 1": "--checkpoint and --replica are for runs",
        "export {trained} {exported}": "exists already",
        "export {exported} new --replica 1": "--checkpoint and --replica are for runs",
        "generate {exported}": "this model has no start symbol: give a --prompt",
        "generate no/such --prompt a": "there is no file or folder no/such",
    }.items():
        assert says in fails(line), line


def test_a_field_of_the_pretrained_model_cannot_be_changed(tlite, bert, tmp_path):
    source = classifier_file(tmp_path / "wide.py", bert, "context=6, width=64")
    code, _, err = tlite(f"train {source}")
    assert (code, err) == (2, "tlite: width is set by the pretrained model: leave it out\n")


def test_init_of_pretrained_arrays_alone_is_an_error(bert, tmp_path):
    experiment = load_experiment(classifier_file(tmp_path / "own.py", bert))
    new = tuple(ParameterGroup(f"{name}.*", init="normal") for name in ("head", "projection"))
    for change, field in (
        ({"training.init": "gpt2", "training.groups": new}, "init"),
        ({"training.groups": (ParameterGroup("blocks.*", init="gpt2"),)}, r"groups\[0\].init"),
    ):
        changed = library.override(experiment, change)
        with pytest.raises(UserError, match=f"^{field} would change only arrays of the pretrained"):
            build(changed.resolve())
    changed = library.override(experiment, {"training.init": "gpt2"})
    assert "head.kernel" in build(changed.resolve()).new_arrays


def test_variants_with_low_rank_updates_train_the_new_head(bert, tmp_path):
    experiment = load_experiment(classifier_file(tmp_path / "own.py", bert))
    datasets = DatasetCache()
    for rank in (1, 2):
        change = {"training.low_rank": LowRank("*.query.*", rank)}
        variant = library.override(experiment, change).resolve()
        training = datasets.build(variant).experiment.training
        assert "head.kernel" in training.trainable
        assert training.low_rank.rank == rank


def test_a_run_records_the_hash_of_its_pretrained_arrays(tuned, bert):
    experiment = json.loads((tuned.run / "config.json").read_text())["experiment"]
    assert experiment["init_from"]["folder"] == str(bert)
    assert len(experiment["init_from"]["sha256"]) == 64
    with pytest.raises(UserError, match="have changed since the run was created"):
        load_init(Pretrained(str(bert), "0" * 64), M.ClassifierConfig(context=6), 2)


def test_attention_dropout_in_fine_tuning(bert, tmp_path):
    folder = shutil.copytree(bert, tmp_path / "bert")
    fields = json.loads((folder / "config.json").read_text())
    fields["attention_probs_dropout_prob"] = 0.2
    (folder / "config.json").write_text(json.dumps(fields))
    chosen = {"attention": M.Attention(dropout=0.3)}
    for options, rate in [({}, 0.2), ({"dropout": 0.0}, 0.0), (chosen, 0.3)]:
        config = M.ClassifierConfig(context=6, **options)
        assert load_init(Pretrained(str(folder)), config, 2)[0].attention.dropout == rate


def test_a_longer_context_than_the_pretrained_one_is_a_warning(bert, capsys):
    def context(length):
        return load_init(
            Pretrained(str(bert)), M.ClassifierConfig(context=length), 2
        ).config.context

    longest = context(10_000)
    warning = f"warning: context 10,000 is reduced to {longest}, "
    assert capsys.readouterr().err.startswith(warning)
    assert (context(longest), capsys.readouterr().err) == (longest, "")


def test_scanned_fine_tuning_starts_from_stacked_blocks(bert):
    """All arrays of the folder have the names and shapes of the run's model."""
    config = M.ClassifierConfig(context=6, loop=M.Loop(scan=True))
    config, arrays, *_ = load_init(Pretrained(str(bert)), config, 2)
    shapes = parameter_sizes(config)
    assert {name: a.size for name, a in arrays.items()}.items() <= shapes.items()
    assert {name for name in shapes if "blocks." in name} <= arrays.keys()


@pytest.mark.parametrize(("begin", "end", "first"), [(1, 2, 1), (None, 2, 2), (1, None, 1)])
def test_without_a_prompt_a_text_starts_from_the_start_symbol(begin, end, first):
    tokenizer = ByteTokenizer()
    tokenizer.bos_id, tokenizer.eos_id = begin, end
    assert encode_prompt(tokenizer, None, unknown=False).tolist() == [first]
