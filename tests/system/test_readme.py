"""What README.md shows runs: each line of `tlite` and each block of Python, as it stands there.

Lines are made small by options at their end alone, in a folder with a few files of a user's own.
A line that needs what others make runs after them, and none runs twice.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.documents import ROOT, commands

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, flags=re.S | re.M)
NOT_RUN = {
    'tlite generate openai-community/gpt2 --prompt "The meaning of life is"': "needs the hub",
    "tlite evaluate openai-community/gpt2 --path my.txt": "needs the hub",
}
LINES = [line for line in commands(README) if line.startswith("tlite") and line not in NOT_RUN]

SMALL = "--steps 4 --evaluate-every 4 --precision float32 --width 16 --num-blocks 1"
GENERATOR = f"{SMALL} --num-heads 4 --context 32 --batch-size 4"
DEMO, MINE = "tlite train demo", "tlite train my_experiment.py --seeds 5"
STUDY = next(line for line in LINES if "--vary" in line)
PREPARE = "tlite prepare my_texts/ corpora/mine --tokenizer bpe"
LAUNCH = "tlite launch -n 8 train gpt2 --folder corpora/mine"
CLASSIFY = "tlite train classify --path reviews.csv"
TRANSLATE = "tlite train translate --path pairs.tsv"  # what the line of CLASSIFY says beside it
APPENDED = {
    DEMO: f"{GENERATOR} --run runs/demo",
    MINE: f"{GENERATOR} --run runs/mine --seeds 2",
    STUDY: f"{GENERATOR} --run runs/study --seeds 2",
    PREPARE: "--pieces 300 --processes 1",
    LAUNCH: f"{GENERATOR} --run runs/gpt2",
    CLASSIFY: f"{SMALL} --num-heads 2 --batch-size 4 --run runs/classifier",
    TRANSLATE: f"{SMALL} --num-heads 2 --pieces 100 --run runs/translator",
    "tlite train text --path my.txt": GENERATOR,
    "tlite plan gpt2_xl --mesh 64x4 --hardware v5e": "--num-blocks 1",
}
"""Options that cut a line short, and name the folder that others find its run in."""
STANDS_FOR = {
    "tlite compare RUN RUN": (MINE, {"RUN RUN": "runs/mine/rotary runs/mine/ALiBi"}),
    "tlite classify RUN": (CLASSIFY, {"RUN": "runs/classifier"}),
    "tlite translate RUN": (TRANSLATE, {"RUN": "runs/translator"}),
    "tlite export RUN FOLDER": (LAUNCH, {"RUN": "runs/gpt2", "FOLDER": "exported"}),
    LAUNCH: (PREPARE, {"-n 8": "-n 2"}),  # as many processes as CI has cores
    "tlite runs": (DEMO, {}),
}
"""What a line needs, and what stands for its placeholders; of others RUN is the demo's."""

OUTCOME = """
import json
import numpy as np
shapes = {name: weights.shape for name, weights in inside.items()}
plain = tlite.inspection.run(model, tokens)[0]
changed = not np.allclose(plain, logits, atol=1e-4)
print(json.dumps([len(tokens), len(tokenizer), shapes, logits.shape, changed]))
"""
"""What the block that looks inside has made."""

SENTENCE = "To be, or not to be, that is the question.\n"
GOOD, BAD = "superb sound and a superb price", "it broke and it was not worth the money"


class Ran(NamedTuple):
    code: int
    out: str
    err: str


class Home:
    """A folder of a user, who calls each line once."""

    def __init__(self, folder: Path):
        self.folder, self.ran = folder, {}
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
            self.ran[line] = self.run([sys.executable, "-m", *shlex.split(called)])
        return self.ran[line]

    def run(self, command: list[str]) -> Ran:
        done = subprocess.run(
            command,
            cwd=self.folder, env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=300,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


@pytest.mark.parametrize("line", [*LINES, TRANSLATE])
def test_a_line_runs(home, line):
    code, out, err = home.call(line)
    assert code == 0, err
    assert err == ""
    assert out


def test_lines_that_are_named_here_stand_in_the_readme():
    named = {*NOT_RUN, *APPENDED} - {TRANSLATE}
    assert named <= {*commands(README)}
    assert TRANSLATE.removeprefix("tlite train ") in README


def test_what_make_is_asked_for_it_knows():
    for line in commands(README):
        if line.startswith("make"):
            subprocess.run([*shlex.split(line), "-n"], cwd=ROOT, check=True, capture_output=True)


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
    code, out, err = home.run([sys.executable, "-c", block + OUTCOME])
    assert code == 0, err
    length, size, *shapes = json.loads(out)
    assert shapes == [{"blocks.0.attention.weights": [4, length, length]}, [length, size], True]


def test_every_block_has_its_test():
    assert len(BLOCKS) == 2
