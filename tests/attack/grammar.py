"""Bad command lines, drawn from a grammar: each must end with exit code 2 and one sentence, or what
tyro says of a wrong option.

Some are fine in fact, and may end well; those that certainly are not must not.
"""

import os
import random
import re
import shutil
import signal
import zlib
from functools import cache
from pathlib import Path

from tests.attack.kinds import Work
from tests.attack.processes import Fault, Process, Result
from tlite.cli import main

NEEDS = ("generator", "classifier", "translator")
TINY = "--width 8 --num-heads 2 --num-blocks 1 --batch-size 64 --steps 2 --run new"
PAIRS = "--sequences 200 --beam 1 --buckets 1 --pieces 40 --context 40"
# What each command is given, the kinds of run it may be about, and how often it is drawn.
BASES = {
    "train my_text": (f"--path {{work}}/text.txt --context 8 {TINY}", (), 5),
    "train reviews_demo": (f"--reviews 60 {TINY}", (), 2),
    "train copy_task": (f"{PAIRS} {TINY}", (), 2),
    "train": ("--resume run", NEEDS[:1], 3),
    "evaluate": ("run", NEEDS, 4),
    "generate": ("run --tokens 20", NEEDS[:1], 5),
    "classify": ("run not good é", NEEDS[1:2], 4),
    "translate": ("run a b c", NEEDS[2:], 4),
    "inspect": ("run", NEEDS, 1),
}
TEXTS = ("classify", "translate")  # take any words
BYTES = b"a\xff"  # no UTF-8
ODD = ["x", "a" * 5000, BYTES, "é" * 99, "\x1b[2J", "\x1b]0;title\x07", "..", "", "-1"]
WRONG = {
    "INT": ["x", "1.5", "nan", "", "1e3", "²", BYTES],
    "FLOAT": ["x", "nan", "", "1,5", BYTES],
    "CHOICE": ["nope", "", "a" * 300, BYTES],
    "FLAG": ["perhaps"],
}
NUMBERS = ["-1", "0", "1000000000", "2147483648", "1" + "0" * 20, "-1" + "0" * 20]
FAR = {
    "INT": NUMBERS,
    "FLOAT": [*NUMBERS, "inf", "-inf", "1e-400", "1e308"],
    "STR": [*ODD, "a" * 100_000, "$x_{$", "\n", "--"],
    "RUN": ["", "a" * 300, "/dev/null/x", BYTES, "/"],
}
ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
SURROUNDINGS = [
    {"environment": ASCII},
    {"environment": ASCII | {"PYTHONIOENCODING": "ascii"}},
    {"streams": (None, "")},
    {"streams": ("/dev/null", None)},
    {"streams": ("/dev/null", "/dev/full")},
    {"streams": ("/dev/null", "|")},
]


def grammar(work: Work, folder: Path, _: int, chance: random.Random, result: Result) -> None:
    """One line."""
    line = Line(work, chance, folder)
    result.row = f"lines: {line.command.split()[0]}"
    process = line.start()
    result.where = f"tlite {' '.join(process.arguments)[:160]!r}"
    try:
        line.judge(process)
    finally:
        for name in line.modes:
            (folder / name).chmod(0o755)


class Line:
    """A command line with what is around it: first as it should be, then spoiled."""

    def __init__(self, work: Work, chance: random.Random, folder: Path):
        self.work, self.chance, self.folder = work, chance, folder
        bases = {
            command: (given, [kind for kind in kinds if kind in work.kinds], often)
            for command, (given, kinds, often) in BASES.items()
            if not kinds or {*kinds} & {*work.kinds}
        }
        weights = [often for *_, often in bases.values()]
        self.command = chance.choices(list(bases), weights)[0]
        given, kinds, _ = bases[self.command]
        self.words = [*self.command.split(), *given.format(work=work.folder).split()]
        self.run = chance.choice(kinds) if kinds else None
        self.certain = self.long = False  # it can't end well; it may take long, as it was asked to
        self.settings, self.modes = {}, {}
        ways = [self.value] * 3 + [self.place, self.around, self.misspelt, self.more]
        for way in chance.sample([*ways, self.other_run, self.forbidden], chance.choice((1, 1, 2))):
            way()

    def start(self) -> Process:
        if self.run:
            shutil.copytree(self.work.reference(self.run).run, self.folder / "run")
        # What was forbidden may have given way to something else in the run's place.
        self.modes = {n: mode for n, mode in self.modes.items() if (self.folder / n).exists()}
        for name, mode in self.modes.items():
            (self.folder / name).chmod(mode)
        if not self.settings and not self.modes and self.chance.random() < 0.7:
            self.settings["call"] = main
        return self.work.start(self.words, self.folder, **self.settings)

    def judge(self, process: Process) -> None:
        """Raises a `Fault` for how it ended, and for what it left."""
        if self.long and not process.wait(15):
            process.signal(signal.SIGINT)
            process.end(0, 2, 130, -signal.SIGINT, seconds=60)
            return
        pipe = "|" in self.settings.get("streams", ())
        process.end(*((0, 2, 141, -13) if pipe else (0, 2)), seconds=120)
        if (self.folder / "new").exists() and not (self.folder / "new" / "config.json").exists():
            raise Fault("half a run folder remains")
        if self.certain and process.code == 0:
            raise Fault("it ended well")

    # What can be wrong with it

    def value(self) -> None:
        """An option's value is missing, of another type, out of range; or it is given twice."""
        option, kind = self.chance.choice(options(self.work, self.command))
        if option in self.words and self.chance.random() < 0.5:
            place = self.words.index(option)
            del self.words[place : place + 2]
        self.words.append(option)
        drawn = self.chance.random()
        if kind == "FILE":
            self.words.append(self.hazard())
            self.certain = option in ("--path", "--resume") and self.words[-1] != "long"
        elif kind != "FLAG" and drawn < 0.1:
            self.certain = True
        elif kind in WRONG and (kind not in FAR or drawn < 0.5):
            self.words.append(self.chance.choice(WRONG[kind]))
            self.certain = kind != "FLAG" or self.command not in TEXTS
        else:
            self.words.append(self.chance.choice(FAR[kind]))
            self.long |= kind in ("INT", "FLOAT")
            negative = kind == "FLOAT" and self.words[-1] == "-1"
            self.certain |= negative and option != "--length-penalty"

    def place(self) -> None:
        """Another file or folder where a run or a text is wanted."""
        wanted = ("run", f"{self.work.folder}/text.txt")
        place = next((i for i, word in enumerate(self.words) if word in wanted), 1)
        self.words[place] = self.hazard()
        self.certain = self.words[place] != "long"

    def around(self) -> None:
        """Standard input and output are closed, full, endless; a terminal has few characters."""
        if self.command in TEXTS and self.chance.random() < 0.5:
            self.words = self.words[:2]
            self.settings["streams"] = (self.hazard(opens=True), "")
        else:
            self.settings |= self.chance.choice(SURROUNDINGS)
            self.certain |= "/dev/full" in self.settings.get("streams", ())

    def misspelt(self) -> None:
        """A command, an experiment, a run or an option that there is not."""
        place, self.certain = self.chance.randrange(3), True
        if place < 2:
            self.words[min(place, len(self.words) - 1)] = odd = self.chance.choice(ODD)
            self.certain = odd != ".."  # a folder of runs, it may be
        else:
            known = ["--=x", "--x=", "-x", "--" + "a" * 3000, b"--\xff", "--é", "--", "-"]
            self.words.append(self.chance.choice(known))
            self.certain = self.words[-1] not in ("--", "-")

    def more(self) -> None:
        """Words where there should be none, or none where there should be."""
        if self.chance.random() < 0.2:
            self.words, self.run = self.words[:1], None
        self.words += self.chance.choices([*ODD, "x" * 50_000], k=2)
        self.certain = self.command not in TEXTS

    def other_run(self) -> None:
        self.run = self.chance.choice([kind for kind in NEEDS if kind in self.work.kinds])

    def forbidden(self) -> None:
        """What may not be written, or not even be read."""
        if not self.run:
            self.modes["."], self.certain = 0o555, True
            return
        name = self.chance.choice(["", "/config.json", "/checkpoints", "/metrics.jsonl"])
        mode = self.modes["run" + name] = self.chance.choice([0o000, 0o555])
        self.certain |= mode == 0 and name in ("", "/config.json")

    def hazard(self, opens: bool = False) -> str | bytes:
        """A file or folder that is not what is wanted; `opens`: that a shell can read from."""
        files = {
            "empty": lambda p: p.touch(),
            "binary": lambda p: p.write_bytes(self.chance.randbytes(4000)),
            "utf-16.txt": lambda p: p.write_text("some text\n" * 99, encoding="utf-16"),
            "long": lambda p: p.write_text("long " * 100_000),
            "huge.txt": lambda p: os.truncate(p, p.touch() or 50 << 30),
        }
        others = {
            "bomb.txt.gz": lambda p: p.write_bytes(gz_of_zeros() * 100),
            "cut.txt.gz": lambda p: p.write_bytes(gz_of_zeros()[:500]),
            "fifo": os.mkfifo,
            "folder": Path.mkdir,
            "loop": lambda p: p.symlink_to(p.name),
        }
        nowhere = ["nowhere", "", "a" * 300, "a/" * 3000, "é", BYTES, "/", "/dev/null/x"]
        names = [*files, "/dev/zero", "/dev/null", "/dev/urandom"]
        name = self.chance.choice(names if opens else [*names, *others, *nowhere])
        if name in files | others and not os.path.lexists(self.folder / name):
            (files | others)[name](self.folder / name)
        return name


@cache
def gz_of_zeros() -> bytes:
    """64 MB in a few bytes."""
    packer = zlib.compressobj(1, wbits=31)
    return packer.compress(bytes(64 << 20)) + packer.flush()


@cache
def options(work: Work, command: str) -> list[tuple[str, str]]:
    """Every option of a command and what it takes, as its help says."""
    folder = work.case(f"help-{command}-{os.getpid()}")
    words = ["train", "--resume", "run"] if command == "train" else command.split()
    out = work.start([*words, "--help"], folder, call=main).end(0).out
    found = {}
    for option, kind in re.findall(r"^│ (--[\w-]+)(?:,? (\S+))?", out, re.MULTILINE):
        kind = kind.removeprefix("{None}|").strip("[]")
        kind = "FLAG" if kind.startswith("--") else "CHOICE" if kind.startswith("{") else kind
        kind = "RUN" if option == "--run" else "FILE" if option == "--path" else kind
        found[option] = "FILE" if kind == "PATH" else kind
    shutil.rmtree(folder)
    return sorted((o, k) for o, k in found.items() if k in {*WRONG, *FAR, "FILE"})
