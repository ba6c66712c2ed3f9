"""Wrong command lines, drawn from a grammar: each ends with exit code 2 and one line.

Some are valid, and may end with 0; those that certainly are not must not.
"""

import os
import re
import shutil
import signal
import zlib
from functools import cache
from pathlib import Path

from tests.attack.processes import Fault, Process
from tests.attack.workspace import Case, Workspace
from tlite.cli import main

RUN_KINDS = ("generator", "classifier", "translator")
TINY = "--width 8 --num-heads 2 --num-blocks 1 --batch-size 64 --steps 2 --run new"
PAIRS = "--sequences 200 --beam 1 --buckets 1 --pieces 40 --context 40"
COMMANDS = {
    "train my_text": (f"--path {{folder}}/text.txt --context 8 {TINY}", (), 5),
    "train reviews_demo": (f"--reviews 60 {TINY}", (), 2),
    "train copy_task": (f"{PAIRS} {TINY}", (), 2),
    "train": ("--resume run", RUN_KINDS[:1], 3),
    "evaluate": ("run", RUN_KINDS, 4),
    "generate": ("run --tokens 20", RUN_KINDS[:1], 5),
    "classify": ("run not good é", RUN_KINDS[1:2], 4),
    "translate": ("run a b c", RUN_KINDS[2:], 4),
    "inspect": ("run", RUN_KINDS, 1),
}
"""Command -> valid arguments, the kinds of run they may be about, and relative frequency."""
TEXT_COMMANDS = ("classify", "translate")  # any words are valid
NOT_UTF8 = b"a\xff"
ODD = ["x", "a" * 5000, NOT_UTF8, "é" * 99, "\x1b[2J", "\x1b]0;title\x07", "..", "", "-1"]
WRONG_TYPE = {
    "INT": ["x", "1.5", "nan", "", "1e3", "²", NOT_UTF8],
    "FLOAT": ["x", "nan", "", "1,5", NOT_UTF8],
    "CHOICE": ["nope", "", "a" * 300, NOT_UTF8],
    "FLAG": ["perhaps"],
}
NUMBERS = ["-1", "0", "1000000000", "2147483648", "1" + "0" * 20, "-1" + "0" * 20]
EXTREME = {
    "INT": NUMBERS,
    "FLOAT": [*NUMBERS, "inf", "-inf", "1e-400", "1e308"],
    "STR": [*ODD, "a" * 100_000, "$x_{$", "\n", "--"],
    "RUN": ["", "a" * 300, "/dev/null/x", NOT_UTF8, "/"],
}
ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
ENVIRONMENTS = [
    {"environment": ASCII},
    {"environment": ASCII | {"PYTHONIOENCODING": "ascii"}},
    {"streams": (None, "")},
    {"streams": ("/dev/null", None)},
    {"streams": ("/dev/null", "/dev/full")},
    {"streams": ("/dev/null", "|")},
]


def grammar(case: Case) -> None:
    """Run one command line."""
    line = CommandLine(case)
    case.row = f"lines: {line.command.split()[0]}"
    process = line.start()
    case.action = f"tlite {' '.join(process.arguments)[:160]!r}"
    line.check(process)


class CommandLine:
    """A valid command line and its environment, with one or two mistakes."""

    def __init__(self, case: Case):
        self.case, workspace, rng = case, case.workspace, case.rng
        self.workspace, self.rng, self.folder = workspace, rng, case.folder
        commands = {
            command: (arguments, [kind for kind in kinds if kind in workspace.kinds], frequency)
            for command, (arguments, kinds, frequency) in COMMANDS.items()
            if not kinds or {*kinds} & {*workspace.kinds}
        }
        weights = [frequency for *_, frequency in commands.values()]
        self.command = rng.choices(list(commands), weights)[0]
        arguments, kinds, _ = commands[self.command]
        arguments = arguments.format(folder=workspace.folder)
        self.words = [*self.command.split(), *arguments.split()]
        self.kind = rng.choice(kinds) if kinds else None
        self.is_invalid = False  # certainly: exit code 0 is a fault
        self.may_be_long = False
        self.settings = {}
        mistakes = [self.change_value] * 3
        mistakes += [self.replace_path, self.change_environment, self.misspell, self.add_words]
        for mistake in rng.sample(mistakes, rng.choice((1, 1, 2))):
            mistake()

    def start(self) -> Process:
        if self.kind:
            shutil.copytree(self.workspace.reference(self.kind).run, self.folder / "run")
        if not self.settings and self.rng.random() < 0.7:
            self.settings["call"] = main
        return self.case.start(self.words, **self.settings)

    def check(self, process: Process) -> None:
        """Raise a `Fault` for how the process ended, and for what it left."""
        if self.may_be_long and not process.wait(15):
            process.signal(signal.SIGINT)
            process.end(0, 2, 130, -signal.SIGINT, seconds=60)
            return
        has_pipe = "|" in self.settings.get("streams", ())
        # 1: nobody reads the output.
        process.end(*((0, 1, 2, -signal.SIGPIPE) if has_pipe else (0, 2)), seconds=120)
        new = self.folder / "new"
        if new.exists() and not (new / "config.json").exists():
            raise Fault("an incomplete run folder remains")
        if self.is_invalid and process.code == 0:
            raise Fault("an invalid command line ended with exit code 0")

    # Mistakes

    def change_value(self) -> None:
        """Omit an option's value, give one of another type or out of range, or give two."""
        option, kind = self.rng.choice(options(self.workspace, self.command))
        if option in self.words and self.rng.random() < 0.5:
            i = self.words.index(option)
            del self.words[i : i + 2]
        self.words.append(option)
        number = self.rng.random()
        if kind == "FILE":
            self.words.append(self.make_wrong_path())
            self.is_invalid = option in ("--path", "--resume") and self.words[-1] != "long"
        elif kind != "FLAG" and number < 0.1:
            self.is_invalid = True
        elif kind in WRONG_TYPE and (kind not in EXTREME or number < 0.5):
            self.words.append(self.rng.choice(WRONG_TYPE[kind]))
            self.is_invalid = kind != "FLAG" or self.command not in TEXT_COMMANDS
        else:
            self.words.append(self.rng.choice(EXTREME[kind]))
            self.may_be_long |= kind in ("INT", "FLOAT")
            is_negative = kind == "FLOAT" and self.words[-1] == "-1"
            self.is_invalid |= is_negative and option != "--length-penalty"

    def replace_path(self) -> None:
        """Give another file or folder instead of a run or a text."""
        paths = ("run", f"{self.workspace.folder}/text.txt")
        i = next((i for i, word in enumerate(self.words) if word in paths), 1)
        self.words[i] = self.make_wrong_path()
        self.is_invalid = self.words[i] != "long"

    def change_environment(self) -> None:
        """Close, fill or cut standard input and output; choose a locale with few characters."""
        if self.command in TEXT_COMMANDS and self.rng.random() < 0.5:
            self.words = self.words[:2]
            self.settings["streams"] = (self.make_wrong_path(is_input=True), "")
        else:
            self.settings |= self.rng.choice(ENVIRONMENTS)
            self.is_invalid |= "/dev/full" in self.settings.get("streams", ())

    def misspell(self) -> None:
        """Name a command, an experiment, a run or an option that does not exist."""
        i, self.is_invalid = self.rng.randrange(3), True
        if i < 2:
            self.words[min(i, len(self.words) - 1)] = word = self.rng.choice(ODD)
            self.is_invalid = word != ".."  # it may be a folder of runs
        else:
            wrong = ["--=x", "--x=", "-x", "--" + "a" * 3000, b"--\xff", "--é", "--", "-"]
            self.words.append(self.rng.choice(wrong))
            self.is_invalid = self.words[-1] not in ("--", "-")

    def add_words(self) -> None:
        """Append words; sometimes after the command alone."""
        if self.rng.random() < 0.2:
            self.words, self.kind = self.words[:1], None
        self.words += self.rng.choices([*ODD, "x" * 50_000], k=2)
        self.is_invalid = self.command not in TEXT_COMMANDS

    def make_wrong_path(self, is_input: bool = False) -> str | bytes:
        """Make a file or folder that is not the expected one; `is_input`: one that can be read."""
        files = {
            "empty": lambda p: p.touch(),
            "binary": lambda p: p.write_bytes(self.rng.randbytes(4000)),
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
        missing = ["nowhere", "", "a" * 300, "a/" * 3000, "é", NOT_UTF8, "/", "/dev/null/x"]
        names = [*files, "/dev/zero", "/dev/null", "/dev/urandom"]
        name = self.rng.choice(names if is_input else [*names, *others, *missing])
        if name in files | others and not os.path.lexists(self.folder / name):
            (files | others)[name](self.folder / name)
        return name


@cache
def gz_of_zeros() -> bytes:
    """Return 64 MiB of zeros, compressed."""
    compressor = zlib.compressobj(1, wbits=31)
    return compressor.compress(bytes(64 << 20)) + compressor.flush()


@cache
def options(workspace: Workspace, command: str) -> list[tuple[str, str]]:
    """Return every option of a command, and the type of its value, from its help."""
    folder = workspace.new_folder(f"help-{command}-{os.getpid()}")
    words = ["train", "--resume", "run"] if command == "train" else command.split()
    out = workspace.start([*words, "--help"], folder, call=main).end(0).out
    kinds = {}
    for option, kind in re.findall(r"^│ (--[\w-]+)(?:,? (\S+))?", out, re.MULTILINE):
        kind = kind.removeprefix("{None}|").strip("[]")
        kind = "FLAG" if kind.startswith("--") else "CHOICE" if kind.startswith("{") else kind
        kind = "RUN" if option == "--run" else "FILE" if option == "--path" else kind
        kinds[option] = "FILE" if kind == "PATH" else kind
    shutil.rmtree(folder)
    return sorted((o, k) for o, k in kinds.items() if k in {*WRONG_TYPE, *EXTREME, "FILE"})
