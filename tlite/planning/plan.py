"""Memory, exchanges and time of a training step on devices that do not exist."""

import dataclasses
import math
import os
import re
from collections import Counter
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from tlite.comparison.flops import (
    CLASSIFIER,
    GENERATOR,
    flops_per_token,
    parameter_sizes,
    without_gradient,
)
from tlite.config import to_dict
from tlite.errors import UserError, needs_extra
from tlite.experiment import Experiment
from tlite.models import GeneratorConfig, TransformerConfig
from tlite.models.config import describe_components
from tlite.runs.init_from import load_init
from tlite.runs.run import train_new_arrays
from tlite.training import Trainer, TrainingConfig, generator_task
from tlite.training.loader import PrefetchingLoader
from tlite.training.optimizers import parameter_rules, select_trainable
from tlite.training.precision import choose_products
from tlite.training.run_dir import component_fields
from tlite.training.sharding import bytes_per_device, in_gib, unsharded_arrays
from tlite.training.tasks import classifier_task

PEAK = {"v4": 275e12, "v5e": 197e12, "v5p": 459e12, "v6e": 918e12}
PEAK |= {"a100": 312e12, "h100": 989e12, "h200": 989e12}
"""bfloat16 FLOP/s of one device by its data sheet, without sparsity."""

TPU_KINDS = {"v4": "v4-8", "v5e": "v5litepod-8", "v5p": "v5p-8", "v6e": "v6e-8"}

# In the text of a compiled program (HLO).
COLLECTIVES = "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"
COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+)[^\n]*\{\n(.*?)^\}", re.M | re.S)
OPERATION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = (\(.*?\)|\S+) ([a-z][a-z-]*)\(")
CALLED = re.compile(r"(?:calls|to_apply|body|branch_computations)=\{?(%?[\w., %-]+)\}?")
KNOWN_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


def plan(
    experiment: Experiment,
    devices: int = 0,
    tpu: str | None = None,
    hardware: str | None = None,
    utilisation: float = 0.4,
    parameters: bool = False,
) -> None:
    """Compile the training step ahead of time and print what it needs.

    Args:
        devices: number of devices; 0: all of the TPU slice, or one.
        tpu: slice to compile for, such as "v5e:16x16"; CPU devices by default.
        hardware: key of PEAK for the printed time; the TPU's by default.
        utilisation: expected fraction of the hardware's peak.
        parameters: print the rules of each parameter too.

    Raises:
        UserError: an argument is not possible, or there are fewer devices.
    """
    experiment = with_planned_sizes(experiment)
    if hardware is not None and hardware not in PEAK:
        raise UserError(f"--hardware must be one of {', '.join(PEAK)}, not {hardware!r}")
    if not 0 < utilisation <= 1:
        raise UserError(f"--utilisation must be above 0 and at most 1, not {utilisation:g}")
    number = count_devices(devices, tpu)
    available = tpu_devices(tpu) if tpu else jax.devices()
    if len(available) < number:
        raise UserError(f"--devices must be at most {len(available)}, not {number}")
    precision = experiment.training.precision.replace("auto", "mixed")
    training = dataclasses.replace(experiment.training, precision=precision)
    model = choose_products(experiment.model, training.precision)
    planned = planned_trainer(model, training, available[:number])
    print_layout(planned, model, f"{number} {tpu or hardware or 'CPU'} devices")
    if parameters:
        print_parameters(planned)
    compiled = planned.lower().compile()
    print_memory(planned, compiled)
    print_time(planned, model, hardware or (tpu or "").partition(":")[0], utilisation)


def with_planned_sizes(experiment: Experiment) -> Experiment:
    """Return the experiment with all sizes of its model, which are read without its data."""
    init_from = getattr(experiment, "init_from", None)
    if init_from:
        classes = getattr(experiment.data, "classes", None)
        if classes is not None and not classes:
            raise UserError("a plan reads no data: name the classes, --labels VALUE CLASS ...")
        init = load_init(init_from, experiment.model, classes and len(classes))
        training = train_new_arrays(experiment.training, init.new)
        return dataclasses.replace(experiment, model=init.config, training=training)
    if not isinstance(experiment.model, GeneratorConfig):
        raise UserError(
            f"a {type(experiment).__name__} can't be planned: only generators and pretrained "
            "classifiers have all sizes without their data"
        )
    if not experiment.model.vocabulary_size:
        raise UserError("a plan reads no data: set --vocabulary-size")
    return experiment


def count_devices(devices: int, tpu: str | None = None) -> int:
    """Return the number of devices; for 0 all of a TPU slice, or one."""
    if tpu is None:
        return devices or 1
    kind, _, shape = tpu.partition(":")
    if kind not in TPU_KINDS or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", shape):
        kinds = ", ".join(TPU_KINDS)
        raise UserError(f"--tpu must be like v5e:16x16, not {tpu!r}; kinds: {kinds}")
    return devices or math.prod(map(int, shape.split("x")))


def tpu_devices(tpu: str) -> list:
    """Return the devices of a TPU slice that does not exist, from its compiler (libtpu)."""
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", TPU_KINDS[tpu.partition(":")[0]])
    with needs_extra("tpu"):
        import libtpu  # noqa: F401
    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=tpu).devices)
    except Exception as error:  # of no documented type
        reason = str(error).splitlines()[0]
        raise UserError(f"libtpu can't compile for {tpu}: {reason}") from error


def planned_trainer(model: TransformerConfig, config: TrainingConfig, devices: list) -> Trainer:
    """Return a trainer on devices that do not exist; it can only be lowered."""

    def load(config: TrainingConfig, mesh: Mesh) -> PrefetchingLoader:
        example = np.zeros((1, model.context + 1), np.uint16)
        return PrefetchingLoader(lambda *_: example, config, mesh, max_steps=1)

    def tokens_and_labels(rows):
        return rows[:, :-1].astype(np.int32), rows[:, -1].astype(np.int32)

    if isinstance(model, GeneratorConfig):
        task = generator_task(model)
    else:
        task = classifier_task(model)._replace(unpack_rows=tokens_and_labels)
    return Trainer(task, config, load, devices)


def print_layout(planned: Trainer, model: TransformerConfig, devices: str) -> None:
    """Print the sizes of model and update, and their layout on the devices."""
    config, attention = planned.config, dict(describe_components(model))["attention"]
    trained = select_trainable(config, planned.shapes)
    number = sum(shape.size for shape in trained.values())
    frozen = f", {number:,} trained" if number < planned.num_parameters else ""
    print(f"{planned.num_parameters:,} parameters{frozen}, {config.precision} precision, ", end="")
    print(f"attention {attention}")
    shape = " x ".join(f"{size} {axis}" for axis, size in planned.mesh.shape.items() if size > 1)
    layout = "large arrays sharded" if planned.sharded else "parameters replicated"
    print(f"{planned.mesh.size} of {devices}: {shape or '1'}, {layout}")
    examples = config.batch_size * config.gradient_accumulation_steps
    size = config.batch_size // planned.num_shards
    print(f"an update: {examples:,} examples, {examples * model.context:,} tokens; ", end="")
    print(f"{size} on a device at a time, {config.gradient_accumulation_steps} times", flush=True)


def print_parameters(planned: Trainer) -> None:
    """Print shape and rules of each parameter; equal lines of several blocks are merged."""
    lines = [
        f"  {_pattern(name):40s} {planned.shapes[name].shape!s:16s} {rule}"
        for name, rule in parameter_rules(planned.config, planned.shapes).items()
    ]
    print("parameters:", *dict.fromkeys(lines), sep="\n")


def _pattern(name: str) -> str:
    """Return the name of a parameter with * for the number of its block."""
    return re.sub(r"\.\d+\.", ".*.", name)


def print_memory(planned: Trainer, compiled: Any) -> None:
    """Print the bytes on a device, what could not be sharded, and the exchanges of an update."""
    print("bytes on a device:")
    for name, size in bytes_on_a_device(planned, compiled).items():
        print(f"  {name:34s} {size / 2**30:8.2f} GiB")
    if unsharded := unsharded_arrays(planned.shapes, planned.mesh) if planned.sharded else []:
        patterns = ", ".join(dict.fromkeys(map(_pattern, unsharded)))
        print(f"not sharded, as no axis is divisible: {patterns}")
    exchanges = collectives(compiled.as_text())
    print("exchanged by a device in an update:" if exchanges else "devices exchange nothing")
    for kind, (count, size) in exchanges.items():
        print(f"  {count:6,} {kind:20s} {in_gib(size):>12s}")


def bytes_on_a_device(planned: Trainer, compiled: Any) -> dict[str, int]:
    """Return the bytes on a device: between steps, inside of one, and in total."""
    replicas = planned.abstract_state
    memory = compiled.memory_analysis()
    inside = memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return {
        "parameters": bytes_per_device(replicas.parameters),
        "optimizer": bytes_per_device(replicas.optimizer),
        **({"moving average": bytes_per_device(replicas.ema)} if replicas.ema else {}),
        "activations, gradients and copies": inside,
        "in all": memory.argument_size_in_bytes + inside,
    }


def print_time(
    planned: Trainer, model: TransformerConfig, hardware: str, utilisation: float
) -> None:
    """Print the FLOPs of an update and of the run, and their time on known hardware."""
    config = planned.config
    tokens = config.batch_size * config.gradient_accumulation_steps * model.context * config.seeds
    kind = GENERATOR if isinstance(model, GeneratorConfig) else CLASSIFIER
    frozen = without_gradient(config, planned.shapes)
    fields = component_fields(to_dict(model))
    flops = flops_per_token(fields, parameter_sizes(model), kind, frozen)
    formula = "6 N + 12 L D T" + ", 4 N of frozen matrices" * bool(frozen)
    print(f"{flops:.3g} FLOP a token by {formula}, {flops * tokens:.3g} an update, ", end="")
    print(f"{flops * tokens * config.steps:.3g} in {config.steps:,} updates")
    if hardware not in PEAK:
        return
    seconds = flops * tokens / (planned.mesh.size * PEAK[hardware] * utilisation)
    print(
        f"at {utilisation:.0%} of {planned.mesh.size} x {hardware}'s {PEAK[hardware] / 1e12:,.0f} "
        f"TFLOP/s: {np.format_float_positional(seconds, 3, fractional=False)} s an update, "
        f"{tokens / seconds:,.0f} tokens/s, {seconds * config.steps / 86400:,.1f} days"
    )


def collectives(program: str) -> dict[str, tuple[int, int]]:
    """Return {kind of collective: (number, bytes of the results)} of a device and a step.

    An operation in a loop counts as often as the loop runs, if that is known; the outermost loop,
    over the steps of a call, is counted once.
    """
    counts, sizes = Counter(), Counter()
    matches = COMPUTATION.findall(program)
    computations = {entry + name: lines.splitlines() for entry, name, lines in matches}
    entry = next(name for name in computations if name.startswith("ENTRY "))
    todo = [(entry, 1)]
    while todo:
        name, times = todo.pop()
        for line in computations.get(name, ()):
            if not (matched := OPERATION.match(line)):
                continue
            result, operation = matched.groups()
            kind = operation.removesuffix("-start")
            if kind in COLLECTIVES:
                counts[kind] += times
                # The result of these also contains the operand.
                has_operand = operation in ("all-gather-start", "collective-permute-start")
                sizes[kind] += times * _bytes(result, first=int(has_operand))
            repeats = times * (_trips(line, computations) if operation == "while" else 1)
            for called in CALLED.findall(line):
                todo += [(name.strip().lstrip("%"), repeats) for name in called.split(",")]
    return {kind: (counts[kind], sizes[kind]) for kind in COLLECTIVES if counts[kind]}


def _trips(line: str, computations: dict[str, list[str]]) -> int:
    """Return how often a loop runs, by the compiler or by the constant of its condition."""
    if known := KNOWN_TRIPS.search(line):
        return int(known[1])
    condition = "\n".join(computations.get(re.search(r"condition=%?([\w.-]+)", line)[1], ()))
    bounds = re.findall(r" constant\((\d+)\)", condition)
    return int(bounds[0]) if len(bounds) == 1 and "direction=LT" in condition else 1


def _bytes(result: str, first: int = 0) -> int:
    """Return the bytes of shapes such as `f32[8,4]{1,0}`, from the `first` on."""
    total = 0
    for kind, axes in re.findall(r"([a-z]+\d*)\[([\d,]*)\]", result)[first:]:
        size = math.prod(int(axis) for axis in axes.split(",") if axis)
        total += size * int(re.sub(r"\D", "", kind) or 8) // 8  # "pred" has no digits
    return total
