"""User errors are one line with exit code 2 and change nothing; bugs stay tracebacks."""

import re

import pytest

from tlite.cli import commands, main
from tlite.errors import Interrupted, UserError

TRAIN, COPY = "train my_text --path {text} ", "train copy_task --sequences 60 "
LONG = "a b c d a b c d a b c d"
MISTAKES = {
    "generat": "did you mean generate?",
    "dmeo": "no command 'dmeo': did you mean train demo?",
    "train dmeo": "did you mean demo?",
    "train": "name an experiment.*demo",
    TRAIN + "--widht 8": "unknown option --widht: did you mean --width?",
    TRAIN + "--width eight": "--width: expected int, not 'eight'",
    TRAIN + "--tokenizer bpe:256": "tokenizer: pieces .* at least 257, not 256",
    "evaluate": "Missing from tlite evaluate: RUN Run folder; .* name",
    "evaluate {generator} extra": "unexpected argument 'extra'",
    "evaluate {generator} --split exam": "'exam' .*'validation', 'training', 'test'",
    "generate {generator} --tokens many": "Error parsing --tokens: .*'many'",
    "train my_text": "--path",
    "train my_text --path nowhere.txt": "nowhere.txt",
    TRAIN + "--embedding.init_std -1": "embedding: init_std must be positive, not -1.0",
    TRAIN + "--name ''": "name must be printable, not ''",
    "train my_text --path /dev/zero": "can't read /dev/zero: it is a device, not a file",
    "evaluate " + "n" * 300: "can't read n+/config.json: File name too long",
    TRAIN + "--run " + "n" * 300: "can't create the run folder n+: File name too long",
    TRAIN + "--context 4000": "too short: its training split has 2565",
    TRAIN + "--vocabulary-size 7": "7.*31",
    TRAIN + "--validation-fraction 1": "validation_fraction must be .*, not 1.0",
    TRAIN + "--prompt ''": "prompt '' has no token",
    TRAIN + "--run {generator}": "exists already.*--resume /.*run",
    "train ''": "there is no experiment ''",
    "train --resume auto": "tlite train EXPERIMENT --resume auto",
    TRAIN + "--run {generator} --resume auto": "has another experiment: model.context is 16",
    "evaluate nowhere": "nowhere does not exist",
    "evaluate .": "not a run folder",
    "evaluate ''": "empty name",
    TRAIN + "--run gs://bucket/run": "gs:/bucket/run is a URL",
    "train --resume s3://bucket/run": "s3://bucket/run is a URL",
    "train --resume {generator} --heartbeat 100000000000000000000": "--heartbeat .* not 1000000",
    "evaluate {generator} --split test": "no test split: training or validation",
    "evaluate --beam 2 {generator}": "--beam is for a translator, not for .*run",
    "evaluate --path a.txt {generator}": "can't read a.txt: No such file",
    "evaluate {generator} --replica 1": "--replica must be 0 or all for .*run, not 1",
    "evaluate {generator} --checkpoint 3": "no checkpoint 3: .*2, 4",
    "generate {generator} --prompt ''": "prompt '' has no token",
    "generate {generator} --prompt 'The Öl§'": "'Ö', '§'.*--unknown",
    "generate {generator} --temperature -1": "--temperature must be between 0.* 10,000.*, not -1",
    "generate {generator} --top-p 1e-300": "--top-p must be between 1e-06 and 1, not 1e-300",
    "generate {generator} --tokens 0": "at least 1, not 0",
    "generate {generator} --samples 3000000000": "--samples must be between .*, not 3,000,000,000",
    "generate {generator} --seed 2147483648": "--seed must be between 0 and 2,147,483,647, not 2",
    "classify {classifier}": "nothing to classify: give texts, or lines on standard input",
    "evaluate {classifier} --replica 2": "no replica 2: the run has 2",
    "train reviews_demo --min-document-frequency 99999": "no word is in 99,999 texts",
    "train reviews_demo --reviews 60 --num-classes 3": "num_classes is 3, but the data has 5",
    "inspect {classifier} --text ''": "the text to inspect is empty",
    "inspect {classifier} --text ☕": "no word in it",
    "translate {translator}": "nothing to translate: give texts, or lines on standard input",
    "translate {translator} a ''": "line 2 is empty",
    f"translate {{translator}} a '{LONG}'": "line 2 has 1\\d tokens, .* context of 8: .*--truncate",
    "translate {translator} a --input nowhere.txt": "give texts or --input, not both",
    "translate {translator} --input nowhere.txt": "can't read nowhere.txt: No such file",
    "translate {translator} a --beam 99": "a beam of 99 is not between 1 and the vocabulary's \\d+",
    "translate {translator} a --n-best 4": "--n-best must be between 1 and 3, not 4",
    "translate {translator} a --length-penalty -1": "length penalty must be .*-1",
    "translate {translator} a --max-length 9": "between 1 and the context of 8, not 9",
    "generate {translator}": "[Tt]ranslator",
    "classify {translator} text": "[Tt]ranslator",
    COPY + "--beam 200": "a beam of 200 is not between 1 and the vocabulary's",
    COPY + "--special_tokens.pad_id 5": "special_tokens.pad_id is the tokenizer's, 0",
    COPY + "--bleu-sentences 0": "exact_match needs bleu_sentences",
    "train reviews_demo --best-metric bleu": "has no metric bleu: --best-metric loss or accuracy",
    "train demo --trials 4": "--trials and --tuning-seeds need --tune-each",
    "train demo --vary width 8 16 --tuning-seeds 2": "--tuning-seeds need --tune-each",
    "launch": "launch needs a command to train",
    "launch -n 2 evaluate run": "launch needs a command to train",
    "launch -n 0 train demo": "-n must be at least 1, not 0",
    "launch --devices-each 0 train demo": "--devices-each must be at least 1, not 0",
    "train demo --process 1": "needs --coordinator HOST:PORT, --processes N and --process I",
}

SYNONYMS = {
    "train my_text --lr 1": "learning-rate",
    "train my_text --n_layer=1": "num-blocks",
    "train my_text --d_model 1": "width",
    "train my_text --output_dir x": "run",
    "train my_text --max-length 9": "context",
    "generate latest --max-length 9": "tokens",
    "generate latest --num-samples 9": "samples",
}


@pytest.fixture
def text(generator):
    return generator.text


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_and_changes_nothing(line, fails, request, tmp_path):
    fixtures = {name: request.getfixturevalue(name) for name in re.findall(r"{(\w+)", line)}
    paths = {name: getattr(value, "run", value) for name, value in fixtures.items()}
    assert re.search(MISTAKES[line].replace("?", r"\?"), fails(line, **paths))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", SYNONYMS)
def test_an_option_named_as_in_another_library_is_one_line(line, fails):
    name = re.search(r"--[\w-]+", line)[0].replace("_", "-")
    assert f"unknown option {name}: did you mean --{SYNONYMS[line]}?" in fails(line)


def test_a_wrong_option_does_not_steer_a_terminal(fails):
    assert "␛[2J" in fails("evaluate run '--\x1b[2J'")


# Errors that no command handles


@pytest.fixture
def failure(monkeypatch, capsys):
    """The exit code and stderr of a command in which something is raised."""

    def call(error):
        def fail(*_, **__):
            raise error

        monkeypatch.setattr(commands.Evaluate, "execute", fail)
        code = main(["evaluate", "run"])
        out, err = capsys.readouterr()
        assert out == ""
        return code, err

    return call


MEMORY = "not enough memory ({}): a smaller model, batch or text needs less"
LINE = "RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."
SYSTEM_ERRORS = [
    (OSError(24, "", "some/file"), 2, "some/file: Too many open files"),
    (OSError(5, ""), 2, "Input/output error"),
    (MemoryError(), 2, MEMORY.format("MemoryError")),
    (RuntimeError(f"{LINE}\nmore"), 2, MEMORY.format(LINE)),
    (RecursionError(), 2, "the input is nested too deeply"),
    (Interrupted("stopped at step 3", 15), 143, "stopped at step 3"),
    (KeyboardInterrupt(), 130, "interrupted"),
]


@pytest.mark.parametrize(("error", "code", "sentence"), SYSTEM_ERRORS, ids=str)
def test_errors_of_the_system_are_one_line(failure, error, code, sentence):
    assert failure(error) == (code, f"tlite: {sentence}\n")


@pytest.mark.parametrize("error", [ValueError("ours"), RuntimeError("ours"), KeyError("ours")])
def test_bugs_stay_tracebacks(failure, error):
    with pytest.raises(type(error), match="ours"):
        failure(error)


def test_messages_have_no_control_characters(failure):
    assert failure(UserError("no file \x1b[31ma\r")) == (2, "tlite: no file ␛[31ma␍\n")


def test_the_experiment_file_is_printed_before_it_runs(capsys, tmp_path):
    (tmp_path / "mine.py").write_text("raise ValueError('stopped')")
    assert main(["train", "mine.py"]) == 2
    assert capsys.readouterr().out == f"experiment: {tmp_path / 'mine.py'}\n"
