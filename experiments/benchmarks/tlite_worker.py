"""tlite's side of the benchmark: training steps and generation."""

import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

from experiments.benchmarks.settings import GENERATION, NEW_TOKENS, TRAINING
from experiments.benchmarks.worker import serve, work
from tlite.data import BuiltinText
from tlite.decoding import generate
from tlite.decoding.generate import plan_chunks
from tlite.distributed.devices import prepare_devices
from tlite.models import CausalLM, count_parameters
from tlite.text import CharTokenizer
from tlite.training import Trainer, TrainingConfig, generator_task
from tlite.training.precision import choose_products


def prepared(options: dict) -> tuple[Trainer, Callable[[], dict]]:
    """A trainer, and a function that does a round of steps."""
    prepare_devices()
    setting = next(s for s in TRAINING if s.name == options["setting"])
    text = BuiltinText().load()
    tokens = CharTokenizer(text).encode(text) % setting.vocabulary_size
    config = TrainingConfig(batch_size=setting.batch_size, precision=options["precision"])
    model = choose_products(setting.config(), options["precision"])
    task = generator_task(model)
    trainer = Trainer(task, config, jnp.asarray(tokens))
    state = {"replicas": trainer.init(), "step": 0}

    def round_of_steps() -> dict:
        replicas, losses = trainer.train(state["replicas"], state["step"], setting.steps)
        state.update(replicas=replicas, step=state["step"] + setting.steps)
        return {"loss": float(losses["loss"].mean())}

    return trainer, round_of_steps


def train(options: dict) -> None:
    trainer, round_of_steps = prepared(options)
    began = time.perf_counter()
    round_of_steps()
    compile_seconds = time.perf_counter() - began
    serve(
        {"parameters": trainer.num_parameters, "compile_seconds": compile_seconds}, round_of_steps
    )


KINDS = {  # by what XLA's CPU compiler calls its operations; the first that is found
    "products": "ynn|dot|matmul",
    "waiting for the other core": "all-reduce|all-gather|collective",
    "moves in memory": "copy|transpose",
    "conversions": "convert",
    "fused sums and element-wise operations": "fusion|wrapped|reduce",
}


def profile(options: dict) -> None:
    """What each kind of operation takes of a training step's time on the devices."""
    _, round_of_steps = prepared(options)
    round_of_steps()

    def shares() -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                round_of_steps()
            (path,) = Path(folder).rglob("*.xplane.pb")
            planes = jax.profiler.ProfileData.from_file(str(path)).planes
        spent = Counter()
        for event in (e for plane in planes for line in plane.lines for e in line.events):
            if re.fullmatch(r"[a-z][\w.-]*", event.name):  # an operation of the program
                kinds = (kind for kind, names in KINDS.items() if re.search(names, event.name))
                spent[next(kinds, "")] += event.duration_ns
        del spent[""]  # loops and calls, which hold the others
        return {kind: spent[kind] / spent.total() for kind in KINDS}

    serve({}, shares)


def write(options: dict) -> None:
    prepare_devices()
    model = CausalLM(GENERATION.config(), rng=jax.random.key(0))
    samples = options["samples"]
    prompt = jnp.zeros((1,) if samples == 1 else (samples, 1), jnp.int32)

    def one_text() -> dict:
        tokens = generate(model, prompt, num_tokens=NEW_TOKENS, rng=jax.random.key(0))
        return {"tokens": tokens.block_until_ready().size}

    began = time.perf_counter()
    one_text()
    compile_seconds = time.perf_counter() - began
    one_text()
    weights, token = (
        sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
        for tree in (model, jax.eval_shape(lambda: model.empty_caches(samples, capacity=1)))
    )
    chunks = plan_chunks(1, NEW_TOKENS, GENERATION.context)
    cached = sum(chunk.count * chunk.capacity for chunk in chunks)
    ready = {"parameters": count_parameters(model), "compile_seconds": compile_seconds}
    serve(ready | {"bytes_read": NEW_TOKENS * weights + cached * token}, one_text)


def peak(options: dict) -> None:
    """FLOP/s of one large matrix product, in float32 and with bfloat16 operands; bytes/s read."""
    a = jax.random.normal(jax.random.key(0), (2048, 2048))
    product = jax.jit(lambda x: jax.lax.dot(x, x, preferred_element_type=jnp.float32))
    many = jnp.ones((64, 1 << 20))
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
        found = {n: 2 * 2048**3 / seconds(product, a.astype(t)) for n, t in types.items()}
        return found | {"bytes": many.nbytes / seconds(add, many)}

    rates()
    serve({"device": jax.devices()[0].device_kind, "platform": jax.default_backend()}, rates)


if __name__ == "__main__":
    work({"train": train, "profile": profile, "write": write, "peak": peak})
