"""The command line of `tlite`: reads it and hands the work to `tlite.commands`."""

import contextlib
import dataclasses
import difflib
import importlib.util
import io
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import tyro

from tlite.errors import UserError, pass_over_late_writes
from tlite.options import Classify, Evaluate, Generate, Inspect, Resume, Translate

COMMANDS = {
    "train": Resume,
    "evaluate": Evaluate,
    "generate": Generate,
    "classify": Classify,
    "translate": Translate,
    "inspect": Inspect,
}
USAGE = """tlite: transformers as short pure functions

  tlite train EXPERIMENT [OPTIONS]     train an experiment (a name in experiments/, or a file)
  tlite train --resume RUN             go on with a run from its last checkpoint
  tlite evaluate RUN [OPTIONS]         how good a run's models are
  tlite generate RUN [OPTIONS]         write text with a generator
  tlite classify RUN [TEXT ...]        the classes of texts by a classifier
  tlite translate RUN [TEXT ...]       the translations of texts by a translator
  tlite inspect RUN                    pictures of what a run has learned, on one page

Each command lists its options with --help."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, or 2 with one sentence on stderr."""
    if arguments is None:  # a process of its own
        pass_over_late_writes()
        arguments = sys.argv[1:]
    try:
        if not arguments or arguments[0] in ("-h", "--help"):
            print(USAGE)
            return 0
        command, *rest = arguments
        if command not in COMMANDS:
            raise UserError(f"there is no command {command!r}{did_you_mean(command, COMMANDS)}")
        from tlite.devices import prepare_devices

        prepare_devices()
        if command == "train":
            _train(rest)
        else:
            _run_command(command, COMMANDS[command], rest)
        return 0
    except UserError as error:
        print(f"tlite: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ntlite: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        sys.stdout = None
        return 0


def _train(arguments: list[str]) -> None:
    from tlite import commands

    if any(argument.split("=")[0] == "--resume" for argument in arguments):
        options = parse(Resume, arguments, "tlite train")
        commands.resume(options.resume, options.member)
        return
    if not arguments or arguments[0].startswith("-"):
        if set(arguments) & {"-h", "--help"}:
            print(f"{USAGE}\n\nexperiments: {', '.join(find_experiments())}")
            return
        raise UserError(f"name an experiment to train: {', '.join(find_experiments())}")
    experiment = load_experiment(arguments[0])
    kind = dataclasses.make_dataclass(
        "Train",
        [
            ("experiment", type(experiment), dataclasses.field(default=experiment)),
            (
                "run",
                Annotated[
                    Path | None,
                    tyro.conf.arg(
                        help="The folder to make for the run; runs/NAME/TIME unless given."
                    ),
                ],
                None,
            ),
        ],
    )
    kind.__doc__ = f"Train experiments/{arguments[0]}."
    options = parse(kind, arguments[1:], f"tlite train {arguments[0]}")
    commands.train(options.experiment, options.run)


def _run_command(name: str, kind: type, arguments: list[str]) -> None:
    from tlite import commands

    options = vars(parse(kind, arguments, f"tlite {name}"))
    getattr(commands, name)(options.pop("run"), **options)


def parse(kind: type, arguments: list[str], program: str) -> Any:
    """An instance of a dataclass from the command line.

    Raises:
        UserError: an unknown option (the nearest is named), or a value that does not fit.
    """
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            value, unknown = tyro.cli(
                kind,
                args=arguments,
                prog=program,
                return_unknown_args=True,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands),
            )
    except ValueError as error:
        raise UserError(str(error)) from error
    except SystemExit as stop:
        if stop.code:
            raise UserError(_first_sentence(complaint.getvalue())) from None
        raise
    if unknown:
        raise UserError(
            f"there is no option {unknown[0]}{did_you_mean(unknown[0], _options(kind))}"
        )
    return value


def _options(kind: Any) -> list[str]:
    """Every option of a dataclass and of the instances in it."""
    names = []
    for field in dataclasses.fields(kind):
        value = getattr(kind, field.name, None)
        inner = dataclasses.is_dataclass(value)
        names += _options(value) if inner else ["--" + field.name.replace("_", "-")]
    return names


def _first_sentence(box: str) -> str:
    """What stands in a box that tyro has drawn, up to its first rule."""
    lines = [line.strip("│╭╮╰╯─ ") for line in box.splitlines()]
    rules = [index for index, line in enumerate(lines[1:], 1) if not line]
    sentence = " ".join(lines[1 : rules[0]] if rules else lines).removesuffix(" .")
    if missing := re.match(r"Missing from (.*): [A-Z]+ (.*)\. \(required\)", sentence):
        return f"{missing[1]} needs {missing[2][0].lower()}{missing[2][1:]}"
    return re.sub(r"^Error parsing experiment(\.\w+)?: ", "", sentence)


def find_experiments() -> dict[str, Path]:
    """Experiment files by name: in ./experiments, or beside the package."""
    folders = (Path("experiments"), Path(__file__).parent.parent / "experiments")
    folder = next((f for f in folders if f.is_dir()), folders[0])
    return {path.stem: path for path in sorted(folder.glob("*.py"))}


def load_experiment(name: str) -> Any:
    """The `experiment` that a Python file of the user's exports.

    Raises:
        UserError: there is no such file (the nearest is named), or it exports none.
    """
    known = find_experiments()
    path = Path(name) if name.endswith(".py") else known.get(name)
    if path is None or not path.is_file():
        raise UserError(
            f"there is no experiment {name!r} among {', '.join(known)}{did_you_mean(name, known)}"
        )
    # A file may import its siblings: `from experiments.demo import experiment`.
    sys.path.insert(0, str(path.resolve().parent.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "experiment"):
        raise UserError(f"{path} has no `experiment`")
    return module.experiment


def did_you_mean(word: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(word.split("=")[0], list(known), n=1, cutoff=0.5)
    return f": did you mean {nearest[0]}?" if nearest else ""
