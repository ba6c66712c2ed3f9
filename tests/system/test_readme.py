"""A fresh clone, README followed in it: each line of `tlite`, each block of Python, as printed.

Lines are made small by options at their end alone, beside a few files of a user's own. A line that
needs what others make runs after them, and none runs twice. What needs the network, or a machine
for long, is named here with the reason, and only read.
"""

import hashlib
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.documents import ROOT, commands, fault_of_command
from tests.helpers.python import SMALL_DATA, Ran, forks, python

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, flags=re.S | re.M)
NETWORK, LONG = "packages or weights from the network", "minutes, or real data: see its file"
NOT_RUN = {
    "make demo": "a minute: its line of tlite runs below",
    "make docs": "test_docs.py builds the site",
    "make pictures": LONG,
    "make setup EXTRAS=text": NETWORK,
    "pip install .": NETWORK + "; test_package.py installs the wheel",
    'pip install ".[text]"': NETWORK,
    **dict.fromkeys((f"make record-{name}" for name in (
        "shakespeare", "tiny-shakespeare", "tiny-shakespeare-long",
        "reviews", "reviews-binary", "sst2", "trec",
    )), LONG),
    "make bench": LONG,
    'make bench OPTIONS="--only gpt2"': LONG,
    'make bench OPTIONS="--only 0.8M-context-2048"': LONG,
    "make test": "these are the tests",
    "make test-all": "these are the tests",
    "make readme": "these are the tests",
    "make lint": "it is done before them",
    ".ci/run": "it runs them",
}  # fmt: skip
LINES = [line for line in commands(README) if line not in NOT_RUN]

SMALL = "--steps 4 --evaluate-every 4 --precision float32 --width 16 --num-blocks 1"
GENERATOR = f"{SMALL} --num-heads 4 --context 32 --batch-size 4"
DEMO, MINE = "tlite train demo", "tlite train my_experiment.py --seeds 5"
STUDY = next(line for line in LINES if "--vary" in line)
PREPARE = "tlite prepare my_texts/ corpora/mine --tokenizer bpe"
LAUNCH = "tlite launch -n 8 train gpt2 --folder corpora/mine"
EXPORT = "tlite export RUN FOLDER"
CLASSIFY = "tlite train my_labels --path reviews.csv"
TRANSLATE = "tlite train my_pairs --path pairs.tsv"
MORE_STEPS = "tlite train --resume RUN --steps 20000"
RESUME = "tlite train demo --run runs/a --resume auto"
GPT2 = "openai-community/gpt2"  # a folder here, so that nothing is asked of the hub
FINETUNE = f"tlite train finetune_shakespeare --init-from {GPT2}"
SENTENCE = "To be, or not to be, that is the question.\n"
TINY = SENTENCE * 200  # in the place of tiny Shakespeare, which a line would fetch
APPENDED = {
    DEMO: f"{GENERATOR} --run runs/demo",
    MINE: f"{GENERATOR} --run runs/mine --seeds 2",
    STUDY: f"{GENERATOR} --run runs/study --seeds 2",
    PREPARE: "--tokenizer bpe:300 --processes 1",
    LAUNCH: f"{GENERATOR} --run runs/gpt2",
    CLASSIFY: f"{SMALL} --num-heads 2 --batch-size 4 --run runs/classifier",
    TRANSLATE: f"{SMALL} --num-heads 2 --pieces 100 --run runs/translator",
    MORE_STEPS: "--steps 8",
    RESUME: GENERATOR,
    FINETUNE: "--steps 4 --evaluate-every 4 --precision float32 --context 16 --batch-size 4 "
    f"--data.sha256 {hashlib.sha256(TINY.encode()).hexdigest()}",
    "tlite train my_text --path my.txt": GENERATOR,
    "tlite plan gpt2_xl --mesh 64x4 --hardware v5e": "--num-blocks 1",
}
"""Options that cut a line short, and name the folder that others find its run in."""
STANDS_FOR = {
    "tlite compare RUN RUN": (MINE, {"RUN RUN": "runs/mine/rotary runs/mine/ALiBi"}),
    "tlite classify RUN": (CLASSIFY, {"RUN": "runs/classifier"}),
    "tlite translate RUN": (TRANSLATE, {"RUN": "runs/translator"}),
    MORE_STEPS: (TRANSLATE, {"RUN": "runs/translator"}),
    EXPORT: (LAUNCH, {"RUN": "runs/gpt2", "FOLDER": GPT2}),
    f"tlite generate {GPT2}": (EXPORT, {}),
    f"tlite evaluate {GPT2}": (EXPORT, {}),
    FINETUNE: (EXPORT, {}),
    LAUNCH: (PREPARE, {"-n 8": "-n 2"}),  # as many processes as CI has cores
    "tlite runs": (DEMO, {}),
}
"""What a line needs, and what stands for its placeholders; of others RUN is the demo's."""

OUTCOME = """
import json
import numpy as np
shapes = {name: weights.shape for name, weights in captured.items()}
plain = tlite.inspection.run(model, tokens)[0]
changed = not np.allclose(plain, logits, atol=1e-4)
assert {*captured} < {*tlite.inspection.tap_names(model)}
print(json.dumps([len(tokens), len(tokenizer), shapes, logits.shape, changed]))
"""
"""Checks the results of the block of code on inspection."""

GOOD, BAD = "superb sound and a superb price", "it broke and it was not worth the money"


class Home:
    """A fresh clone with a user's own files, in which each line is called once."""

    def __init__(self, folder: Path):
        self.folder, self.ran, self.tlite = folder, {}, None
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():  # or else it is to be deleted
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)
        self._write_own_files()

    def _write_own_files(self) -> None:
        folder = self.folder
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
        (own,) = (block for block in BLOCKS if "# my_experiment.py" in block)
        (folder / "my_experiment.py").write_text(own)

    def call(self, line: str) -> Ran:
        """What a line has done; what it needs is called before."""
        if line not in self.ran:
            of_demo = (DEMO, {"RUN": "runs/demo"}) if "RUN" in line else (None, {})
            starts = [start for start in STANDS_FOR if line.startswith(start)]
            needed, words = STANDS_FOR[starts[0]] if starts else of_demo
            if needed:
                assert self.call(needed).code == 0, self.call(needed).err
            called = f"{line} {APPENDED.get(line, '')}"
            for placeholder, word in words.items():
                called = called.replace(placeholder, word)
            self.ran[line] = self.tlite(*shlex.split(called)[1:])
        return self.ran[line]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    made = Home(tmp_path_factory.mktemp("home"))
    with forks(made.folder, PYTHONPATH=".", TLITE_DATA="data") as made.tlite:
        yield made


@pytest.mark.parametrize("line", LINES)
def test_a_line_runs(home, line):
    code, _, err = home.call(line)
    assert (code, SMALL_DATA.sub("", err)) == (0, "")


def test_lines_that_are_named_here_stand_in_the_readme():
    assert {*NOT_RUN, *APPENDED} <= {*commands(README)}


@pytest.mark.parametrize("line", [line for line in NOT_RUN if line.startswith("make")])
def test_what_a_target_would_call_is_known(home, line):
    """Each of tlite and of Python, with its options."""
    dry = subprocess.run(
        [*shlex.split(line), "-n"], cwd=home.folder, check=True, capture_output=True, text=True
    )
    called = [line for line in commands(f"```\n{dry.stdout}```") if "pip" not in line]
    assert [fault for each in called if (fault := fault_of_command(each, set()))] == []
    if line == "make demo":
        assert called == [DEMO]


def test_the_benchmark_has_the_option_that_is_printed(home):
    bench = "-m", "experiments.benchmarks.bench", "--help"
    assert "--only" in python(*bench, folder=home.folder, PYTHONPATH=".").out


def test_my_experiment_trains_both_variants_and_compares_them(home):
    assert home.call(MINE).code == 0
    study = home.folder / "runs" / "mine"
    entries = json.loads((study / "comparison" / "comparison.json").read_text())["entries"]
    rotary, ours = entries
    assert (rotary["entry"], ours["entry"]) == ("rotary", "ALiBi")
    assert all((entry["finished"], entry["seeds"]) == (True, 2) for entry in entries)
    assert ours["method"] == "paired"
    assert ours["low"] < ours["difference"] < ours["high"]
    assert rotary["values"] != ours["values"]


def test_the_block_that_looks_inside_captures_and_silences(home):
    """As a script: the numpy tokens of the README are not what a signature that is checked has."""
    assert home.call(DEMO).code == 0
    (block,) = (block for block in BLOCKS if "tlite.load(" in block)
    code, out, err = python("-c", block + OUTCOME, folder=home.folder, PYTHONPATH=".")
    assert code == 0, err
    length, size, *shapes = json.loads(out.splitlines()[-1])
    assert shapes == [{"blocks.0.attention.weights": [4, length, length]}, [length, size], True]


def test_a_file_fine_tunes_on_a_text_of_its_own(home):
    assert home.call(EXPORT).code == 0
    (data,) = re.findall(r"`(data=[^`]+)`", README)
    (home.folder / "my_finetuning.py").write_text(
        "import dataclasses\nimport tlite\n"
        'experiment = tlite.load_experiment("finetune_shakespeare")\n'
        f"experiment = dataclasses.replace(experiment, {data})\n"
    )
    options = APPENDED[FINETUNE].partition("--data")[0] + "--run runs/finetuned"
    line = f"train my_finetuning.py --init-from {GPT2} {options}"
    code, out, err = home.tlite(*line.split())
    assert (code, SMALL_DATA.sub("", err)) == (0, "")
    assert "more text: " in out


def test_every_block_has_its_test():
    assert len(BLOCKS) == 2
