"""Every `tlite` command and Python block of the README runs in a fresh clone.

Appended options make commands small. A command runs once, after those whose results it needs.
Commands that need the network or much time are listed with the reason and are only parsed.
"""

import hashlib
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.documents import ROOT, commands
from tests.helpers.python import SMALL_DATA, Ran, forks, python
from tlite.runs.experiment_files import find_experiments

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, flags=re.S | re.M)
NETWORK, LONG = "downloads packages", "takes minutes or needs real data"
NOT_RUN = {
    "make demo": "takes a minute; its tlite command runs below",
    "make docs": "test_docs.py builds the site",
    "make setup EXTRAS=text": NETWORK,
    "make setup EXTRAS=notebooks,text": NETWORK,
    "pip install .": f"{NETWORK}; test_package.py installs the wheel",
    'pip install ".[text]"': NETWORK,
    **dict.fromkeys((f"make record-{name}" for name in (
        "shakespeare", "tiny-shakespeare", "tiny-shakespeare-long",
        "reviews", "reviews-binary", "sst2", "trec",
    )), LONG),
    "make optimizers": LONG,
    "make bench": LONG,
    'make bench OPTIONS="--only gpt2"': LONG,
}  # fmt: skip
LINES = [line for line in commands(README) if line not in NOT_RUN]

SMALL = "--steps 4 --evaluate-every 4 --precision float32 --width 16 --num-blocks 1"
GENERATOR = f"{SMALL} --num-heads 4 --context 32 --batch-size 4"
DEMO, MINE = "tlite train demo", "tlite train my_experiment.py --seeds 5"
OPTIMIZERS = "tlite train demo --vary optimizer adamw muon --seeds 5"
STUDY = next(line for line in LINES if "--vary block" in line)
TUNE = "tlite tune demo --vary learning-rate 1e-4..1e-1"
PREPARE = "tlite prepare my_texts/ corpora/mine --tokenizer bpe"
LAUNCH = "tlite launch -n 8 train gpt2 --folder corpora/mine"
EXPORT = "tlite export RUN FOLDER"
CLASSIFY = "tlite train my_labels --path reviews.csv"
TRANSLATE = "tlite train my_pairs --path pairs.tsv"
RESUME = "tlite train demo --run runs/a --resume auto"
GPT2 = "openai-community/gpt2"  # here a local folder, so nothing is downloaded
FINETUNE = f"tlite train finetune_shakespeare --init-from {GPT2}"
SENTENCE = "To be, or not to be, that is the question.\n"
TINY = SENTENCE * 200  # replaces tiny Shakespeare, which would be downloaded
OPTIONS = {
    DEMO: f"{GENERATOR} --run runs/demo",
    MINE: f"{GENERATOR} --run runs/mine --seeds 2 --warmup-steps 0",
    OPTIMIZERS: f"{GENERATOR} --run runs/optimizers --seeds 2",
    STUDY: f"{GENERATOR} --run runs/study --seeds 2",
    TUNE: f"{GENERATOR} --run runs/tuning --trials 2",
    PREPARE: "--tokenizer bpe:300",
    LAUNCH: f"{GENERATOR} --run runs/gpt2",
    CLASSIFY: f"{SMALL} --num-heads 2 --batch-size 4 --run runs/classifier",
    TRANSLATE: f"{SMALL} --num-heads 2 --num-subwords 100 --run runs/translator",
    RESUME: GENERATOR,
    FINETUNE: "--steps 4 --evaluate-every 4 --precision float32 --context 16 --batch-size 4 "
    f"--data.sha256 {hashlib.sha256(TINY.encode()).hexdigest()}",
    "tlite train my_text --path my.txt": GENERATOR,
    "tlite plan gpt2_xl --devices 64 --hardware v5e": "--num-blocks 1",
}
"""Options that make a command small and name the folder of its run."""
NEEDS = {
    STUDY: (None, {"learned sinusoidal rotary": "learned rotary"}),
    "tlite compare RUN RUN": (MINE, {"RUN RUN": "runs/mine/demo runs/mine/ALiBi"}),
    "tlite classify RUN": (CLASSIFY, {"RUN": "runs/classifier"}),
    "tlite translate RUN": (TRANSLATE, {"RUN": "runs/translator"}),
    EXPORT: (LAUNCH, {"RUN": "runs/gpt2", "FOLDER": GPT2}),
    f"tlite generate {GPT2}": (EXPORT, {}),
    FINETUNE: (EXPORT, {}),
    LAUNCH: (PREPARE, {"-n 8": "-n 2"}),  # CI has two cores
    "tlite runs": (DEMO, {}),
}
"""The command that must run before, and values of placeholders; elsewhere RUN is the demo's."""

OUTCOME = """
import json
import numpy as np
shapes = {name: weights.shape for name, weights in captured.items()}
plain = tlite.inspection.run(model, tokens)[0]
changed = not np.allclose(plain, logits, atol=1e-4)
assert {*captured} < {*tlite.inspection.tap_names(model)}
print(json.dumps([len(tokens), len(tokenizer), shapes, logits.shape, changed]))
"""
"""Checks the results of the block on inspection."""

GOOD, BAD = "superb sound and a superb price", "it broke and it was not worth the money"


class Clone:
    """A fresh clone with files of a user, in which each command runs once."""

    def __init__(self, folder: Path):
        self.folder, self.results, self.tlite = folder, {}, None
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():  # not deleted without a commit
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)
        (folder / "data" / "shakespeare").mkdir(parents=True)
        (folder / "data" / "shakespeare" / "tiny_shakespeare.txt").write_text(TINY)
        (folder / "my_texts").mkdir()
        (folder / "my_texts" / "a.txt").write_text(SENTENCE * 4000)
        (folder / "my.txt").write_text(SENTENCE * 200)
        rows = [f"{text}, number {i}!" for i in range(60) for text in (GOOD, BAD)]
        rows = [f'"{row}",{5 if GOOD in row else 1}' for row in rows]
        (folder / "reviews.csv").write_text("\n".join(["review,stars", *rows]) + "\n")
        pairs = [f"A dog, number {i}, is running.\tHund {i} rennt." for i in range(200)]
        (folder / "pairs.tsv").write_text("\n".join(["english\tgerman", *pairs]) + "\n")
        (experiment,) = (block for block in BLOCKS if "# my_experiment.py" in block)
        (folder / "my_experiment.py").write_text(experiment)

    def run(self, line: str) -> Ran:
        """Return the result of a command, after running the command that it needs."""
        if line not in self.results:
            default = (DEMO, {"RUN": "runs/demo"}) if "RUN" in line else (None, {})
            prefix = next((prefix for prefix in NEEDS if line.startswith(prefix)), None)
            needed, values = NEEDS.get(prefix, default)
            if needed:
                assert self.run(needed).code == 0, self.run(needed).err
            command = f"{line} {OPTIONS.get(line, '')}"
            for placeholder, value in values.items():
                command = command.replace(placeholder, value)
            self.results[line] = self.tlite(*shlex.split(command)[1:])
        return self.results[line]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    clone = Clone(tmp_path_factory.mktemp("clone"))
    with forks(clone.folder, PYTHONPATH=".", TLITE_DATA="data") as clone.tlite:
        yield clone


@pytest.mark.parametrize("line", LINES)
def test_a_line_runs(clone, line):
    code, _, err = clone.run(line)
    if line == TUNE:  # after so few steps the largest learning rate is the best
        err = re.sub(r"^warning: the best \S+, 0.1, is at the high end .*\n", "", err)
    assert (code, SMALL_DATA.sub("", err)) == (0, "")


def test_every_listed_command_and_block_is_in_the_readme():
    assert {*NOT_RUN, *OPTIONS} <= {*commands(README)}
    assert len(BLOCKS) == 2  # each has its test below


def test_make_targets_train_the_experiments_of_their_names():
    trained = {}
    for target in (line.split()[1] for line in NOT_RUN if line.startswith("make")):
        command = ["make", "-n", target]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        trained |= dict.fromkeys(re.findall(r"tlite train (\w+)", done.stdout), target)
    assert {"demo", "record_trec"} <= trained.keys() <= {*find_experiments()}
    assert all(name == target.replace("-", "_") for name, target in trained.items())


def test_my_experiment_trains_each_variant_and_compares_them(clone):
    assert clone.run(MINE).code == 0
    study = clone.folder / "runs" / "mine"
    first, *others = json.loads((study / "comparison" / "comparison.json").read_text())["runs"]
    names = [entry["label"] for entry in (first, *others)]
    assert names == ["demo", "ALiBi", "AdamW", "linear", "focal", "orthogonal"]
    assert (first["finished"], first["seeds"]) == (True, 2)
    for entry in others:  # each change has an effect, which is compared with the demo
        method = "welch" if entry["label"] == "orthogonal" else "paired"  # other initial values
        assert (entry["finished"], entry["seeds"], entry["method"]) == (True, 2, method)
        assert entry["low"] < entry["difference"] < entry["high"]
        assert entry["values"] != first["values"]


def test_the_block_on_inspection_captures_and_ablates(clone):
    """Run it in a process without type checks, which reject the README's NumPy tokens."""
    assert clone.run(DEMO).code == 0
    (block,) = (block for block in BLOCKS if "tlite.load(" in block)
    code, out, err = python("-c", block + OUTCOME, folder=clone.folder, PYTHONPATH=".")
    assert code == 0, err
    length, size, *shapes = json.loads(out.splitlines()[-1])
    assert shapes == [{"blocks.0.attention.weights": [4, length, length]}, [length, size], True]


def test_a_file_fine_tunes_on_another_text(clone):
    assert clone.run(EXPORT).code == 0
    (data,) = re.findall(r"`(data=[^`]+)`", README)
    (clone.folder / "my_finetuning.py").write_text(
        "import dataclasses\nimport tlite\n"
        'experiment = tlite.load_experiment("finetune_shakespeare")\n'
        f"experiment = dataclasses.replace(experiment, {data})\n"
    )
    options = OPTIONS[FINETUNE].partition("--data")[0] + "--run runs/finetuned"
    line = f"train my_finetuning.py --init-from {GPT2} {options}"
    code, out, err = clone.tlite(*line.split())
    assert (code, SMALL_DATA.sub("", err)) == (0, "")
    assert "more text: " in out
