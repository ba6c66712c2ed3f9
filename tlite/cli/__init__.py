"""The command line of `tlite`: reads it and hands the work to `tlite.cli.commands`."""

import dataclasses
import importlib
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from tlite import processes
from tlite.cli.options import (
    Classify,
    Compare,
    Experiments,
    Export,
    Follow,
    Generate,
    Inspect,
    Launch,
    Prepare,
    Processes,
    Profiled,
    Resume,
    ResumeStudy,
    Runs,
    Translate,
)
from tlite.cli.parsing import parse, parse_known
from tlite.errors import Interrupted, UserError, lack_of_memory, system_reason
from tlite.experiment_files import (
    did_you_mean,
    find_experiment,
    find_experiments,
    load_experiment,
    load_variants,
)
from tlite.own_code import name_files
from tlite.recipes.options import EVALUATIONS, EvaluateAny
from tlite.run_folders import STUDY, kind_of
from tlite.terminal import printable

COMMANDS = {
    "train": Resume,
    "launch": Launch,
    "prepare": Prepare,
    "plan": None,
    "evaluate": EvaluateAny,
    "generate": Generate,
    "classify": Classify,
    "translate": Translate,
    "compare": Compare,
    "inspect": Inspect,
    "follow": Follow,
    "export": Export,
    "experiments": Experiments,
    "runs": Runs,
}
MODULES = dict.fromkeys(("generate", "classify", "translate"), "texts")
MODULES |= dict.fromkeys(("experiments", "runs"), "listing")
MODULES |= dict.fromkeys(("compare", "inspect"), "pages") | {"follow": "follow"}
"""Where the function of a command lies, if not in `commands`."""
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

Where it says RUN, latest is the newest in ./runs; all but train and compare take a Hugging Face
folder, or a name on its hub, too.
Each command lists its options with --help."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, or 2 with one sentence on stderr."""
    code = _told(lambda: _command(sys.argv[1:] if arguments is None else arguments))
    # What can't be written is told while it can be.
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
        from tlite.devices import lack_of_platform

        if sentence := lack_of_memory(error) or lack_of_platform():
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
        if any("\ud800" <= letter <= "\udfff" for letter in argument):
            encoding = sys.getfilesystemencoding().upper()
            advice = "" if encoding == "UTF-8" else " (LC_ALL=C.UTF-8 lets it be UTF-8)"
            raise UserError(
                f"the argument {repr(os.fsencode(argument))[1:]} is not {encoding} text{advice}"
            )
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return
    if arguments[0] == "--version":
        from tlite import __version__

        print(f"tlite {__version__}")
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
        place, _ = parse_known(Processes, arguments, "tlite train")
        processes.join(place.coordinator, place.processes, place.process, heartbeat=place.heartbeat)


def _train(arguments: list[str]) -> None:
    if any(argument.split("=")[0] == "--resume" for argument in arguments):
        _join(arguments)
        options = parse(Resume, arguments, "tlite train")
        if os.path.isfile(options.resume / STUDY):
            options = parse(ResumeStudy, arguments, "tlite train", "a study, but for a run in it")
        from tlite.cli import commands

        name_files(options.code)
        commands.resume(options)
        return
    if not arguments or arguments[0].startswith("-"):
        if set(arguments) & {"-h", "--help"}:
            print(f"{USAGE}\n\nexperiments: {', '.join(find_experiments())}")
            return
        raise UserError(f"name an experiment to train: {', '.join(find_experiments())}")
    if any(argument.split("=")[0] == "--follow" for argument in arguments):
        raise UserError("--follow is a command of its own: tlite follow RUN --to tensorboard")
    file = find_experiment(arguments[0])
    _join(arguments[1:])
    print(printable(f"experiment: {file.resolve()}"), flush=True)
    from tlite.variants import read_variants

    experiments, folder = read_variants(arguments[0], arguments[1:], *load_variants(file))
    profile = parse_known(Profiled, arguments[1:], "tlite train")[0].profile
    from tlite.cli import commands

    if "" in experiments:
        commands.train(experiments[""], folder, profile)
    elif profile:
        raise UserError("--profile is for one run: name one of the variants, --only NAME")
    else:
        commands.train_study(experiments, folder)


def _plan(arguments: list[str]) -> None:
    if not arguments or arguments[0].startswith("-"):
        raise UserError(f"name an experiment to plan: {', '.join(find_experiments())}")
    experiment = load_experiment(find_experiment(arguments[0]))
    import jax

    from tlite.cli.parts import choose
    from tlite.plan import Plan, plan, read_mesh

    experiment, words = choose(experiment, arguments[1:])
    fields = [("experiment", type(experiment), dataclasses.field(default=experiment))]
    settings = {"bases": (Plan,), "kw_only": True, "frozen": True}
    kind = dataclasses.make_dataclass("Plan", fields, **settings)
    kind.__doc__ = f"What a step of experiments/{arguments[0]} would take elsewhere."
    options = parse(kind, words, f"tlite plan {arguments[0]}")
    number, _ = read_mesh(options.mesh, options.tpu)
    if not options.tpu:
        jax.config.update("jax_num_cpu_devices", number)  # before any is looked at
        jax.config.update("jax_platforms", "cpu")
    plan(options.experiment, options)


def _run_command(name: str, kind: type, arguments: list[str]) -> None:
    options = parse(kind, arguments, f"tlite {name}")
    if name == "evaluate" and (found := EVALUATIONS.get(kind_of(options.run))):
        whose, kind = found
        options = parse(kind, arguments, "tlite evaluate", whose)
    # It imports JAX: a misspelt option is told before that.
    module = importlib.import_module(f"tlite.cli.{MODULES.get(name, 'commands')}")
    name_files(getattr(options, "code", ()))
    getattr(module, name)(options)
