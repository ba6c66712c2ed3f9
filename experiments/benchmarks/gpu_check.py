"""Holds a GPU to what a CPU has shown, and times it: eight minutes at most, no network.

command   make gpu-check   (OPTIONS=attention, or course, memory, beside: one part, as JSON lines)
machine   not run on a GPU yet: we had none. Tests try its parts on a CPU.

Exit code 0: all checks hold; 1: one fails; 2: there is no GPU. A row without a bound only says what
was measured. Each part is a process, as a device tells of the most that a process has held.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments import demo, gpt2
from experiments.benchmarks.bench import ROOT, Contender, take_turns
from experiments.benchmarks.settings import CPU_TRAINING, GPU_TRAINING, Setting
from tlite import functional as F
from tlite.comparison.flops import flops_of_generator
from tlite.data import BuiltinText
from tlite.distributed.devices import lack_of_platform, prepare_devices
from tlite.errors import UserError
from tlite.models import GeneratorConfig
from tlite.planning.plan import PEAK, bytes_on_a_device, planned_trainer
from tlite.text import CharTokenizer
from tlite.training import Trainer, TrainingConfig, generator_task
from tlite.training.precision import choose_products
from tlite.user_code import name_of

LAST_START, END = 420, 470  # seconds: no part begins after the first, and none goes on after END

ROUNDING = 0.02
"""Largest difference over the largest value. Inputs are exact in bfloat16; the weights, the output,
its gradient and the scores' gradient are rounded to it, each by 2^-8 of itself at most: 0.016 where
all of it adds up. On a CPU it is up to 0.006, and about 1 where a mask is not heeded."""

EARLY, AT_FIRST, COURSE = 50, 0.001, 0.05
"""Nats: of so many steps at first, and of all. On a CPU, seeds 0 to 2, mixed precision differs from
float32, and fused attention from the one written out, by up to 0.0003 in 50 steps and 0.017 in 200,
by which rounding has grown (float32 on one device and two: 0.00001). The bounds are three times
that; a GPU's TF32, where a CPU has float32, rounds less than bfloat16."""

MEMORY, SLACK = 0.1, 2**25
"""A part of what is foretold, and bytes that XLA and cuBLAS may hold beside a program's own."""

GPU_PEAK = {"H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": PEAK["h100"], "H200": PEAK["h200"]}
GPU_PEAK |= {"GH200": PEAK["h200"], "A100": PEAK["a100"], "A10": 125e12, "L40S": 362e12}
"""bfloat16 FLOP/s, as `planning.plan.PEAK`, by words of the device's name: the first that fit."""


class Row(NamedTuple):
    name: str
    found: str
    wanted: str = ""
    ok: bool | None = None  # measured, not checked


def attention_rows(
    device, batch=4, heads=12, length=1024, width=64, attention: Callable = F.fused_attention
) -> Iterator[Row]:
    """The fused attention against its definition in float32: its output and gradients."""
    lengths = np.linspace(length // 2, length, batch).astype(int)
    padding = jnp.asarray(np.arange(length) < lengths[:, None, None, None])
    causal = F.causal_mask(length)
    cases = {
        "no mask": (heads, None),
        "causal": (heads, causal),
        "padding of each example": (heads, padding),
        "a row that sees nothing": (heads, causal & (jnp.arange(length) != 2)[:, None]),
        "two queries' heads to a key's": (heads // 2, causal),
    }

    @partial(jax.jit, static_argnums=0)
    def results(attention, query, key, value, gradient, mask):
        def run(query, key, value):
            return attention(query, key, value, mask)[0]

        output, pull_back = jax.vjp(run, query, key, value)
        return output, *pull_back(gradient)

    def draw(seed: int, heads: int):
        numbers = np.random.default_rng(seed).normal(size=(batch, heads, length, width))
        return jnp.asarray(numbers, jnp.bfloat16).astype(jnp.float32)

    kernels = set()
    for name, (groups, mask) in cases.items():
        inputs = draw(0, heads), draw(1, groups), draw(2, groups), draw(3, heads), mask
        inputs = jax.device_put(inputs, device)
        program = results.lower(attention, *inputs).compile()
        kernels.add("__cudnn$fmha" in program.as_text())
        with jax.default_matmul_precision("highest"):  # a GPU's float32 products are TF32
            expected = results(F.scaled_dot_product_attention, *inputs)
        pairs = zip(("output", *"QKV"), program(*inputs), expected, strict=True)
        errors = [(float(jnp.abs(a - b).max() / jnp.abs(b).max()), n) for n, a, b in pairs]
        holds = all(error <= ROUNDING for error, _ in errors)  # NaN is not
        found = "{:.4f} ({})".format(*max(errors, key=lambda e: np.nan_to_num(e[0], nan=np.inf)))
        yield Row(f"attention, {name}", found, f"at most {ROUNDING}", holds)
    name, on_gpu = f"cuDNN's kernel, {device.device_kind}", device.platform == "gpu"
    yield Row(name, f"{min(kernels)}, {max(kernels)}", f"{on_gpu}, {on_gpu}", kernels == {on_gpu})


def course_rows(device, host, steps: int = 200, **sizes: int) -> Iterator[Row]:
    """Losses of the demo's model, in mixed precision on both; the host's attention is written out,
    as what is fused is so by the process, not by the device."""
    text = BuiltinText().load()
    tokens = CharTokenizer(text).encode(text)
    training = dataclasses.replace(demo.experiment.training, precision="mixed")

    def course(device, attention: str) -> np.ndarray:
        changes = sizes | {"vocabulary_size": int(tokens.max()) + 1, "attention": attention}
        model = dataclasses.replace(demo.experiment.model, **changes)
        with jax.default_device(device):
            trainer = Trainer(generator_task(model), training, jnp.asarray(tokens), [device])
            return trainer.train(trainer.init(), 0, steps)[1]["loss"][:, 0]

    ours, expected = course(device, "fused"), course(host, "mixed")
    for number, bound in ((min(EARLY, steps), AT_FIRST), (steps, COURSE)):
        apart = float(np.abs(ours - expected)[:number].max())
        found = f"{apart:.5f} ({expected[0]:.2f} to {expected[number - 1]:.2f})"
        name = f"losses, {device.platform} - cpu, {number} steps"
        yield Row(name, found, f"at most {bound}", apart <= bound)


def training_rows(
    device, name: str, model: GeneratorConfig, training: TrainingConfig
) -> Iterator[Row]:
    """Steps on random tokens: bytes, as `tlite plan` foretells and the device says; tokens/s."""
    model = choose_products(model, "mixed")
    training = dataclasses.replace(training, precision="mixed")
    tokens = np.random.default_rng(0).integers(model.vocabulary_size, size=2**20, dtype=np.int32)
    seconds, steps = [], 4
    with jax.default_device(device):
        planned = planned_trainer(model, training, [device])
        foretold = bytes_on_a_device(planned, planned.lower().compile())["in all"]
        trainer = Trainer(generator_task(model), training, jnp.asarray(tokens), [device])
        replicas = trainer.init()
        trainer.compile(replicas)
        before = most_held(device)
        replicas, _ = trainer.train(replicas, 0, 1)
        most = most_held(device)
        for _ in range(3):
            began = time.perf_counter()
            replicas, _ = trainer.train(replicas, 1, steps)
            seconds.append(time.perf_counter() - began)
    yield memory_row(f"{name}, memory of a step", foretold, before, most)
    examples = steps * trainer.config.batch_size * trainer.config.gradient_accumulation_steps
    rate = examples * model.context / statistics.median(seconds)
    used, kind = rate * flops_of_generator(model), device.device_kind
    peak = next((f for words, f in GPU_PEAK.items() if re.search(rf"\b{words}\b", kind)), None)
    part = f"{used / peak:.1%} of its peak" if peak else f"{used / 1e12:.3g} TFLOP/s, peak unknown"
    name = f"{name}, {name_of(model.attention.function)} attention"
    wanted = ("at most 100%", used <= peak) if peak else ()  # more: not all the time was counted
    yield Row(name, f"{rate:,.0f} tokens/s, {part}", *wanted)


def most_held(device) -> int | None:
    """Bytes, since the process began; a CPU does not tell."""
    return (device.memory_stats() or {}).get("peak_bytes_in_use")


def memory_row(name: str, foretold: int, before: int | None, most: int | None) -> Row:
    """Where compilation has held as much, `before` the step, the step may have held less."""
    wanted = f"{foretold / 2**20:,.0f} MiB +- 10% and 32 MiB"
    if most is None:
        return Row(name, "the device does not tell", wanted)
    hidden, allowed = before == most, MEMORY * foretold + SLACK
    found = f"{'at most ' if hidden else ''}{most / 2**20:,.0f} MiB"
    least = 0 if hidden else foretold - allowed
    return Row(name, found, wanted, least <= most <= foretold + allowed)


def memory_part(device) -> Iterator[Row]:
    small, large = CPU_TRAINING[2], gpt2.experiment
    config = TrainingConfig(batch_size=small.batch_size)
    yield from training_rows(device, small.name, small.config(), config)
    config = dataclasses.replace(large.training, batch_size=48)  # 4 x 12 windows, not 40 x 12
    yield from training_rows(device, "124M", large.model, config)


def beside_rows(setting: Setting, rounds: int = 3) -> Iterator[Row]:
    """Nothing recomputed; one after the other, as both may not fit into a GPU's memory."""
    contenders = {
        "tlite": ("tlite_worker", {"precision": "mixed"}),
        "PyTorch, compiled": ("torch_worker", {"compile": True, "bf16": True}),
    }
    torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
    if torch is None or not torch.cuda.is_available():
        yield Row(contenders.popitem()[0], "PyTorch with CUDA is not there (extra bench)")
    for name, (module, options) in contenders.items():
        contender = Contender(name, module, "train", setting=setting.name, **options)
        take_turns([contender], rounds)
        tokens = setting.steps * setting.batch_size * setting.context
        rate = tokens / statistics.median(contender.seconds())
        yield Row(f"{name}, {setting.name}", f"{rate:,.0f} tokens/s")


PARTS = {
    "attention": attention_rows,
    "course": lambda device: course_rows(device, jax.devices("cpu")[0]),
    "memory": memory_part,
    "beside": lambda device: beside_rows(GPU_TRAINING),
}


def show_part(part: str) -> int:
    """Its rows as lines of JSON, in this process."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # workers want memory too
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus.partition(",")[0]
    prepare_devices()
    lack = lack_of_platform()
    if lack or jax.default_backend() != "gpu":
        print(f"gpu-check: {lack or 'JAX sees no GPU here: nothing is checked'}", file=sys.stderr)
        return 2
    try:
        for row in PARTS[part](jax.devices()[0]):
            print(json.dumps(row._asdict()), flush=True)
    except UserError as error:  # too little memory, say
        print(json.dumps(Row(part, f"not measured: {error}")._asdict()), flush=True)
    return 0


def run_part(part: str, seconds: float) -> tuple[int, list[Row], str]:
    """Exit code, rows and stderr of a process of its own, killed after so many seconds."""
    asked = os.environ.get("JAX_PLATFORMS")
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.benchmarks.gpu_check", part],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT},
        env=os.environ | ({"JAX_PLATFORMS": f"{asked},cpu"} if asked else {}),
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except BaseException as reason:  # Ctrl-C too
        os.killpg(process.pid, signal.SIGKILL)  # with the workers that it has started
        out, err = process.communicate()
        if not isinstance(reason, subprocess.TimeoutExpired):
            raise
    rows = [Row(**json.loads(line)) for line in out.splitlines() if line.startswith("{")]
    return process.returncode, rows, err


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", nargs="?", choices=PARTS)
    if (part := parser.parse_args().part) is not None:
        return show_part(part)
    began, rows = time.monotonic(), []
    for part in PARTS:
        spent = time.monotonic() - began
        if spent > LAST_START:
            found = [Row(part, f"left out, as {spent:.0f} s have passed")]
        else:
            code, found, err = run_part(part, END - spent)
            if code == 2:
                print(err.splitlines()[-1], file=sys.stderr)
                return 2
            if code:
                wanted = f"0, within {END - spent:.0f} s"
                found.append(Row(part, f"ended with {code}", wanted, False))
                print(err[-2000:], file=sys.stderr)
        rows += found
        for row in found:
            ok = {True: "yes", False: "NO", None: "-"}[row.ok]
            print(f"{row.name:42s} {row.found:42s} {row.wanted:28s} {ok}", flush=True)
    failed, seconds = any(row.ok is False for row in rows), round(time.monotonic() - began)
    print(json.dumps({"ok": not failed, "seconds": seconds, "rows": [r._asdict() for r in rows]}))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
