"""The command line of `tlite`: reads it and hands the work to the other files here.

tyro makes dataclasses of the words, and tells what is wrong with them.
"""

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from tlite.cli import options
from tlite.cli.experiment_files import (
    did_you_mean,
    find_experiment,
    find_experiments,
    load_experiment,
    load_variants,
)
from tlite.config import name_files
from tlite.errors import Interrupted, UserError, lack_of_memory, system_reason
from tlite.parallel import devices, processes
from tlite.terminal import printable

COMMANDS = {
    "prepare": (options.Prepare, "preparation"),
    "evaluate": (options.Evaluate, "commands"),
    "generate": (options.Generate, "texts"),
    "classify": (options.Classify, "texts"),
    "translate": (options.Translate, "texts"),
    "compare": (options.Compare, "commands"),
    "inspect": (options.Inspect, "commands"),
    "follow": (options.Follow, "follow"),
    "export": (options.Export, "commands"),
    "experiments": (options.Experiments, "listing"),
    "runs": (options.Runs, "listing"),
}
"""What each can be told, and the file here that has the function of its name; `train`, `plan` and
`launch` read more than options."""
GONE = {
    "--learning-rates": "--vary learning-rate 1e-3 3e-3 trains and compares several",
    "--member": "a seed alone has the numbers that it had among others: --seed S --seeds 1",
    "--follow": "tlite follow RUN --to tensorboard follows a run",
    "--max-megabytes": "a file of up to 2,000 megabytes is read; tlite prepare reads any",
}
"""Options of version 0.2.0, and what to do instead."""
USAGE = """tlite: transformers as short pure functions

  tlite train EXPERIMENT [OPTIONS]     train an experiment (a name in experiments/, or a file)
  tlite train EXPERIMENT --vary NAME VALUE VALUE ...     a study: train and compare its variants
  tlite train --resume RUN             go on with a run, or a study, from its last checkpoint
  tlite plan EXPERIMENT --mesh 64x4    what a step would take on devices that are not there
  tlite prepare SOURCE FOLDER          token files of texts of any size, to train on
  tlite launch -n 2 train ...          train as several processes on this machine
  tlite evaluate RUN [OPTIONS]         how good a run's models are
  tlite generate RUN [OPTIONS]         write text with a generator
  tlite classify RUN [TEXT ...]        the classes of texts by a classifier
  tlite translate RUN [TEXT ...]       the translations of texts by a translator
  tlite compare RUN RUN ...            which is better, seed by seed, and how sure that is
  tlite inspect RUN                    pictures of what a run has learned, on one page
  tlite follow RUN --to tensorboard    its metrics for TensorBoard, or wandb, also as it is trained
  tlite export RUN FOLDER              a run's model for Hugging Face's transformers
  tlite experiments                    what there is to train
  tlite runs [FOLDER]                  what was trained, newest first

Where it says RUN, latest is the newest in ./runs; all but train, compare and follow take a Hugging
Face folder, or a name on its hub, too.
Each command lists its options with --help."""

REGISTRY = ConstructorRegistry()
MARKERS = tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands


class WrongOption(UserError):
    """What tyro says of a command line, in a box of its own."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, or 2 with one sentence on stderr."""
    code = _told(_command, sys.argv[1:] if arguments is None else arguments)
    # What can't be written is told while it can be.
    code = _told(sys.stdout.flush) or code
    return _told(processes.leave, code) or code


def _told(action: Callable, *given: Any) -> int:
    """The exit code of an action; what it fails of is said in one sentence."""
    try:
        action(*given)
        return 0
    except WrongOption as error:  # the same in all of the run's processes
        if processes.is_first():
            print(printable(str(error)), end="", file=sys.stderr)
        return 2
    except UserError as error:
        return _complain(str(error))
    except Interrupted as stop:  # all of the run's processes together
        return _say(str(stop), stop.exit_code) if processes.is_first() else stop.exit_code
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except SystemExit as stop:  # after --help, or launch
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
        if sentence := lack_of_memory(error) or devices.lack_of_platform():
            return _complain(sentence)
        raise


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
        try:
            argument.encode()
        except UnicodeEncodeError:
            encoding = sys.getfilesystemencoding().upper()
            advice = "" if encoding == "UTF-8" else " (LC_ALL=C.UTF-8 lets it be UTF-8)"
            raise UserError(
                f"the argument {repr(os.fsencode(argument))[1:]} is not {encoding} text{advice}"
            ) from None
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return
    if arguments[0] == "--version":
        from tlite import __version__

        print(f"tlite {__version__}")
        return
    command, *rest = arguments
    if command == "launch":
        _launch(rest)
    if command in ("train", "plan"):
        devices.prepare_devices()
        (_train if command == "train" else _plan)(rest)
        return
    if command not in COMMANDS:
        near = did_you_mean(command, ["train", "plan", "launch", *COMMANDS])
        near = near or did_you_mean(command, find_experiments()).replace("mean", "mean train")
        raise UserError(f"there is no command {command!r}{near}")
    kind, file = COMMANDS[command]
    asked = parse(kind, rest, f"tlite {command}")
    devices.prepare_devices()
    # It imports JAX: a misspelt option is told before that.
    module = importlib.import_module(f"tlite.cli.{file}")
    name_files(getattr(asked, "code", ()))
    getattr(module, command)(asked)


def _launch(arguments: list[str]) -> NoReturn:
    from tlite.parallel.launch import launch

    at = arguments.index("train") if "train" in arguments else len(arguments)
    if at == len(arguments) and {"-h", "--help"}.isdisjoint(arguments):
        raise UserError("launch needs a command to train: tlite launch -n 2 train EXPERIMENT, say")
    asked = parse(options.Launch, arguments[:at], "tlite launch")
    _of_train(arguments[at + 1 :])  # what is wrong is told once
    sys.stdout.flush()
    raise SystemExit(launch(arguments[at:], asked.processes, asked.devices_each))


def _train(arguments: list[str]) -> None:
    asked, name, words = _of_train(arguments)
    if isinstance(asked, options.Resume):
        _join(asked)
        from tlite.cli import commands

        name_files(asked.code)
        commands.resume(asked)
        return
    file = find_experiment(name)
    if {"-h", "--help"}.isdisjoint(words):
        _join(asked)
    print(printable(f"experiment: {file.resolve()}"), flush=True)
    experiments = experiments_of(name, asked, words, *load_variants(file))
    if len(experiments) == 1:
        from tlite.recipes.kinds import start

        start(experiments.popitem()[1], asked.run).train(asked.profile)
    elif asked.profile:
        raise UserError("--profile is for one run: name one of the variants, --only NAME")
    else:
        from tlite.recipes.study_training import train_study  # SciPy is slow to import

        train_study(experiments, asked.run)


def experiments_of(
    name: str, asked: options.Train, words: list[str], experiment: Any, own: dict[str, Any]
) -> dict[str, Any]:
    """What a line is to train, by the names of variants; of a file's `experiment` and variants."""
    from tlite.cli.parts import read_experiment

    if not (own or asked.vary or asked.only) or {"-h", "--help"} & {*words}:
        return {"": read_experiment(name, asked, words, experiment, own)}
    from tlite.cli.variants import read_variants

    return read_variants(name, asked, words, experiment, own)


def _of_train(arguments: list[str]) -> tuple[options.Trains, str, list[str]]:
    """What can be read before an experiment's file is, its name, and the words that are left."""
    resumes = False
    for word in arguments:
        name = word.partition("=")[0].replace("_", "-")
        if name in GONE:
            raise UserError(f"the option {name} is gone: {GONE[name]}")
        resumes |= name == "--resume"
    if resumes:
        return parse(options.Resume, arguments, "tlite train"), "", []
    name, *words = _experiment_and_words("train", options.Train, arguments)
    partly = {"return_unknown_args": True, "add_help": False}  # help is on what the file says, too
    asked, words = parse(options.Train, words, f"tlite train {name}", **partly)
    return asked, name, words


def _join(place: options.Processes) -> None:
    """Meet the run's other processes, before an experiment's file may touch a device."""
    processes.join(place.coordinator, place.processes, place.process, heartbeat=place.heartbeat)


def _plan(arguments: list[str]) -> None:
    name, *words = _experiment_and_words("plan", options.Plan, arguments)
    experiment = load_experiment(find_experiment(name))
    import jax

    from tlite.cli.parts import choose
    from tlite.planning.plan import plan, read_mesh

    experiment, words = choose(experiment, words)
    default = options.PlanExperiment(experiment=experiment)
    said = {"default": default, "description": options.Plan.__doc__}
    asked = vars(parse(options.PlanExperiment, words, f"tlite plan {name}", **said))
    number, _ = read_mesh(asked["mesh"], asked["tpu"])
    if not asked["tpu"]:
        jax.config.update("jax_num_cpu_devices", number)  # before any is looked at
        jax.config.update("jax_platforms", "cpu")
    plan(**asked)


def _experiment_and_words(command: str, kind: type, arguments: list[str]) -> list[str]:
    """The words of a line that begins with an experiment's name."""
    if arguments and not arguments[0].startswith("-"):
        return arguments
    known = ", ".join(find_experiments())
    if {"-h", "--help"} & {*arguments}:
        said = f"{kind.__doc__}\n\nexperiments: {known}"
        parse(kind, ["--help"], f"tlite {command} EXPERIMENT", description=said)
    raise UserError(f"name an experiment to {command}: {known}")


def parse(kind: type, arguments: list[str], program: str, **settings: Any) -> Any:
    """An instance of a dataclass from the command line, as `tyro.cli` makes it.

    Args:
        settings: what else `tyro.cli` is told.

    Raises:
        WrongOption: an option is unknown, or a value does not fit.
    """
    box = io.StringIO()
    settings = {"registry": REGISTRY, "config": MARKERS} | settings
    try:
        with contextlib.redirect_stderr(box):
            return tyro.cli(kind, args=arguments, prog=program, **settings)
    except SystemExit as stop:
        if stop.code:
            raise WrongOption(box.getvalue()) from None
        raise


@REGISTRY.primitive_rule
def _function(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """A function of the user's stands in a file: on the command line it can only be replaced."""
    if kind.type is not Callable:
        return None

    def refuse(words: list[str]) -> Callable:
        raise ValueError("a function of your own is handed over in an experiment's file")

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="FUNCTION",
        instance_from_str=refuse,
        is_instance=callable,
        str_from_instance=lambda function: [function.__name__],
    )
