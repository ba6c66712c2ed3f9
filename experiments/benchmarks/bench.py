"""Time tlite and PyTorch in turn on the same work, and print by how much one is faster.

command   make bench

Each contender is a process that has compiled and warmed up; rounds go A B C A B C ..., so that a
disturbance of the machine affects all. Both sides train from the same parameters on the same
batches. A ratio is tlite / the fastest PyTorch variant, round by round; the median and the range
over the rounds are printed. "first call s" is the time of the first training step, or of the first
call that generates, with compilation. Contenders in bfloat16 are left out where the machine
multiplies it slower than float32. On a GPU products in float32 are not in TF32, on either side.
Results also go to a JSON file.
"""

import dataclasses
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np
import tyro

from experiments.benchmarks.generation_worker import WORK
from experiments.benchmarks.settings import CPU_TRAINING, TRAINING, Setting
from tlite.errors import UserError
from tlite.training.metrics import read_metrics

ROOT = Path(__file__).parents[2]
PARTS = "all", *TRAINING, "profile", *WORK, "start"
PROFILED = TRAINING["10.8M"], TRAINING["0.8M-context-512"]
MAX_LOSS_DIFFERENCE = 0.01
# Contenders share one GPU, and compile anew. Unfiltered, JAX's last line is the error.
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0],
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    "JAX_TRACEBACK_FILTERING": "off",
}
PYTORCH = {
    "PyTorch eager": {"compile": False, "bf16": False},
    "PyTorch compile": {"compile": True, "bf16": False},
    "PyTorch bf16 autocast": {"compile": False, "bf16": True},
    "PyTorch compile + bf16": {"compile": True, "bf16": True},
}


class Contender:
    """A worker process that times one round for each request."""

    def __init__(self, name: str, module: str, job: str, **options):
        self.name = name
        command = [sys.executable, "-m", f"experiments.benchmarks.{module}", job]
        self.stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by close())
        self.process = subprocess.Popen(
            [*command, json.dumps(options, default=dataclasses.asdict)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            text=True,
            cwd=ROOT,
            env=os.environ | ENVIRONMENT,
        )
        self.ready = self._read()
        self.rounds: list[dict] = []

    def _read(self) -> dict:
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        self.process.wait()
        self.stderr.seek(0)
        lines = [*filter(str.strip, self.stderr)] or [f"exit code {self.process.returncode}"]
        raise UserError(f"{self.name} failed: {lines[-1].strip()}")

    def run(self) -> None:
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.rounds.append(self._read())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.stderr.close()

    def seconds(self) -> list[float]:
        return [r["seconds"] for r in self.rounds]


def take_turns(contenders: list[Contender], num_rounds: int) -> None:
    for _ in range(num_rounds):
        for contender in contenders:
            contender.run()
    for contender in contenders:
        contender.close()


def check_parameters(contenders: list[Contender]) -> None:
    """Raise a `UserError` if the models of contenders differ in their number of parameters."""
    counts = {contender.name: contender.ready["parameters"] for contender in contenders}
    if len(set(counts.values())) > 1:
        raise UserError(f"the models differ in their numbers of parameters: {counts}")


def check_losses(contenders: list[Contender]) -> float:
    """Return the largest difference of their mean losses in the first two rounds.

    Raises:
        UserError: it is above `MAX_LOSS_DIFFERENCE`, so they do not do the same work.
    """
    losses = {c.name: [c.ready["loss"], c.rounds[0]["loss"]] for c in contenders}
    difference = float(np.ptp([*losses.values()], axis=0).max())
    if not difference <= MAX_LOSS_DIFFERENCE:  # also if a loss is NaN
        raise UserError(f"mean losses of a round differ by {difference:.3f}: {losses}")
    return difference


def fastest(contenders: list[Contender]) -> Contender:
    return min(contenders, key=lambda c: median(c.seconds()))


def compare(tlite: list[Contender], others: list[Contender], num_tokens: float) -> dict:
    """Print and return the rates, and by what factor the fastest of tlite is faster."""
    print(f"  {'contender':28s} {'tokens/s':>10s} {'first call s':>13s}")
    for contender in [*tlite, *others]:
        rate = num_tokens / median(contender.seconds())
        print(f"  {contender.name:28s} {rate:10,.0f} {contender.ready['first_seconds']:13.1f}")
    best, other = fastest(tlite), fastest(others)
    ratios = [b / a for a, b in zip(best.seconds(), other.seconds(), strict=True)]
    interval = f"({min(ratios):.2f} to {max(ratios):.2f})"
    print(f"  {best.name} / {other.name}: {median(ratios):.2f} {interval}", flush=True)
    rates = {c.name: [num_tokens / s for s in c.seconds()] for c in [*tlite, *others]}
    return {"tokens_per_second": rates, "best": [best.name, other.name], "ratios": ratios}


def measure_peaks() -> tuple[dict[str, float], str]:
    """Return FLOP/s in float32 and with bfloat16 operands, bytes/s; and the platform."""
    contender = Contender("peaks", "tlite_worker", "peaks")
    take_turns([contender], 3)
    names = "float32", "mixed", "bytes"
    peaks = {name: median(r[name] for r in contender.rounds) for name in names}
    print(
        f"one 2048 x 2048 product: {peaks['float32'] / 1e9:,.0f} GFLOP/s in float32, "
        f"{peaks['mixed'] / 1e9:,.0f} with bfloat16 operands; "
        f"a sum of 268 MB: {peaks['bytes'] / 1e9:.1f} GB/s"
    )
    return peaks, contender.ready["platform"]


def choose_precisions(peaks: dict[str, float]) -> list[str]:
    """Return the precisions to time; mixed only if bfloat16 products are faster than float32."""
    return ["float32", "mixed"] if peaks["mixed"] > peaks["float32"] else ["float32"]


def train_in_turn(
    setting: Setting, num_rounds: int, precisions: list[str]
) -> tuple[list[Contender], list[Contender]]:
    """Time training in turn; return the contenders of tlite and of PyTorch, with their rounds."""
    tlite = [
        Contender(f"tlite {name}", "tlite_worker", "train", setting=setting, precision=name)
        for name in precisions
    ]
    others = [
        Contender(name, "torch_worker", "train", setting=setting, rounds=num_rounds, **options)
        for name, options in PYTORCH.items()
        if "mixed" in precisions or not options["bf16"]
    ]
    check_parameters([*tlite, *others])
    take_turns([*tlite, *others], num_rounds)
    return tlite, others


def time_training(setting: Setting, num_rounds: int, peaks: dict[str, float]) -> dict:
    sizes = f"width {setting.width}, {setting.num_blocks} blocks, context {setting.context}"
    print(f"\ntraining {setting.name}: {sizes}, batch {setting.batch_size}")
    precisions = choose_precisions(peaks)
    # Losses are compared without dropout, which draws other noise in PyTorch.
    without_dropout = dataclasses.replace(setting, dropout=0.0)
    tlite, others = train_in_turn(without_dropout, 1 if setting.dropout else num_rounds, precisions)
    difference = check_losses([*tlite, *others])
    if setting.dropout:
        tlite, others = train_in_turn(setting, num_rounds, precisions)
    num_tokens = setting.steps * setting.batch_size * setting.context
    result, best = compare(tlite, others, num_tokens), fastest(tlite)
    num_parameters, flops = best.ready["parameters"], setting.flops_per_token()
    peak = peaks["mixed" if "mixed" in best.name else "float32"]
    share = num_tokens / median(best.seconds()) * flops / peak
    print(f"  {num_parameters:,} parameters, {flops / 1e6:.2f} MFLOP a token, ", end="")
    print(f"utilisation {share:.0%}")
    print(f"  without dropout the mean losses of two rounds differ by at most {difference:.5f}")
    result |= {"parameters": num_parameters, "utilisation": share}
    return result | {"loss_difference": difference}


def profile(setting: Setting, precision: str, num_rounds: int) -> dict[str, float]:
    """Print and return the shares of kinds of operations in a training step."""
    options = {"setting": setting, "precision": precision}
    contender = Contender("profile", "tlite_worker", "profile", **options)
    take_turns([contender], num_rounds)
    kinds = [kind for kind in contender.rounds[0] if kind != "seconds"]
    shares = {kind: median(r[kind] for r in contender.rounds) for kind in kinds}
    text = ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items())
    print(f"\na step of {setting.name}, {precision}, by jax.profiler: {text}", flush=True)
    return shares


def time_generation(name: str, work: tuple, num_rounds: int, peaks: dict[str, float]) -> dict:
    _, samples, length, new_tokens = work
    print(f"\n{name}: {samples} sample(s), {new_tokens} token(s) after {length}")
    tlite = Contender("tlite", "generation_worker", "tlite", work=work)
    others = [
        Contender(f"Hugging Face, {a}", "generation_worker", "hugging-face", work=work, attention=a)
        for a in ("eager", "sdpa")
    ]
    check_parameters([tlite, *others])
    take_turns([tlite, *others], num_rounds)
    result = compare([tlite], others, samples * (new_tokens if new_tokens > 1 else length))
    rate = tlite.ready["bytes_read"] / median(tlite.seconds())
    print(f"  {rate / 1e9:.1f} GB/s of weights and caches, {rate / peaks['bytes']:.0%} of a sum's")
    return result


def time_first_step(num_rounds: int) -> dict[str, float]:
    """Time the demo from the command to its first step: imports, data, compilation."""
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"XDG_CACHE_HOME": f"{folder}/cache"}
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        for index in range(1 + num_rounds):  # the first has an empty compilation cache
            run = Path(folder) / f"run{index}"
            command = [sys.executable, "-m", "tlite", "train", "demo", "--run", str(run)]
            began = time.perf_counter()
            process = subprocess.Popen(
                command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL
            )
            while not read_metrics(run / "metrics.jsonl"):
                if process.poll() is not None:
                    raise UserError("the demo ended before its first step")
                time.sleep(0.01)
            seconds.append(time.perf_counter() - began)
            process.kill()
            process.wait()
    cold, warm = seconds[0], median(seconds[1:])
    print(f"\nfirst step of the demo: {cold:.1f} s after the command with an empty ", end="")
    print(f"compilation cache, {warm:.1f} s with a warm one", flush=True)
    return {"cold": cold, "warm": warm}


@dataclass
class Options:
    """Time tlite and PyTorch on the same work."""

    rounds: int = 7
    """Rounds of training and of each profile."""
    generation_rounds: int = 3
    """Rounds of generation, and starts of the demo with cached programs."""
    only: Literal[PARTS] = "all"
    """One part of the work alone."""
    folder: Path = Path("runs/bench")
    """Folder of the JSON file."""


def run(options: Options, results: dict) -> None:
    """Run the chosen parts, and add the results of each to `results`."""
    peaks, backend = measure_peaks()
    settings = TRAINING.values() if backend == "gpu" else CPU_TRAINING
    if options.only != "all":
        settings = [s for s in TRAINING.values() if s.name == options.only]
    results |= {"peaks": peaks, "training": {}}
    for setting in settings:
        results["training"][setting.name] = time_training(setting, options.rounds, peaks)
    for part, works in WORK.items():
        if options.only in ("all", part):
            rounds = options.generation_rounds
            results[part] = {n: time_generation(n, w, rounds, peaks) for n, w in works.items()}
    if options.only in ("all", "profile"):
        results["profile"] = {
            f"{setting.name} {precision}": profile(setting, precision, options.rounds)
            for setting in PROFILED
            for precision in choose_precisions(peaks)
        }
    if options.only in ("all", "start"):
        results["first_step_seconds"] = time_first_step(options.generation_rounds)


def main() -> int:
    options = tyro.cli(Options)
    machine = platform.processor() or platform.machine()
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "torch", "transformers"))
    print(f"{machine}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}")
    results: dict = {}
    try:
        run(options, results)
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    finally:  # also what was measured before an error
        if results:
            options.folder.mkdir(parents=True, exist_ok=True)
            (options.folder / "bench.json").write_text(json.dumps(results, indent=2))
            print(f"\nsaved in {options.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
