"""Runs what the README shows, in a small form: the Python of its blocks, and its commands.

Part of `make readme`. RUN becomes a run that was trained for a few steps, training a few steps of
a tiny model, 8 processes become 2. What needs the network or hours is listed as not run.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.documents import ROOT, commands

SMALL = "--steps 4 --evaluate-every 4 --precision float32 --width 16 --num-heads 2 --num-blocks 1"
TINY = f"{SMALL} --batch-size 4"
LIMIT = 600  # seconds
TEXT = "To be, or not to be, that is the question.\n" * 200
GOOD, BAD = ("superb sound and a superb price", "it broke and it was not worth the money")
NOT_RUN = {
    "openai-community": "needs the Hugging Face hub",
    "make": "takes from a minute to hours; `make -n` was asked",
    "tlite prepare": "is run first, as others need what it makes",
}
KINDS = {"classify": "runs/classifier", "translate": "runs/translator", "export": "runs/gpt2"}


def prepare(folder: Path) -> list[str]:
    """What the README's commands find: files, and a run of each kind. Returns the commands."""
    (folder / "my_texts").mkdir()
    (folder / "my_texts" / "a.txt").write_text(TEXT * 20)
    (folder / "my.txt").write_text(TEXT)
    rows = [
        f'"{text}, number {i}",{stars}' for i in range(60) for text, stars in ((GOOD, 5), (BAD, 1))
    ]
    (folder / "reviews.csv").write_text("\n".join(["review,stars", *rows]) + "\n")
    pairs = [f"the dog number {i} runs\tder Hund Nummer {i} rennt" for i in range(200)]
    (folder / "pairs.tsv").write_text("\n".join(["english\tgerman", *pairs]) + "\n")
    return [
        "tlite prepare my_texts/ corpora/mine --tokenizer bpe --pieces 300 --processes 1",
        f"tlite train demo --run runs/demo {TINY} --context 64",
        f"tlite train gpt2 --folder corpora/mine --run runs/gpt2 {TINY} --context 64",
        f"tlite train classify --path reviews.csv --run runs/classifier {TINY}",
        f"tlite train translate --path pairs.tsv --run runs/translator {SMALL} --pieces 100",
    ]


def small(command: str) -> str | None:
    """The command as it is run here; None if it is not."""
    words = shlex.split(command)
    kind = KINDS.get(words[1], "runs/demo")
    words = [{"RUN": kind, "FOLDER": "exported", "8": "2"}.get(word, word) for word in words]
    if words[1] == "compare":
        words = ["tlite", "compare", "runs/demo"]
    if words[1] in ("train", "launch") and "--resume" not in words:
        at = words.index("train")
        if "--vary" in words:
            words = [*words[: words.index("--seeds")], "--seeds", "2", *shlex.split(TINY)]
        elif words[at + 1] in ("classify", "translate"):
            return None  # trained at the start
        else:
            words += shlex.split(f"{TINY} --context 64")
            words += ["--seeds", "2"] if "my_experiment.py" in words else []
    if words[1] == "train" and "--resume" in words and "--steps" in words:
        words[words.index("--steps") + 1] = "8"
    return shlex.join(words)


def blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.S | re.M)


def call(words: list[str], folder: Path) -> str | None:
    """What went wrong; None if nothing did."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    settings = {"cwd": folder, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, *words], timeout=LIMIT, **settings)
    return None if done.returncode == 0 else (done.stderr.strip() or done.stdout)[-500:]


def main() -> int:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        todo = prepare(folder)
        for index, block in enumerate(blocks(text)):
            own = "my_experiment.py" in block
            path = folder / ("my_experiment.py" if own else f"block{index}.py")
            path.write_text(block)
        for command in commands(text):
            reason = next((why for part, why in NOT_RUN.items() if part in command), None)
            if command.startswith("make"):
                subprocess.run(
                    ["make", "-n", *shlex.split(command)[1:]],
                    cwd=ROOT,
                    check=True,
                    stdout=subprocess.DEVNULL,
                )
            if reason is None and (here := small(command)) is not None:
                todo.append(here)
            else:
                print(f"not run: {command} ({reason or 'trained first'})")
        todo += [f"python {path.name}" for path in sorted(folder.glob("block*.py"))]
        for command in todo:
            program, *words = shlex.split(command)
            fault = call([*(["-m", "tlite"] if program == "tlite" else []), *words], folder)
            failed += fault is not None
            print(
                f"{'wrong' if fault else 'ran'}: {command}" + (f"\n{fault}" if fault else ""),
                flush=True,
            )
    return 2 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
