"""The command line of `tlite`: reads it and hands the work to the other files here.

tyro makes dataclasses of the words, and tells what is wrong with them.
"""

import contextlib
import dataclasses
import importlib
import inspect
import io
import os
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

import tlite.distributed as distributed
from tlite.cli import options
from tlite.distributed import devices
from tlite.errors import (
    CollectiveError,
    Interrupted,
    UserError,
    lack_of_memory,
    printable,
    system_reason,
)
from tlite.runs import experiment_files as files
from tlite.user_code import name_files

COMMANDS = {
    "prepare": (options.Prepare, "tlite.cli.commands"),
    "evaluate": (options.Evaluate, "tlite.cli.commands"),
    "generate": (options.Generate, "tlite.cli.texts"),
    "classify": (options.Classify, "tlite.cli.texts"),
    "translate": (options.Translate, "tlite.cli.texts"),
    "compare": (options.Compare, "tlite.cli.commands"),
    "inspect": (options.Inspect, "tlite.cli.commands"),
    "follow": (options.Follow, "tlite.report.tracking"),
    "export": (options.Export, "tlite.cli.commands"),
    "experiments": (options.Experiments, "tlite.runs.experiment_files"),
    "runs": (options.Runs, "tlite.runs.experiment_files"),
}
"""What each can be told, and the file here that has the function of its name; `train`, `plan` and
`launch` read more than options."""
USAGE = """tlite: transformers as short pure functions

  tlite train EXPERIMENT [OPTIONS]     train an experiment (a name in experiments/, or a file)
  tlite train EXPERIMENT --vary NAME VALUE VALUE ...     a study: train and compare its variants
  tlite train --resume RUN             go on with a run, or a study, from its last checkpoint
  tlite train EXPERIMENT --resume auto     the same if it has a run, else create one
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
HELP = {"-h", "--help"}

_SYNONYMS = {
    "lr": "learning-rate",
    "n-layer num-layers num-hidden-layers n-layers layers depth": "num-blocks",
    "n-head num-attention-heads n-heads heads": "num-heads",
    "n-embd hidden-size d-model hidden-dim embed-dim dim": "width",
    "n-ctx block-size seq-len sequence-length max-seq-length n-positions": "context",
    "max-length length max-len": "context tokens",
    "max-new-tokens num-tokens": "tokens",
    "num-samples num-return-sequences": "samples",
    "max-steps max-iters num-steps train-steps iterations epochs num-train-epochs": "steps",
    "batch train-batch-size": "batch-size",
    "per-device-train-batch-size device-batch-size": "per-device-batch-size",
    "gradient-accumulation-steps": "gradient_accumulation_steps",
    "eval-interval eval-steps eval-every": "evaluate-every",
    "warmup warmup-iters": "warmup-steps",
    "grad-clip max-grad-norm clipnorm": "clip-norm",
    "wd": "weight-decay",
    "optim": "optimizer",
    "lr-scheduler-type scheduler": "schedule",
    "vocab-size": "vocabulary-size",
    "hidden-act act-fn": "feed-forward.activation",
    "intermediate-size": "feed-forward.mlp-dim",
    "num-key-value-heads num-kv-heads": "attention.num-kv-heads",
    "dtype": "precision",
    "out-dir output-dir": "run",
    "save-total-limit": "max_to_keep",
}
SYNONYMS = {
    f"--{name}": [f"--{option}" for option in options.split()]
    for names, options in _SYNONYMS.items()
    for name in names.split()
}
"""An option's name in nanoGPT, Hugging Face and Keras -> its name or names here."""
REGISTRY = ConstructorRegistry()
_being_read: set[type] = set()  # dataclasses, by the rule below
MARKERS = tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands


class WrongOption(UserError):
    """What tyro says of a command line, in a box of its own."""

    exit_code = 2


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, or 2 with one sentence on stderr."""
    code = _told(_command, sys.argv[1:] if arguments is None else arguments)
    # What can't be written is told while it can be.
    code = _told(sys.stdout.flush) or code
    return _told(distributed.shutdown) or code


def _told(action: Callable, *given: Any) -> int:
    """The exit code of an action; what it fails of is said in one sentence.

    What this process fails of is then the end of all of the run's processes.
    """
    try:
        action(*given)
        return 0
    except (WrongOption, Interrupted) as stop:  # the same in all of the run's processes
        if distributed.is_process0():
            _say(stop, stop.exit_code)
        return stop.exit_code
    except CollectiveError as error:
        _say(error, 2)
        return 2
    except SystemExit as stop:  # after --help, or launch
        code = stop.code or 0
    except KeyboardInterrupt:
        code = 130
        _say("interrupted", code)
    except Exception as error:
        if not (sentence := _sentence(error)):
            raise
        code = 2
        _say(sentence, code)
    if distributed.process_count() > 1:
        distributed.abort(code)
    return code


def _sentence(error: Exception) -> str | None:
    """The last net: what is said of an error that is none of tlite's own."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        return ": ".join(map(str, filter(None, (error.filename, system_reason(error)))))
    if isinstance(error, RecursionError):
        return "what was to be read is nested too deeply"
    return (
        lack_of_memory(error)
        or distributed.peer_failure_message(error)
        or devices.lack_of_platform()
    )


def _say(what: object, code: int) -> None:
    """Print one line, whatever a user has given; of a wrong option tyro's box."""
    start = "\n" if code > 128 and sys.stderr.isatty() else ""  # after the terminal's ^C
    text = printable(str(what))
    if not isinstance(what, WrongOption):
        text = f"tlite: {text}".replace("\n", "\u240a") + "\n"
    print(start + text, end="", file=sys.stderr)


def _command(arguments: list[str]) -> None:
    if odd := [word for word in arguments if re.search("[\ud800-\udfff]", word)]:
        raise UserError(f"the argument {repr(os.fsencode(odd[0]))[1:]} is not UTF-8 text")
    if nameless := [word for word in arguments if word.startswith("--=")]:  # tyro takes it for text
        raise UserError(f"the option {nameless[0]!r} has no name")
    command, *rest = arguments or ["--help"]
    if command in HELP:
        print(USAGE)
    elif command == "--version":
        from tlite import __version__

        print(f"tlite {__version__}")
    elif command in OTHERS:
        OTHERS[command](rest)
    elif command in COMMANDS:
        kind, file = COMMANDS[command]
        asked = parse(kind, rest, f"tlite {command}")
        devices.prepare_devices()
        # It imports JAX: a misspelt option is told before that.
        module = importlib.import_module(file)
        name_files(getattr(asked, "code", ()))
        getattr(module, command)(asked)
    else:
        near = files.did_you_mean(command, [*OTHERS, *COMMANDS])
        other = files.did_you_mean(command, files.find_experiments())
        near = near or other.replace("mean", "mean train")
        raise UserError(f"there is no command {command!r}{near}")


def _launch(arguments: list[str]) -> NoReturn:
    from tlite.distributed.launch import launch

    at = arguments.index("train") if "train" in arguments else len(arguments)
    if at == len(arguments) and HELP.isdisjoint(arguments):
        raise UserError("launch needs a command to train: tlite launch -n 2 train EXPERIMENT, say")
    asked = parse(options.Launch, arguments[:at], "tlite launch")
    _of_train(arguments[at + 1 :])  # what is wrong is told once
    sys.stdout.flush()
    raise SystemExit(launch(arguments[at:], asked.processes, asked.devices_each))


def _train(arguments: list[str]) -> None:
    devices.prepare_devices()
    asked, name, words = _of_train(arguments)
    if asked.deterministic:
        devices.use_deterministic_operations()
    file = None if name is None else files.find_experiment(name)
    if HELP.isdisjoint(words):  # meet the run's others before a file may touch a device
        place = asked.coordinator, asked.processes, asked.process
        detect = asked.distributed == "auto"
        distributed.initialize(*place, detect=detect, heartbeat=asked.heartbeat)
    if file is None:
        from tlite.cli import commands

        name_files(asked.code)
        commands.resume(asked)
        return
    print(printable(f"experiment: {file.resolve()}"), flush=True)
    found = files.load_variants(file)
    from tlite.cli.overrides import read_experiments

    about = f"Train {file}." + (f" Its variants: {', '.join(found[1])}." if found[1] else "")
    experiments = read_experiments(name, asked, words, *found, about)
    resume = asked.resume or "never"
    if len(experiments) == 1:
        from tlite.runs import Run

        Run.create(*experiments.values(), asked.run, resume=resume).train(profile=asked.profile)
    elif asked.profile:
        raise UserError("--profile is for one run: name one of the variants, --only NAME")
    else:
        from tlite.runs.study import train_study  # SciPy is slow to import

        train_study(experiments, asked.run, resume=resume)


def _of_train(arguments: list[str]) -> tuple[options.Trains, str | None, list[str]]:
    """What can be read before an experiment's file is, its name, and the words that are left; of a
    run that goes on there are neither."""
    resumes = "--resume" in {word.partition("=")[0] for word in arguments}
    if resumes and arguments[0].startswith("-"):
        return parse(options.Resume, arguments, "tlite train"), None, []
    name, *words = _experiment_and_words("train", options.Train, arguments)
    partly = {"return_unknown_args": True, "add_help": False}  # help is on what the file says, too
    asked, words = parse(options.Train, words, f"tlite train {name}", **partly)
    return asked, name, words


def _plan(arguments: list[str]) -> None:
    devices.prepare_devices()
    name, *words = _experiment_and_words("plan", options.Plan, arguments)
    experiment = files.load_experiment(files.find_experiment(name))
    import jax

    from tlite.cli.overrides import with_options
    from tlite.planning.plan import plan, read_mesh

    about = f"tlite plan {name}", options.Plan.__doc__
    asked, experiment = with_options(options.Plan(), experiment, words, *about)
    number, _ = read_mesh(asked.mesh, asked.tpu)
    if not asked.tpu:
        jax.config.update("jax_num_cpu_devices", number)  # before any is looked at
        jax.config.update("jax_platforms", "cpu")
    plan(experiment, **vars(asked))


OTHERS = {"train": _train, "plan": _plan, "launch": _launch}


def _experiment_and_words(command: str, kind: type, arguments: list[str]) -> list[str]:
    """The words of a line that begins with an experiment's name."""
    if arguments and not arguments[0].startswith("-"):
        return arguments
    known = ", ".join(files.find_experiments())
    if HELP & {*arguments}:
        said = f"{inspect.getdoc(kind)}\n\nexperiments: {known}"
        parse(kind, ["--help"], f"tlite {command} EXPERIMENT", description=said)
    raise UserError(f"name an experiment to {command}: {known}")


def parse(kind: Callable, arguments: list[str], program: str, **settings: Any) -> Any:
    """Read a command line with `tyro.cli`.

    Args:
        kind: the dataclass or function whose parameters are the options.
        settings: further arguments of `tyro.cli`.

    Raises:
        WrongOption: an option is unknown, or a value does not fit.
    """
    box = io.StringIO()
    settings = {"registry": REGISTRY, "config": MARKERS} | settings
    try:
        with contextlib.redirect_stderr(box):
            return tyro.cli(kind, args=arguments, prog=program, **settings)
    except SystemExit as stop:
        if not stop.code:
            raise
    said = box.getvalue()
    names = (word.partition("=")[0].replace("_", "-") for word in arguments)
    synonyms = [name for name in names if name in SYNONYMS]
    if synonyms and "Unrecognized options" in said:
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as text:
            tyro.cli(kind, args=["--help"], prog=program, **settings)
        options = {*re.findall(r"--[\w.-]+", text.getvalue())}
        for name in synonyms:
            if name not in options and (meant := options & {*SYNONYMS[name]}):
                said = f"tlite: unknown option {name}: did you mean {min(meant)}?\n"
    raise WrongOption(said)


@REGISTRY.struct_rule
def _options(info: StructTypeInfo) -> StructConstructorSpec | None:
    """A dataclass, as tyro reads it, but with each help text on one line."""
    if info.type in _being_read or not dataclasses.is_dataclass(info.type):
        return None
    _being_read.add(info.type)
    try:
        spec = ConstructorRegistry.get_struct_spec(info)
    finally:
        _being_read.discard(info.type)
    fields = [dataclasses.replace(field, helptext=_one_line(field)) for field in spec.fields]
    return dataclasses.replace(spec, fields=tuple(fields))


def _one_line(field: StructFieldSpec) -> Callable[[], str]:
    text = field.helptext
    return lambda: " ".join(((text() if callable(text) else text) or "").split())
