"""Compare results on a GPU with those on a CPU, and measure memory and speed; no network.

command   make gpu-check
machine   not run on a GPU yet: none was available. Tests run its functions on a CPU.

Exit code 0: all checks hold; 1: one fails; 2: there is no GPU. Rows without a bound are
measurements.
"""

import dataclasses
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments import demo, gpt2
from experiments.benchmarks.settings import TRAINING
from tlite import functional as F
from tlite.comparison.flops import flops_of_generator
from tlite.data import BuiltinText
from tlite.distributed.devices import platform_error_message, prepare_devices
from tlite.errors import UserError
from tlite.models import GeneratorConfig
from tlite.planning.plan import PEAK, bytes_on_a_device, planned_trainer
from tlite.text import CharTokenizer
from tlite.training import Trainer, TrainingConfig, generator_task
from tlite.training.precision import choose_products
from tlite.user_code import name_of

MAX_ROUNDING = 0.02
"""Largest difference over the largest value. Inputs are exact in bfloat16; the weights, the output,
its gradient and the scores' gradient are rounded to it, each by at most 2^-8 of itself: 0.016 if
all of it adds up. On a CPU it is up to 0.006, and about 1 if a mask is ignored."""

EARLY_STEPS, MAX_EARLY, MAX_FINAL = 50, 0.001, 0.05
"""Bounds in nats for the first steps, and for all. On a CPU, seeds 0 to 2, mixed precision differs
from float32, and fused attention from its definition, by up to 0.0003 in 50 steps and 0.017 in 200
(float32 on one device and two: 0.00001). The bounds are three times that; the TF32 of a GPU, where
a CPU has float32, rounds less than bfloat16."""

MEMORY_TOLERANCE, MEMORY_SLACK = 0.1, 2**25
"""Share of the planned bytes, and bytes that XLA and cuBLAS may hold beside a program's own."""

GPU_PEAK = {"H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": PEAK["h100"], "H200": PEAK["h200"]}
GPU_PEAK |= {"GH200": PEAK["h200"], "A100": PEAK["a100"], "A10": 125e12, "L40S": 362e12}
"""bfloat16 FLOP/s by words of the device's name, as `planning.plan.PEAK`; first match counts."""


class Row(NamedTuple):
    name: str
    measured: str
    bound: str = ""
    ok: bool | None = None


def attention_rows(
    device, batch=4, heads=12, length=1024, width=64, attention: Callable = F.fused_attention
) -> Iterator[Row]:
    """Compare outputs and gradients of fused attention with its definition in float32."""
    lengths = np.linspace(length // 2, length, batch).astype(int)
    padding = jnp.asarray(np.arange(length) < lengths[:, None, None, None])
    causal = F.causal_mask(length)
    cases = {
        "no mask": (heads, None),
        "causal": (heads, causal),
        "padding of each example": (heads, padding),
        "a fully masked query": (heads, causal & (jnp.arange(length) != 2)[:, None]),
        "two query heads per key head": (heads // 2, causal),
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
        holds = all(error <= MAX_ROUNDING for error, _ in errors)  # False for NaN
        worst = max(errors, key=lambda e: np.nan_to_num(e[0], nan=np.inf))
        measured = "{:.4f} ({})".format(*worst)
        yield Row(f"attention, {name}", measured, f"at most {MAX_ROUNDING}", holds)
    name, on_gpu = f"cuDNN's kernel, {device.device_kind}", device.platform == "gpu"
    yield Row(name, str(sorted(kernels)), str([on_gpu]), kernels == {on_gpu})


def course_rows(device, host, steps: int = 200, **sizes: int) -> Iterator[Row]:
    """Compare the losses of the demo's model in mixed precision on a device and a host.

    The host has no fused kernel: its attention is the definition.
    """
    text = BuiltinText().load()
    tokens = CharTokenizer(text).encode(text)
    training = dataclasses.replace(demo.experiment.training, precision="mixed")

    def course(device, attention: str) -> np.ndarray:
        changes = sizes | {"vocabulary_size": int(tokens.max()) + 1, "attention": attention}
        model = dataclasses.replace(demo.experiment.model, **changes)
        with jax.default_device(device):
            trainer = Trainer(generator_task(model), training, jnp.asarray(tokens), [device])
            return trainer.train(trainer.init(), 0, steps)[1]["loss"][:, 0]

    losses, expected = course(device, "fused"), course(host, "mixed")
    for number, bound in ((min(EARLY_STEPS, steps), MAX_EARLY), (steps, MAX_FINAL)):
        error = float(np.abs(losses - expected)[:number].max())
        measured = f"{error:.5f} ({expected[0]:.2f} to {expected[number - 1]:.2f})"
        name = f"losses, {device.platform} - cpu, {number} steps"
        yield Row(name, measured, f"at most {bound}", error <= bound)


def training_rows(
    device, name: str, model: GeneratorConfig, training: TrainingConfig
) -> Iterator[Row]:
    """Train on random tokens: planned and measured bytes, tokens/s."""
    model = choose_products(model, "mixed")
    training = dataclasses.replace(training, precision="mixed")
    tokens = np.random.default_rng(0).integers(model.vocabulary_size, size=2**20, dtype=np.int32)
    seconds, steps = [], 4
    with jax.default_device(device):
        planned = planned_trainer(model, training, [device])
        planned_bytes = bytes_on_a_device(planned, planned.lower().compile())["in all"]
        trainer = Trainer(generator_task(model), training, jnp.asarray(tokens), [device])
        replicas = trainer.init()
        trainer.compile(replicas)
        before = peak_bytes(device)
        replicas, _ = trainer.train(replicas, 0, 1)
        after = peak_bytes(device)
        for _ in range(3):
            began = time.perf_counter()
            replicas, _ = trainer.train(replicas, 1, steps)
            seconds.append(time.perf_counter() - began)
    yield memory_row(f"{name}, memory of a step", planned_bytes, before, after)
    examples = steps * trainer.config.batch_size * trainer.config.gradient_accumulation_steps
    rate = examples * model.context / median(seconds)
    flops, kind = rate * flops_of_generator(model), device.device_kind
    peak = next((f for words, f in GPU_PEAK.items() if re.search(rf"\b{words}\b", kind)), None)
    share = f"{flops / peak:.1%} of its peak" if peak else f"{flops / 1e12:.3g} TFLOP/s"
    name = f"{name}, {name_of(model.attention.function)} attention"
    bound = ("at most 100%", flops <= peak) if peak else ()  # more: the timing is wrong
    yield Row(name, f"{rate:,.0f} tokens/s, {share}", *bound)


def peak_bytes(device) -> int | None:
    """Return the peak of the bytes in use since the process began; None on a CPU."""
    return (device.memory_stats() or {}).get("peak_bytes_in_use")


def memory_row(name: str, planned: int, before: int | None, after: int | None) -> Row:
    """Compare the peak after a step with the plan.

    If the peak has not risen since `before` the step, it is only an upper bound.
    """
    bound = f"{planned / 2**20:,.0f} MiB +- 10% and 32 MiB"
    if after is None:
        return Row(name, "not reported by the device", bound)
    is_bound, tolerance = before == after, MEMORY_TOLERANCE * planned + MEMORY_SLACK
    measured = f"{'at most ' if is_bound else ''}{after / 2**20:,.0f} MiB"
    lower = 0 if is_bound else planned - tolerance
    return Row(name, measured, bound, lower <= after <= planned + tolerance)


def all_rows(device) -> Iterator[Row]:
    """Yield all rows; memory first, from small to large, as peaks never fall."""
    small, large = TRAINING["10.8M"], gpt2.experiment
    config = TrainingConfig(batch_size=small.batch_size)
    yield from training_rows(device, small.name, small.config(), config)
    config = dataclasses.replace(large.training, batch_size=48)  # 4 x 12 windows, not 40 x 12
    yield from training_rows(device, "124M", large.model, config)
    yield from attention_rows(device)
    yield from course_rows(device, jax.devices("cpu")[0])


def main() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.partition(",")[0]
    if platforms := os.environ.get("JAX_PLATFORMS"):
        jax.config.update("jax_platforms", f"{platforms.removesuffix(',cpu')},cpu")
    prepare_devices()
    error = platform_error_message()
    if error or jax.default_backend() != "gpu":
        print(f"gpu-check: {error or 'JAX sees no GPU here: nothing is checked'}", file=sys.stderr)
        return 2
    failed = False
    try:
        for row in all_rows(jax.devices()[0]):
            status = {True: "yes", False: "NO", None: "-"}[row.ok]
            print(f"{row.name:42s} {row.measured:42s} {row.bound:28s} {status}", flush=True)
            failed |= row.ok is False
    except UserError as error:  # for example, too little memory
        print(f"gpu-check: {error}", file=sys.stderr)
        failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
