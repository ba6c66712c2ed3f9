"""tlite's side of the benchmark: training steps, and the peaks of the machine."""

import re
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median

import jax
import jax.numpy as jnp

from experiments.benchmarks.settings import Setting
from experiments.benchmarks.worker import run_job, serve, serve_training, timed
from tlite.distributed.devices import prepare_devices
from tlite.functional import float32_products
from tlite.training import Trainer


def start_training(options: dict) -> tuple[Setting, Trainer, Callable[[int], list[float]]]:
    """Return setting and trainer, and a function that trains steps and returns their losses."""
    prepare_devices()
    jax.config.update("jax_enable_compilation_cache", False)  # to time compilation
    setting = Setting(**options["setting"])
    trainer = setting.make_trainer(options["precision"])
    state, step = trainer.init(), 0

    def train_steps(num_steps: int) -> list[float]:
        nonlocal state, step
        state, losses = trainer.train(state, step, num_steps)
        step += num_steps
        return losses["loss"][:, 0].tolist()

    return setting, trainer, train_steps


def train(options: dict) -> None:
    setting, trainer, train_steps = start_training(options)
    serve_training(train_steps, setting.steps, trainer.num_parameters)


KINDS = {  # names of XLA's CPU operations; each is of the first kind that matches
    "matrix products": "ynn|dot|matmul",
    "waiting for the other core": "all-reduce|all-gather|collective",
    "moves in memory": "copy|transpose",
    "conversions": "convert",
    "fused sums and element-wise operations": "fusion|wrapped|reduce",
}


def profile(options: dict) -> None:
    """Measure the share of each kind of operation in the time of a training step."""
    setting, _, train_steps = start_training(options)
    train_steps(setting.steps)

    def shares() -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                train_steps(setting.steps)
            (path,) = Path(folder).rglob("*.xplane.pb")
            planes = jax.profiler.ProfileData.from_file(str(path)).planes
        durations = Counter()
        for event in (e for plane in planes for line in plane.lines for e in line.events):
            if re.fullmatch(r"[a-z][\w.-]*", event.name):  # an operation of the program
                kinds = (kind for kind, names in KINDS.items() if re.search(names, event.name))
                durations[next(kinds, "")] += event.duration_ns
        del durations[""]  # loops and calls, which contain the others
        return {kind: durations[kind] / durations.total() for kind in KINDS}

    serve({}, shares)


def peaks(options: dict) -> None:
    """Measure FLOP/s of a large product in float32 and with bfloat16 operands, and bytes/s."""
    x = jax.random.normal(jax.random.key(0), (2048, 2048))
    large = jnp.ones((64, 1 << 20))

    def square(x: jax.Array) -> jax.Array:
        return jax.lax.dot(x, x, preferred_element_type=jnp.float32)

    def seconds(function: Callable, x: jax.Array) -> float:
        return median(timed(lambda: function(x).block_until_ready())[1] for _ in range(7))

    products = {
        "float32": (jax.jit(float32_products(square)), x),
        "mixed": (jax.jit(square), x.astype(jnp.bfloat16)),
    }
    row_sums = jax.jit(lambda x: x.sum(-1))

    def rates() -> dict[str, float]:
        flops = {name: 2 * 2048**3 / seconds(*call) for name, call in products.items()}
        return flops | {"bytes": large.nbytes / seconds(row_sums, large)}

    rates()
    serve({"platform": jax.default_backend()}, rates)


if __name__ == "__main__":
    run_job({"train": train, "profile": profile, "peaks": peaks})
