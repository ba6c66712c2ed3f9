"""User errors are one line with exit code 2 and change nothing; bugs stay tracebacks."""

import re

import pytest

from tlite.cli import commands, main
from tlite.errors import Interrupted, UserError

pytestmark = pytest.mark.usefixtures("one_device")
TRAIN, COPY = "train my_text --path {text} ", "train copy_task --sequences 60 "
LONG = "a b c d a b c d a b c d"
MISTAKES = {
    "generat": "did you mean generate?",
    "dmeo": "no command 'dmeo': did you mean train demo?",
    "train dmeo": "did you mean demo?",
    "train": "name an experiment.*demo",
    TRAIN + "--widht 8": "unknown option --widht: did you mean --width?",
    TRAIN + "--per-device-train-batch-size 8": "did you mean --batch-size?",
    TRAIN + "--width eight": "--width: expected int, not 'eight'",
    "evaluate": "Missing from tlite evaluate: RUN Run folder, .* name",
    "evaluate {generator} extra": "unexpected argument 'extra'",
    "evaluate {generator} --split exam": "'exam' .*'validation', 'training', 'test'",
    "generate {generator} --tokens many": "Error parsing --tokens: .*'many'",
    "train my_text": "--path",
    "evaluate " + "n" * 300: "can't read n+/config.json: File name too long",
    TRAIN + "--run " + "n" * 300: "can't create the run folder n+: File name too long",
    TRAIN + "--context 4000": "too short: its training split has 2565",
    TRAIN + "--vocabulary-size 7": "7.*31",
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
    "evaluate --beam 2 {generator}": "--beam is for a translator, not .*run",
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
    "translate {translator} a --max-length 9": "between 1 and the context of 8, not 9",
    "generate {translator}": "[Tt]ranslator",
    "classify {translator} text": "[Tt]ranslator",
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
    # Options named as in another library
    "train my_text --lr 1": "unknown option --lr: did you mean --learning-rate?",
    "train my_text --n_layer=1": "unknown option --n-layer: did you mean --num-blocks?",
    "train my_text --d_model 1": "unknown option --d-model: did you mean --width?",
    "train my_text --output_dir x": "unknown option --output-dir: did you mean --run?",
    "train my_text --max-length 9": "unknown option --max-length: did you mean --context?",
    "generate latest --max-length 9": "unknown option --max-length: did you mean --tokens?",
    "generate latest --start a": "unknown option --start: did you mean --prompt?",
    "generate latest --num-samples 9": "unknown option --num-samples: did you mean --samples?",
    # Fields of components
    "train demo --pre-norm": "unknown option --pre-norm: did you mean --block.pre-norm?",
    "train demo --rnu x": "unknown option --rnu: did you mean --run?",
    "train demo --width": "--width: expected int, not ''",
    "train demo --width 8 9": "--width: expected int, not '8 9'",
    "train demo --precision half": "--precision: expected float32 or mixed or auto, not 'half'",
    "train demo 64": "unexpected argument '64'",
    "train demo --positions rotary --positions.base x": "--positions.base: expected float, not 'x'",
    "train demo --norm-first": "unknown option --norm-first",
    # Variants
    "train demo --vary": "--vary .*needs two or more different values, as in --vary norm layer rms",
    "train demo --vary nrom layer rms": "unknown option --nrom: did you mean --norm?",
    "train demo --vary width 8 eight": "width=eight: --width: expected int, not 'eight'",
    "train demo --vary block.pre_norm True yes": "--block.pre-norm: expected bool, not 'yes'",
    "train demo --vary num-heads 4 3": r"num-heads=3: .*width \(64\) must be a multiple",
    "train demo --vary norm layer rms --only lyer": "no variant 'lyer': did you mean layer?",
    "train demo --only layer": "there is no variant 'layer': there are none",
    # Other commands
    "compare": "name the folders of runs to compare",
    "compare nowhere": "nowhere is no folder",
    "compare {generator}/config.json": "is no folder",
    "compare {generator}/checkpoints": "has neither config.json nor study.json",
    "prepare {text} out --tokenizer no/such": "no/such",
    "prepare {text} out --tokenizer missing.json": "there is no tokenizer 'missing.json'",
    "prepare {text} out --tokenizer bpe:5": "--tokenizer bpe:5: num_subwords must be at least",
    "prepare {text} . --tokenizer bytes": ". exists already",
    "prepare . out --tokenizer bytes": "out is inside ., which is read",
    "prepare {text} out --tokenizer bytes --split test": "--split and --subset are for data sets",
    "prepare {text} out --tokenizer bpe:x": "bpe:N needs a whole number",
    "prepare {text} /dev/null/out --tokenizer bytes": "Not a directory",
    "train " + "x" * 300: "there is no experiment",
    "train 'a\0b.py'": "there is no experiment",
    "runs": "there is no folder runs",
    "generate latest": "there is no latest generator's run",
    "evaluate latest": "there is no latest run",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_and_changes_nothing(line, fails, tmp_path):
    assert re.search(MISTAKES[line].replace("?", r"\?"), fails(line))
    assert list(tmp_path.iterdir()) == []


def test_a_suggested_experiment_may_have_mean_in_its_name(fails, tmp_path):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "mean_pool.py").write_text("experiment = None\n")
    assert "did you mean train mean_pool?" in fails("mean_pol")


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
