"""The command line of `tlite`: reads it and hands the work to `tlite.commands`."""

import contextlib
import dataclasses
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import tyro
import tyro.constructors

from tlite import processes
from tlite.errors import Interrupted, UserError, system_reason
from tlite.experiment_files import (
    did_you_mean,
    find_experiment,
    find_experiments,
    load_experiment,
)
from tlite.options import (
    Classify,
    Evaluate,
    Export,
    Generate,
    Inspect,
    Launch,
    Plan,
    Prepare,
    Processes,
    Resume,
    Translate,
)
from tlite.own_code import name_files
from tlite.terminal import printable

COMMANDS = {
    "train": Resume,
    "launch": Launch,
    "prepare": Prepare,
    "plan": None,
    "evaluate": Evaluate,
    "generate": Generate,
    "classify": Classify,
    "translate": Translate,
    "inspect": Inspect,
    "export": Export,
}
USAGE = """tlite: transformers as short pure functions

  tlite train EXPERIMENT [OPTIONS]     train an experiment (a name in experiments/, or a file)
  tlite train --resume RUN             go on with a run from its last checkpoint
  tlite plan EXPERIMENT --mesh 64x4    what a step would take on devices that are not there
  tlite prepare SOURCE FOLDER          token files of texts of any size, to train on
  tlite launch -n 2 train ...          train as several processes on this machine
  tlite evaluate RUN [OPTIONS]         how good a run's models are
  tlite generate RUN [OPTIONS]         write text with a generator
  tlite classify RUN [TEXT ...]        the classes of texts by a classifier
  tlite translate RUN [TEXT ...]       the translations of texts by a translator
  tlite inspect RUN                    pictures of what a run has learned, on one page
  tlite export RUN FOLDER              a run's model for Hugging Face's transformers

Where it says RUN all but train take a Hugging Face folder, or a name on its hub, too.
Each command lists its options with --help."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, or 2 with one sentence on stderr."""
    code = _told(lambda: _command(sys.argv[1:] if arguments is None else arguments))
    # What can't be written is told while it can be, and not hidden by a reader who has gone.
    code = _told(sys.stdout.flush) or code
    return _told(lambda: processes.leave(code)) or code


def _told(action: Callable[[], None]) -> int:
    """The exit code of an action; what it fails of is said in one sentence."""
    try:
        action()
        return 0
    except UserError as error:
        return _complain(str(error))
    except Interrupted as stop:  # all of the run's processes together
        return _say(str(stop), stop.exit_code) if processes.is_first() else stop.exit_code
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except SystemExit as stop:  # after --help; or the reader of what is printed has gone
        if processes.count() > 1:
            processes.fail("", stop.code or 0)
        return stop.code or 0
    # The last net: elsewhere these are told with what to do.
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return _complain(f"{name}{system_reason(error)}")
    except RecursionError:
        return _complain("what was to be read is nested too deeply")
    except Exception as error:
        if sentence := processes.lost_peer(error):
            return _complain(sentence)
        no_memory = isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in str(error)
        if not isinstance(error, MemoryError) and not no_memory:
            raise
        return _complain("there is not enough memory: a smaller model, batch or text needs less")


def _complain(sentence: str, code: int = 2) -> int:
    """Say what this process fails of, which is then the end of all of the run's processes."""
    if processes.count() > 1:
        processes.fail(_line(sentence), code)
    return _say(sentence, code)


def _say(sentence: str, code: int) -> int:
    start = "\n" if code > 128 and sys.stderr.isatty() else ""  # after the terminal's ^C
    print(start + _line(sentence), file=sys.stderr)
    return code


def _line(sentence: str) -> str:
    """One line, whatever a user has given."""
    return "tlite: " + printable(sentence).replace("\n", "\u240a")


def _command(arguments: list[str]) -> None:
    for argument in arguments:
        if any("\ud800" <= letter <= "\udfff" for letter in argument):
            encoding = sys.getfilesystemencoding().upper()
            advice = "" if encoding == "UTF-8" else " (LC_ALL=C.UTF-8 lets it be UTF-8)"
            raise UserError(
                f"the argument {repr(os.fsencode(argument))[1:]} is not {encoding} text{advice}"
            )
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return
    command, *rest = arguments
    if command not in COMMANDS:
        raise UserError(f"there is no command {command!r}{did_you_mean(command, COMMANDS)}")
    if command == "launch":
        _launch(rest)
    from tlite.devices import prepare_devices

    prepare_devices()
    if command == "train":
        _train(rest)
    elif command == "plan":
        _plan(rest)
    else:
        _run_command(command, COMMANDS[command], rest)


def _launch(arguments: list[str]) -> NoReturn:
    from tlite.launch import launch

    at = arguments.index("train") if "train" in arguments else len(arguments)
    options = parse(Launch, arguments[:at], "tlite launch")
    if at == len(arguments):
        raise UserError("launch needs a command to train: tlite launch -n 2 train EXPERIMENT, say")
    sys.stdout.flush()
    raise SystemExit(launch(arguments[at:], options.processes, options.devices_each))


def _join(arguments: list[str]) -> None:
    """Meet the run's other processes, before an experiment's file may touch a device."""
    if {"-h", "--help"}.isdisjoint(arguments):
        place, _ = _parse(Processes, arguments, "tlite train")
        processes.join(place.coordinator, place.processes, place.process, heartbeat=place.heartbeat)


def _train(arguments: list[str]) -> None:
    if any(argument.split("=")[0] == "--resume" for argument in arguments):
        _join(arguments)
        options = parse(Resume, arguments, "tlite train")
        from tlite import commands

        name_files(options.code)
        commands.resume(options.resume, options.member)
        return
    if not arguments or arguments[0].startswith("-"):
        if set(arguments) & {"-h", "--help"}:
            print(f"{USAGE}\n\nexperiments: {', '.join(find_experiments())}")
            return
        raise UserError(f"name an experiment to train: {', '.join(find_experiments())}")
    file = find_experiment(arguments[0])
    _join(arguments[1:])
    print(printable(f"experiment: {file.resolve()}"), flush=True)
    experiment = load_experiment(file)
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
            ("joined", Processes, Processes()),
        ],
    )
    kind.__doc__ = f"Train experiments/{arguments[0]}."
    options = parse(kind, arguments[1:], f"tlite train {arguments[0]}")
    from tlite import commands

    commands.train(options.experiment, options.run)


def _plan(arguments: list[str]) -> None:
    if not arguments or arguments[0].startswith("-"):
        raise UserError(f"name an experiment to plan: {', '.join(find_experiments())}")
    experiment = load_experiment(find_experiment(arguments[0]))
    fields = [("experiment", type(experiment), dataclasses.field(default=experiment))]
    settings = {"bases": (Plan,), "kw_only": True, "frozen": True}
    kind = dataclasses.make_dataclass("Plan", fields, **settings)
    kind.__doc__ = f"What a step of experiments/{arguments[0]} would take elsewhere."
    options = parse(kind, arguments[1:], f"tlite plan {arguments[0]}")
    import jax

    from tlite.plan import plan, read_mesh

    number, _ = read_mesh(options.mesh, options.tpu)
    if not options.tpu:
        jax.config.update("jax_num_cpu_devices", number)  # before any is looked at
        jax.config.update("jax_platforms", "cpu")
    plan(**vars(options))


def _run_command(name: str, kind: type, arguments: list[str]) -> None:
    options = vars(parse(kind, arguments, f"tlite {name}"))
    from tlite import commands  # imports JAX: a misspelt option is told before that

    if name == "prepare":
        commands.prepare(**options)
        return
    name_files(options.pop("code"))
    getattr(commands, name)(options.pop("run"), **options)


def parse(kind: type, arguments: list[str], program: str) -> Any:
    """An instance of a dataclass from the command line.

    Raises:
        UserError: an unknown option (the nearest is named), or a value that does not fit.
    """
    value, unknown = _parse(kind, arguments, program)
    if unknown and not unknown[0].startswith("-"):
        raise UserError(f"{unknown[0]!r} is one argument too many")
    if unknown:
        raise UserError(
            f"there is no option {unknown[0]}{did_you_mean(unknown[0], _options(kind))}"
        )
    return value


def _parse(kind: type, arguments: list[str], program: str) -> tuple[Any, list[str]]:
    """An instance of a dataclass, and the arguments that it has no place for."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint), _wide(arguments):
            return tyro.cli(
                kind,
                args=arguments,
                prog=program,
                return_unknown_args=True,
                registry=REGISTRY,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands),
            )
    except ValueError as error:
        raise UserError(str(error)) from error
    except SystemExit as stop:
        if stop.code:
            raise UserError(_first_sentence(complaint.getvalue())) from None
        raise


REGISTRY = tyro.constructors.ConstructorRegistry()


@REGISTRY.primitive_rule
def _function(kind: tyro.constructors.PrimitiveTypeInfo):
    """A function of the user's stands in a file: on the command line it can only be replaced."""
    if kind.type is not Callable:
        return None

    def refuse(words: list[str]) -> Callable:
        raise ValueError("a function of your own is handed over in an experiment's file")

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="FUNCTION",
        instance_from_str=refuse,
        is_instance=callable,
        str_from_instance=lambda function: [function.__name__],
    )


@contextlib.contextmanager
def _wide(arguments: list[str]) -> Iterator[None]:
    """Let tyro write what is wrong on one line; its help is as wide as the terminal."""
    before = os.environ.get("COLUMNS")
    if {"-h", "--help"}.isdisjoint(arguments):
        os.environ["COLUMNS"] = "9999"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("COLUMNS", None)
        else:
            os.environ["COLUMNS"] = before


def _options(kind: Any) -> list[str]:
    """Every option of a dataclass and of the instances in it."""
    names = []
    for field in dataclasses.fields(kind):
        value = getattr(kind, field.name, None)
        inner = dataclasses.is_dataclass(value)
        names += ["--" + field.name.replace("_", "-"), *(_options(value) if inner else [])]
    return names


OPTION = r"Error parsing (?:-\w/)?(--[\w-]+): .*"  # and Python's or tyro's own words
COMPLAINTS = {
    r"Missing from (.*): [A-Z]+ (\w)(.*)\. \(required\)": lambda m: (
        f"{m[1]} needs {m[2].lower()}{m[3]}"
    ),
    r"Missing value for argument '(.*?)'": lambda m: f"{m[1]} needs a value",
    r"invalid choice (.*) for argument '(.*?)'\. .* \((.*?),?\)": lambda m: (
        f"{m[2]} can't be {m[1]}: choose one of {m[3]}"
    ),
    rf"{OPTION}\{{(.*?)\}}\|FUNCTION could.* from \['(.*?)'\]": lambda m: (
        f"{m[1]} can't be {m[3]!r}: choose one of {m[2].replace(',', ', ')}"
    ),
    rf"{OPTION}int\(\) with base 10: (.*)": lambda m: f"{m[1]} must be a whole number, not {m[2]}",
    rf"{OPTION}to float: (.*)": lambda m: f"{m[1]} must be a number, not {m[2]}",
    rf"{OPTION}integer string": lambda m: f"{m[1]} has too many digits",
    rf"{OPTION}valid parse for arguments: \[(.*)\]": lambda m: f"{m[1]} can't be {m[2]}",
}


def _first_sentence(box: str) -> str:
    """What stands in a box that tyro has drawn, up to its first rule, in our words."""
    lines = [line.strip("│╭╮╰╯─ ") for line in box.splitlines()]
    text = " ".join(line for line in lines[1:] if line.strip("-"))  # the rules of an ASCII box
    text = re.split(r" Argument helptext:| For full helptext", text)[0]
    for pattern, words in COMPLAINTS.items():
        if found := re.match(pattern, text):
            return words(found)
    text = re.sub(r"^Error parsing (experiment(\.\w+)?: )?", "", text)
    return re.sub(r"'([^']{60})[^']*'", r"'\1...'", text)
