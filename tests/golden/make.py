"""Made the golden cases, once, on the tree of 23 November 2026 (3bb2909); kept, not run again.

    python -m tests.golden.make FOLDER

FOLDER is scratch. It ran with the settings that tests have (tests/conftest.py), but the kept runs
themselves were trained by commands, as users train them.
"""

import dataclasses
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).parents[2]))
import tests.conftest  # noqa: F401
from tests.helpers import golden
from tlite.config import to_dict
from tlite.data.download import data_folder
from tlite.experiment_data import find_data
from tlite.experiment_files import find_experiments, load_variants
from tlite.models import make_model
from tlite.own_code import name_files
from tlite.recipes.kinds import RECIPES
from tlite.training.named import by_name

HERE = Path(__file__).parent
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not name.startswith(("XLA", "JAX"))
} | {"PYTHONPATH": str(Path(__file__).parents[2])}


PREPARE = "prepare documents.jsonl corpus --tokenizer bytes --processes 1 --validation-fraction 0.1"
# Experiments whose data or model is the user's, and sizes that these would decide.
OF_USERS = ("classify", "finetune_shakespeare", "finetune_trec", "text", "translate")
OF_USERS += ("gpt2", "gpt2_xl")
SIZES = {"vocabulary_size": 300, "source_vocabulary_size": 300, "num_classes": 3}


def write_data() -> None:
    """Texts of a small grammar of our own."""
    draw = random.Random(0)
    things, colours = ["lamp", "radio", "tent", "novel"], ["red", "blue", "old", "small"]
    marks = {"good": (4, 5), "fine": (3,), "bad": (1, 2)}
    lines, rows, documents = [], ["review,stars,good"], []
    for _ in range(150):
        mark = draw.choice(list(marks))
        stars = draw.choice(marks[mark])
        thing, colour = draw.choice(things), draw.choice(colours)
        text = f"The {colour} {thing} is {mark}. We had it for {draw.randint(2, 90)} days."
        lines.append(text)
        rows.append(f'"{text}",{stars},{"yes" if stars > 2 else "no"}')
        documents.append(json.dumps({"text": text}))
    golden.DATA.mkdir(exist_ok=True)
    (golden.DATA / "text.txt").write_text("\n".join(lines) + "\n")
    (golden.DATA / "table.csv").write_text("\n".join(rows) + "\n")
    (golden.DATA / "documents.jsonl").write_text("\n".join(documents) + "\n")
    numbers = {"two": "zwei", "three": "drei", "four": "vier", "five": "fünf"}
    colours = {"red": "rote", "blue": "blaue", "old": "alte", "small": "kleine"}
    things = {"birds": "Vögel", "houses": "Häuser", "lamps": "Lampen", "dogs": "Hunde"}
    pairs = [
        f"{n} {c} {t}\t{numbers[n]} {colours[c]} {things[t]}"
        for n in numbers for c in colours for t in things
    ]  # fmt: skip
    (golden.DATA / "pairs.tsv").write_text("\n".join(["english\tgerman", *pairs]) + "\n")
    subprocess.run(
        [sys.executable, "-m", "tlite", *shlex.split(PREPARE)],
        cwd=golden.DATA,
        env=ENVIRONMENT,
        check=True,
    )


def train(name: str, folder: Path) -> Path:
    """The run of a case, as a user trains it, and stopped as the case says."""
    case, run = golden.CASES[name], folder / golden.file_name(name)
    words = [*golden.command(case.train), "--run", str(run)]
    if "--steps" not in words:
        words += ["--steps", str(golden.STEPS)]
    # Within a call of several steps, and not at a validation.
    stopped = {"killed": (7, golden.STEPS - 4), "by a signal": (golden.MORE, 1)}
    every, until = stopped.get(case.how, (None, None))
    words += ["--evaluate-every", str(every)] if every else []
    process = subprocess.Popen([sys.executable, "-m", "tlite", *words], env=ENVIRONMENT)
    if every:
        at = golden.run_of(run, case.how)
        while process.poll() is None and len(steps(at)) < until:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL if case.how == "killed" else signal.SIGTERM)
    code = process.wait()
    assert run.exists(), name
    print(name, "ended with", code, "at step", steps(golden.run_of(run, case.how))[-1:])
    return run


def steps(run: Path) -> list[str]:
    path = run / "metrics.jsonl"
    return (
        re.findall(r'"step": (\d+), "split": "training"', path.read_text()) if path.exists() else []
    )


def pack(run: Path) -> None:
    """Keep a run, with a mark for the folder of its data."""
    shutil.rmtree(run / "plots", ignore_errors=True)
    for path in run.rglob("*.json"):
        content = path.read_text(encoding="utf-8")
        if str(golden.DATA) in content:
            path.write_text(content.replace(str(golden.DATA), golden.DATA_MARK), encoding="utf-8")
    (HERE / "runs").mkdir(exist_ok=True)

    def nobody(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(HERE / "runs" / f"{run.name}.tar.gz", "w:gz") as archive:
        archive.add(run, run.name, filter=nobody)


def expected(name: str, folder: Path) -> dict:
    case = golden.CASES[name]
    run = golden.unpack(name, folder)
    name_files([golden.DATA / "own.py"])
    at, new = golden.run_of(run, case.how), folder / f"course-{golden.file_name(name)}"
    found = {}
    if case.how != "killed":
        found["said"] = [golden.said(line, run=run) for line in case.ask]
    if case.devices:
        found["first batch"], found["course"] = golden.course(at, new, 1)
    if name == "characters":
        found["mixed"] = golden.course(at, folder / "mixed", 1, precision="mixed")[1]
    if (new / "pretraining").exists():
        found["before"] = golden.losses_of(new / "pretraining")
    found["evaluated"], found["gone on"] = golden.gone_on(at)
    if case.how == "killed":
        found["said"] = [golden.said(line, run=run) for line in case.ask]
    return found


def experiments() -> dict:
    """Of each experiment: what its file says; with what its data decides, and the parameters."""
    found = {}
    for name in sorted(find_experiments()):
        experiment, variants = load_variants(name)
        settled = experiment
        if name not in OF_USERS:
            settled = RECIPES[type(experiment)].prepare(find_data(experiment)).experiment
        known = vars(settled.model)
        sizes = {field: size for field, size in SIZES.items() if known.get(field) == 0}
        settled = dataclasses.replace(settled, model=dataclasses.replace(settled.model, **sizes))
        shapes = jax.eval_shape(lambda m=settled.model: make_model(m, key=jax.random.key(0)))
        config = json.dumps(to_dict(settled)).replace(str(data_folder().resolve()), "@real data@")
        found[name] = {
            "written": to_dict(experiment),
            "variants": len(variants),
            "config": json.loads(config),
            "parameters": {n: list(a.shape) for n, a in by_name(shapes).items()},
        }
    return found


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not golden.DATA.joinpath("corpus").exists():
        write_data()
    only = sys.argv[2:]
    for name in only or golden.CASES:
        if not (HERE / "runs" / f"{golden.file_name(name)}.tar.gz").exists():
            pack(train(name, folder / "trained"))
    found = {}
    path = HERE / "expected.json"
    if path.exists():
        found = json.loads(path.read_text())
    for name in [name for name in only or golden.CASES if name not in found]:
        shutil.rmtree(folder / "tried", ignore_errors=True)
        (folder / "tried").mkdir()
        found[name] = expected(name, folder / "tried")
        rows = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in found.items())
        path.write_text("{\n" + rows + "\n}\n")
    if only:
        return
    (HERE / "randomness.json").write_text(json.dumps(golden.randomness()) + "\n")
    rows = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in experiments().items())
    (HERE / "experiments.json").write_text("{\n" + rows + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
