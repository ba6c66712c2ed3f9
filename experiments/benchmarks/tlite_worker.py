"""tlite's side of the benchmark: training steps, and the peaks of the machine."""

import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

from experiments.benchmarks.settings import find_setting
from experiments.benchmarks.worker import run_job, serve
from tlite.distributed.devices import prepare_devices
from tlite.training import Trainer


def make_round(options: dict) -> tuple[Trainer, Callable[[], dict]]:
    """Return a trainer, and a function that does a round of steps."""
    prepare_devices()
    jax.config.update("jax_enable_compilation_cache", False)  # compile seconds are without it
    setting = find_setting(options)
    trainer = setting.make_trainer(options["precision"])
    state = {"replicas": trainer.init(), "step": 0}

    def run_steps() -> dict:
        replicas, losses = trainer.train(state["replicas"], state["step"], setting.steps)
        state.update(replicas=replicas, step=state["step"] + setting.steps)
        return {"loss": float(losses["loss"].mean())}

    return trainer, run_steps


def train(options: dict) -> None:
    trainer, run_steps = make_round(options)
    began = time.perf_counter()
    first_round = run_steps()
    compile_seconds = time.perf_counter() - began
    ready = {"parameters": trainer.num_parameters, "compile_seconds": compile_seconds}
    serve(ready | first_round, run_steps)


KINDS = {  # names of XLA's CPU operations; the first kind that matches counts
    "products": "ynn|dot|matmul",
    "waiting for the other core": "all-reduce|all-gather|collective",
    "moves in memory": "copy|transpose",
    "conversions": "convert",
    "fused sums and element-wise operations": "fusion|wrapped|reduce",
}


def profile(options: dict) -> None:
    """Measure the share of each kind of operation in the time of a training step."""
    _, run_steps = make_round(options)
    run_steps()

    def shares() -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                run_steps()
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


def peak(options: dict) -> None:
    """Measure FLOP/s of a large product in float32 and with bfloat16 operands, and bytes/s."""
    a = jax.random.normal(jax.random.key(0), (2048, 2048))
    product = jax.jit(lambda x: jax.lax.dot(x, x, preferred_element_type=jnp.float32))
    large = jnp.ones((64, 1 << 20))
    add = jax.jit(lambda x: x.sum(-1))

    def seconds(function, x) -> float:
        function(x).block_until_ready()
        times = []
        for _ in range(7):
            began = time.perf_counter()
            function(x).block_until_ready()
            times.append(time.perf_counter() - began)
        return sorted(times)[len(times) // 2]

    def rates() -> dict[str, float]:
        types = {"float32": jnp.float32, "mixed": jnp.bfloat16}
        flops = {n: 2 * 2048**3 / seconds(product, a.astype(t)) for n, t in types.items()}
        return flops | {"bytes": large.nbytes / seconds(add, large)}

    rates()
    serve({"platform": jax.default_backend()}, rates)


if __name__ == "__main__":
    run_job({"train": train, "profile": profile, "peak": peak})
