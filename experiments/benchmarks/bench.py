"""Times tlite and PyTorch in turn on the same work, and says by how much one is faster.

command   make bench

Each contender is a process that has compiled and warmed up; rounds go A B C A B C ..., so that a
disturbance of the machine meets all. A ratio is tlite / the fastest PyTorch variant, round by
round; printed are the median and the range over the rounds. Results also go to a JSON file and a
picture in runs/bench/.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import tyro

from experiments.benchmarks.gpt2_worker import WORK as GPT2_WORK
from experiments.benchmarks.settings import CPU_TRAINING, GENERATION, NEW_TOKENS, TRAINING
from tlite.errors import UserError
from tlite.training.metrics import read_metrics

ROOT = Path(__file__).parents[2]
PARTS = "all", *(s.name for s in TRAINING), "profile", "generation", "gpt2", "start"


class Contender:
    """A worker process that times one round whenever it is asked."""

    def __init__(self, name: str, module: str, job: str, **options):
        self.name = name
        command = [sys.executable, "-m", f"experiments.benchmarks.{module}", job]
        self.process = subprocess.Popen(
            [*command, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )
        self.ready = self._answer()
        self.rounds: list[dict] = []

    def _answer(self) -> dict:
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise UserError(f"{self.name} ended before it was asked: is the bench extra installed?")

    def run(self) -> None:
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.rounds.append(self._answer())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()

    def seconds(self) -> list[float]:
        return [r["seconds"] for r in self.rounds]


def take_turns(contenders: list[Contender], num_rounds: int) -> None:
    for _ in range(num_rounds):
        for contender in contenders:
            contender.run()
    for contender in contenders:
        contender.close()


def check_parameters(contenders: list[Contender]) -> int:
    """One number of parameters for all, or no comparison."""
    counts = {contender.name: contender.ready["parameters"] for contender in contenders}
    if len(set(counts.values())) > 1:
        raise UserError(f"the models differ in their numbers of parameters: {counts}")
    return next(iter(counts.values()))


def fastest(contenders: list[Contender]) -> Contender:
    return min(contenders, key=lambda c: statistics.median(c.seconds()))


def compare(ours: list[Contender], theirs: list[Contender], work: float) -> dict:
    """The fastest of ours against the fastest of theirs; `work` is the tokens in one round."""
    best, other = fastest(ours), fastest(theirs)
    ratios = [b / a for a, b in zip(best.seconds(), other.seconds(), strict=True)]
    print(f"  {'contender':28s} {'tokens/s':>10s} {'compile s':>10s}")
    for contender in [*ours, *theirs]:
        rate = work / statistics.median(contender.seconds())
        print(f"  {contender.name:28s} {rate:10,.0f} {contender.ready['compile_seconds']:10.1f}")
    print(
        f"  {best.name} / {other.name}: {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f})",
        flush=True,
    )
    return {
        "tokens_per_second": {c.name: [work / s for s in c.seconds()] for c in [*ours, *theirs]},
        "compile_seconds": {c.name: c.ready["compile_seconds"] for c in [*ours, *theirs]},
        "best": [best.name, other.name],
        "ratios": ratios,
    }


def measured_peak() -> tuple[dict[str, float], str]:
    """FLOP/s in float32 and with bfloat16 operands, bytes/s; and the kind of device."""
    contender = Contender("peak", "tlite_worker", "peak")
    take_turns([contender], 3)
    names = "float32", "mixed", "bytes"
    peaks = {name: statistics.median(r[name] for r in contender.rounds) for name in names}
    print(
        f"one 2048 x 2048 product: {peaks['float32'] / 1e9:,.0f} GFLOP/s in float32, "
        f"{peaks['mixed'] / 1e9:,.0f} with bfloat16 operands; "
        f"a sum of 268 MB: {peaks['bytes'] / 1e9:.1f} GB/s"
    )
    return peaks, contender.ready["platform"]


def training(setting, num_rounds: int, peaks: dict[str, float]) -> dict:
    print(
        f"\ntraining {setting.name}: width {setting.width}, {setting.num_blocks} blocks, ", end=""
    )
    print(f"context {setting.context}, batch {setting.batch_size}")
    ours = [
        Contender(f"tlite {p}", "tlite_worker", "train", setting=setting.name, precision=p)
        for p in ("float32", "mixed")
    ]
    variants = {
        "PyTorch eager": {"compile": False, "bf16": False},
        "PyTorch compile": {"compile": True, "bf16": False},
        "PyTorch bf16 autocast": {"compile": False, "bf16": True},
        "PyTorch compile + bf16": {"compile": True, "bf16": True},
    }
    theirs = [
        Contender(name, "torch_worker", "train", setting=setting.name, **options)
        for name, options in variants.items()
    ]
    num_parameters = check_parameters([*ours, *theirs])
    take_turns([*ours, *theirs], num_rounds)
    work = setting.steps * setting.batch_size * setting.context
    result, best = compare(ours, theirs, work), fastest(ours)
    losses = {c.name: c.rounds[-1]["loss"] for c in [*ours, *theirs]}
    flops = setting.flops_per_token()
    rate = work / statistics.median(best.seconds())
    use = rate * flops / peaks["mixed" if "mixed" in best.name else "float32"]
    print(
        f"  {num_parameters:,} parameters, {flops / 1e6:.2f} MFLOP a token, utilisation {use:.0%}"
    )
    print(f"  losses after the last round: {', '.join(f'{k} {v:.3f}' for k, v in losses.items())}")
    if max(losses.values()) - min(losses.values()) > 0.25:
        raise UserError(f"the losses do not fall alike, so the speeds do not compare: {losses}")
    return result | {"parameters": num_parameters, "utilisation": use, "losses": losses}


def profile(num_rounds: int) -> dict[str, float]:
    """What the kinds of operations take of a step of the largest setting that a CPU trains."""
    setting = max(CPU_TRAINING, key=lambda setting: setting.width)
    contender = Contender("", "tlite_worker", "profile", setting=setting.name, precision="mixed")
    take_turns([contender], num_rounds)
    rounds = contender.rounds
    shares = {kind: statistics.median(r[kind] for r in rounds) for kind in rounds[0]}
    del shares["seconds"]
    said = ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items())
    print(f"\na step of {setting.name}, mixed, by jax.profiler: {said}", flush=True)
    return shares


def generation(samples: int, num_rounds: int, peaks: dict[str, float]) -> dict:
    print(f"\ngeneration, {GENERATION.name}: {samples} sample(s) of {NEW_TOKENS} tokens")
    ours = Contender("tlite", "tlite_worker", "write", samples=samples)
    naive = Contender("nanoGPT's generate", "torch_worker", "write", samples=samples)
    cached = Contender("Hugging Face, cached", "torch_worker", "write-cached", samples=samples)
    num_parameters = check_parameters([ours, naive, cached])
    take_turns([ours, naive, cached], num_rounds)
    work = samples * NEW_TOKENS
    result = {
        "parameters": num_parameters,
        "naive": compare([ours], [naive], work),
        "cached": compare([ours], [cached], work),
    }
    rate = ours.ready["bytes_read"] / statistics.median(ours.seconds())
    print(f"  {rate / 1e9:.1f} GB/s of weights and caches, {rate / peaks['bytes']:.0%} of a sum's")
    return result


def gpt2(name: str, num_rounds: int) -> dict:
    """GPT-2's shape: speed, seconds of the first call (nothing is compiled yet), memory."""
    samples, length, new_tokens = GPT2_WORK[name]
    print(f"\nGPT-2's shape, {name}: {samples} sample(s), {new_tokens} token(s) after {length}")
    ours = Contender("tlite", "gpt2_worker", "tlite", work=name)
    theirs = [
        Contender(f"Hugging Face, {a}", "gpt2_worker", "hugging-face", work=name, attention=a)
        for a in ("eager", "sdpa")
    ]
    everyone = [ours, *theirs]
    check_parameters(everyone)
    take_turns(everyone, num_rounds)
    result = compare([ours], theirs, samples * (new_tokens if new_tokens > 1 else length))
    print("  (seconds are of the whole first call)", end="")
    peaks = {c.name: [c.ready["first_peak_mb"], c.rounds[-1]["peak_mb"]] for c in everyone}
    of_each = (f"{who} {first:,.0f}, {last:,.0f}" for who, (first, last) in peaks.items())
    print(f"; peak MB after the first and the last call: {'; '.join(of_each)}", flush=True)
    return result | {"peak_mb": peaks}


def first_step(num_rounds: int) -> dict[str, float]:
    """Seconds from the command to the first step of the demo: imports, data, compilation."""
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"XDG_CACHE_HOME": f"{folder}/cache"}
        for index in range(1 + num_rounds):  # the first finds an empty compilation cache
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
    result = {"cold": seconds[0], "warm": statistics.median(seconds[1:])}
    print(
        f"\nfirst step of the demo: {result['cold']:.1f} s after the command with an empty ", end=""
    )
    print(f"compilation cache, {result['warm']:.1f} s with a warm one", flush=True)
    return result


def draw(results: dict, path: Path) -> None:
    """Tokens per second of every contender, one panel a work."""
    panels = {name: r.get("tokens_per_second") for name, r in results["training"].items()}
    for name, r in results["generation"].items():
        panels[name] = r["naive"]["tokens_per_second"] | r["cached"]["tokens_per_second"]
    for name, r in results["gpt2"].items():
        panels[f"GPT-2, {name}"] = r["tokens_per_second"]
    size = 3.2 * len(panels), 3.4
    figure, grid = plt.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)
    for axes, (title, rates) in zip(grid[0], panels.items(), strict=True):
        medians = [statistics.median(values) for values in rates.values()]
        colours = ["tab:blue" if name.startswith("tlite") else "tab:gray" for name in rates]
        axes.barh(list(rates), medians, color=colours)
        axes.invert_yaxis()
        axes.set(title=title, xlabel="tokens per second")
        axes.tick_params(labelsize=8)
        axes.ticklabel_format(axis="x", style="plain")
        axes.locator_params(axis="x", nbins=3)
    figure.savefig(path, dpi=120)


@dataclass
class Options:
    """Time tlite and PyTorch on the same work."""

    rounds: int = 7
    """Rounds of training."""
    generation_rounds: int = 3
    """Rounds of generation (a round of nanoGPT's with 16 samples takes about 40 s)."""
    only: Literal[PARTS] = "all"
    """One part of the work alone."""
    folder: Path = Path("runs/bench")
    """Where the JSON file and the picture go."""


def main() -> int:
    options = tyro.cli(Options)
    try:
        print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores")
        peaks, backend = measured_peak()
        everything = TRAINING if backend == "gpu" else CPU_TRAINING
        chosen = everything if options.only == "all" else []
        chosen = chosen or [s for s in TRAINING if s.name == options.only]
        numbers = (1, 16) if options.only in ("all", "generation") else ()
        results = {
            "peak_flops": peaks,
            "training": {s.name: training(s, options.rounds, peaks) for s in chosen},
            "generation": {
                f"{n} sample(s)": generation(n, options.generation_rounds, peaks) for n in numbers
            },
            "gpt2": {
                name: gpt2(name, options.generation_rounds)
                for name in (GPT2_WORK if options.only in ("all", "gpt2") else ())
            },
        }
        if options.only in ("all", "profile"):
            results["profile"] = profile(options.rounds)
        if options.only in ("all", "start"):
            results["first_step_seconds"] = first_step(options.generation_rounds)
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "bench.json").write_text(json.dumps(results, indent=2))
    if results["training"] or results["generation"] or results["gpt2"]:
        draw(results, options.folder / "bench.png")
    print(f"\nsaved in {options.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
