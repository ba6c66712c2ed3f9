"""The command line of `tlite`: dispatch, parsing of options, and printing of errors.

JAX is imported only by commands whose options are valid; tyro only if there are options to read.
"""

import contextlib
import dataclasses
import io
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

import tlite.distributed as distributed
from tlite.config import did_you_mean
from tlite.errors import (
    LAUNCHED,
    CollectiveError,
    Interrupted,
    UserError,
    memory_error_message,
    printable,
    system_reason,
)

USAGE = """tlite: transformers as short pure functions

  tlite train EXPERIMENT [OPTIONS]               train an experiment (a Python file, or its name)
  tlite train EXPERIMENT --vary NAME VALUE ...   train and compare variants: a study
  tlite train EXPERIMENT --resume auto           resume the newest such run, or create one
  tlite train --resume RUN                       resume a run or a study from its last checkpoint
  tlite tune EXPERIMENT --vary NAME LOW..HIGH    try values of an option, and print the best
  tlite plan gpt2 --devices 64                   compute memory and time of a step; run nothing
  tlite prepare SOURCE FOLDER                    tokenize texts of any size, to train on
  tlite launch -n 2 train ...                    train in several processes on this machine
  tlite evaluate RUN                             print losses and scores
  tlite generate RUN                             generate text
  tlite classify RUN [TEXT ...]                  classify texts
  tlite translate RUN [TEXT ...]                 translate texts
  tlite compare RUN RUN ...                      compare runs, with confidence intervals
  tlite inspect RUN                              draw attention, predictions and more on one page
  tlite follow RUN --to tensorboard              write metrics for TensorBoard or W&B
  tlite export RUN FOLDER                        write a model for Hugging Face's transformers
  tlite experiments                              list the experiments
  tlite runs [FOLDER]                            list runs, studies and tunings, newest first

RUN is the folder of a run, or latest: the newest in ./runs. evaluate, generate, classify,
translate, inspect and export also take the folder or hub name of a Hugging Face model.
Each command lists its options with --help: tlite train demo --help, tlite evaluate --help."""
COMMANDS = tuple(dict.fromkeys(re.findall(r"^  tlite (\w+)", USAGE, re.MULTILINE)))
HELP = {"-h", "--help"}

SYNONYMS = {
    "lr": "learning-rate",
    "n-layer num-layers num-hidden-layers n-layers layers depth": "num-blocks",
    "n-head num-attention-heads n-heads heads": "num-heads",
    "n-embd hidden-size d-model hidden-dim embed-dim dim": "width",
    "n-ctx block-size seq-len sequence-length max-seq-length n-positions": "context",
    "max-length length max-len": "context tokens",
    "max-new-tokens num-tokens": "tokens",
    "num-samples num-return-sequences": "samples",
    "start": "prompt",
    "max-steps max-iters num-steps train-steps iterations epochs num-train-epochs": "steps",
    "batch train-batch-size per-device-train-batch-size": "batch-size",
    "device-batch-size": "per-device-batch-size",
    "accumulate grad-accum": "gradient-accumulation-steps",
    "eval-interval eval-steps eval-every": "evaluate-every",
    "warmup warmup-iters": "warmup-steps",
    "grad-clip max-grad-norm clipnorm": "clip-norm",
    "wd": "weight-decay",
    "lr-scheduler-type scheduler": "schedule",
    "hidden-act act-fn": "feed-forward.activation",
    "intermediate-size": "feed-forward.mlp-dim",
    "num-key-value-heads num-kv-heads": "attention.num-kv-heads",
    "dtype fp16 bf16": "precision",
    "train-file": "path",
    "model-name-or-path": "init-from",
    "out-dir output-dir": "run",
    "save-total-limit": "max-to-keep",
    "metric-for-best-model": "best-metric",
}
"""Names of options in nanoGPT, Hugging Face or Keras -> their names in tlite."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return the exit code.

    It is 0; 1 if standard output was closed; 2 after an error, which is one line on stderr; 128 +
    the number of a signal that stopped it. A bug raises.
    """
    code = run(run_command, sys.argv[1:] if arguments is None else arguments)
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at exit
        if not code and not isinstance(error, BrokenPipeError):
            code = 2
            print_error(f"can't write to standard output: {system_reason(error)}", code)
        code = code or 1  # the reader of standard output, such as `head`, has closed it
    return run(distributed.shutdown) or code


def run(action: Callable, *arguments: Any) -> int:
    """Call an action and return its exit code; print its error as one line.

    An error of one process ends all processes of the run.
    """
    try:
        action(*arguments)
        return 0
    except (Interrupted, CollectiveError) as error:  # all processes raise it
        code = getattr(error, "exit_code", 2)
        # Processes of `tlite launch` share one terminal; those of several hosts do not.
        is_shared = isinstance(error, Interrupted) or LAUNCHED in os.environ
        if distributed.is_process0() or not is_shared:
            print_error(error, code)
        return code
    except SystemExit as stop:  # raised by --help and launch
        code = stop.code or 0
    except KeyboardInterrupt:
        code = 130
        print_error("interrupted", code)
    except BrokenPipeError:
        code = 1
    except Exception as error:
        if not (message := error_message(error)):
            raise
        code = 2
        print_error(message, code)
    if distributed.process_count() > 1:
        distributed.abort(code)
    return code


def error_message(error: Exception) -> str | None:
    """Return the line to print for an error of the user or the system; None for a bug."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        return ": ".join(map(str, filter(None, (error.filename, system_reason(error)))))
    if isinstance(error, RecursionError):
        return "the input is nested too deeply"
    from tlite.distributed.devices import platform_error_message

    return (
        memory_error_message(error)
        or distributed.peer_failure_message(error)
        or platform_error_message()
    )


def print_error(message: object, code: int) -> None:
    start = "\n" if code > 128 and sys.stderr.isatty() else ""  # the terminal has printed ^C
    line = printable(f"tlite: {message}").replace("\n", "\u240a")
    with contextlib.suppress(OSError):  # a full disk
        print(f"{start}{line}", file=sys.stderr)


def run_command(words: list[str]) -> None:
    """Run the command that the first word names."""
    try:
        " ".join(words).encode()
    except UnicodeEncodeError as error:
        raise UserError("the arguments are not UTF-8 text") from error
    command, *words = words or ["--help"]
    if command in HELP:
        print(USAGE)
    elif command == "--version":
        from tlite import __version__

        print(f"tlite {__version__}")
    elif command in COMMANDS:
        from tlite.cli import commands

        commands.execute(command, words)
    else:
        from tlite.runs.experiment_files import find_experiments

        near = did_you_mean(command, COMMANDS)
        near = near or did_you_mean(command, find_experiments(), prefix="train ")
        raise UserError(f"there is no command {command!r}{near}")


# Options


def parse(options_type: Any, words: list[str], program: str) -> Any:
    """Return an instance of a dataclass, its fields set by the words of a command line."""
    options, unknown = parse_known(options_type, words, program)
    if unknown:
        names = {field.name.replace("_", "-") for field in dataclasses.fields(options_type)}
        raise unknown_option(next((w for w in unknown if w.startswith("-")), unknown[0]), names)
    return options


def parse_known(
    options_type: Any, words: list[str], program: str, **settings: Any
) -> tuple[Any, list[str]]:
    """Return an instance of a dataclass as `parse`, and the words that are not its options.

    Args:
        settings: further arguments of `tyro.cli`.
    """
    import tyro

    settings["config"] = (tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands)
    if HELP & {*words}:
        settings["registry"] = _help_registry()
        if settings.get("add_help", True):
            words = ["--help"]  # with other words tyro's help omits the arguments that they set
    try:
        with contextlib.redirect_stderr(errors := io.StringIO()):
            return tyro.cli(
                options_type, args=words, prog=program, return_unknown_args=True, **settings
            )
    except SystemExit as stop:
        if not stop.code:
            raise
    # tyro prints a box: a title, and a message between lines.
    title, *rows = [row.strip("│ ") for row in errors.getvalue().splitlines()]
    groups = itertools.groupby(rows, key=lambda row: not row.strip("─-"))
    message = next((" ".join(group) for is_line, group in groups if not is_line), title)
    raise UserError(message)


def unknown_option(word: str, names: Iterable[str]) -> UserError:
    """Return the error for an unknown option; it suggests a synonym or the nearest name."""
    if not word.startswith("--"):
        return UserError(f"unexpected argument {word!r}")
    name, names = word[2:].partition("=")[0].replace("_", "-"), [*names]
    for synonyms, options in SYNONYMS.items():
        for option in options.split():
            if name in synonyms.split() and option in names:
                return UserError(f"unknown option --{name}: did you mean --{option}?")
    return UserError(f"unknown option --{name}{did_you_mean(name, names, '--')}")


def _help_registry() -> Any:
    """Return a registry by which tyro prints each help text as one paragraph.

    The options of processes and devices, which most runs don't need, come last.
    """
    from tyro.constructors import ConstructorRegistry

    from tlite.cli.commands import DistributedOptions

    last = {field.name for field in dataclasses.fields(DistributedOptions)}
    registry, active = ConstructorRegistry(), set()

    @registry.struct_rule
    def read_dataclass(info: Any) -> Any:
        if info.type in active or not dataclasses.is_dataclass(info.type):
            return None
        active.add(info.type)  # the next call calls this rule again
        try:
            spec = ConstructorRegistry.get_struct_spec(info)
        finally:
            active.discard(info.type)
        fields = [dataclasses.replace(f, helptext=help_text(f)) for f in spec.fields]
        if issubclass(info.type, DistributedOptions):
            fields.sort(key=lambda field: field.name in last)
        return dataclasses.replace(spec, fields=tuple(fields))

    return registry


def help_text(field: Any) -> str:
    """Return the docstring of a field, as tyro reads it, on one line."""
    text = field.helptext() if callable(field.helptext) else field.helptext
    return " ".join(str(text or "").split())
