"""Write the tables of RESULTS.md from the logs in experiments/results. After adding a log, run

    .venv/bin/python -m experiments.tools.tables

Tables stand between `<!-- table: NAME -->` and `<!-- end -->`; a row is a log, with the first
line of its experiment's docstring. `make readme` checks that RESULTS.md is what this writes.
"""

import ast
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from tlite.comparison.statistics import difference, t_critical

FOLDER = Path(__file__).parents[1]
RESULTS, DOCUMENT = FOLDER / "results", FOLDER / "RESULTS.md"
SPREAD = r"[\d.]+(?: (?:± |\(SD )[\d.]+\)?)?"  # a number, or a mean and a standard deviation
# Logs keep what was printed: earlier versions had other names.
SEEDS = r"^(\d+) x [\d,]+ steps|^seeds=(\d+) |the ensemble of all (\d+) (?:replicas|members)"
RENAMED = {"numbers": "number_words"}
OVER_SEEDS, OVER_BOTH = "95 % CI, new seeds", "95 % CI, new seeds and examples"


def read(name: str) -> str:
    return (RESULTS / f"{name}.log").read_text(encoding="utf-8")


def logs(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of each log that contains a string, records first."""
    names = sorted(path.stem for path in RESULTS.glob("*.log"))
    for name in sorted(names, key=lambda name: not name.startswith("record")):
        if pattern in (text := read(name)):
            yield name, text


def link(name: str) -> str:
    return f"[{name}](results/{name}.log)"


def row(*cells: object) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def table(header: list[str], rows: list[str], log: str = "") -> list[str]:
    """Return the lines of a table; `log` names the one log of all its rows."""
    source = ["", f"Log: {link(log)}."] if log else []
    return [row(*header), row(*["---"] * len(header)), *rows, *source]


def description(text: str) -> str:
    """Return the first line of a log's experiment, and the options it was trained with."""
    name, options = re.match(r"\$ tlite (?:train |evaluate runs/)(\w+)(.*)", text).groups()
    source = (FOLDER / f"{RENAMED.get(name, name)}.py").read_text(encoding="utf-8")
    sentence = ast.get_docstring(ast.parse(source)).partition("\n")[0].rstrip(".")
    is_training = text.startswith("$ tlite train")
    return f"{sentence} (`{options.strip()}`)" if is_training and options else sentence


def num_seeds(text: str) -> int:
    """Return the number of seeds of a run, or the number of runs of one seed each."""
    match = re.search(SEEDS, text, re.M)
    return int(next(filter(None, match.groups()))) if match else text.count("$ tlite evaluate")


def last(pattern: str, text: str, default: str = "") -> str:
    """Return the last match: the test split is evaluated after validation."""
    matches = re.findall(pattern, text, re.M)
    return matches[-1] if matches else default


def mean_and_deviation(values: list[str]) -> str:
    """Format "mean (SD)" from one line of a log, or from one line for each run."""
    if len(values) == 1:
        return re.sub(r" (?:± |\(SD )([\d.]+)\)?", r" (\1)", values[0])
    digits = len(values[0].partition(".")[2])
    numbers = [float(value) for value in values]
    return f"{mean(numbers):.{digits}f} ({stdev(numbers):.{digits}f})"


def seeds_interval(cell: str, number: int) -> str:
    """Return ± t(S - 1) SD / sqrt(S) for a cell "mean (SD)"; – for a single seed."""
    if not (match := re.search(r"\(([\d.]+)\)", cell)):
        return "–"
    half = t_critical(number - 1) * float(match[1]) / number**0.5
    return f"± {half:.{len(match[1].partition('.')[2])}f}"


def interval(text: str) -> str:
    """Return the last interval that `tlite evaluate` printed; – if a log has none.

    Logs from before 25 November 2026 say "new seeds and text": these intervals had wrong degrees of
    freedom and are left out. Those of a single seed are right.
    """
    matches = re.findall(r"^95 % for (new (?!seeds and (?!new )).*?): (.*)$", text, re.M)
    if not matches:
        return "–"
    population, numbers = matches[-1]
    return f"{numbers}, with this seed" if population.endswith("with this seed") else numbers


def generators() -> list[str]:
    rows = []
    for name, text in logs("nats per character, perplexity"):
        evaluated = re.findall(r"^step .* nats per character.*", text, re.M)
        lines = evaluated or re.findall(r"^validation loss .* nats .*", text, re.M)
        scores = "\n".join(lines)
        loss = mean_and_deviation(re.findall(rf"loss ({SPREAD}) nats", scores))
        perplexity = mean_and_deviation(re.findall(rf"perplexity ({SPREAD}),", scores))
        characters = last(r" ([\d,]+) characters$", scores, "–")
        ensemble = last(r"^the ensemble .*, perplexity ([\d.]+)", text)
        seeds = num_seeds(text)
        intervals = seeds_interval(loss, seeds), interval(text)
        cells = link(name), description(text), seeds, characters, loss, *intervals, perplexity
        rows.append(row(*cells, ensemble))
    header = ["log", "what", "seeds", "characters", "validation loss, nats, mean (SD)"]
    header += [OVER_SEEDS, OVER_BOTH, "perplexity, mean (SD)", "all replicas"]
    return table(header, rows)


def classifiers() -> list[str]:
    rows = []
    for name, text in logs("TF-IDF"):
        split = "test" if "test accuracy" in text else "validation"
        score = rf"{split} accuracy ({SPREAD}) %"
        accuracy = mean_and_deviation([last(rf"^(?:step [\d,]+: )?{score}", text)])
        examples = last(rf"([\d,]+) (?:{split} )?texts$", text)
        ensemble = last(r"^the ensemble .* accuracy ([\d.]+) %", text)
        linear, tfidf = (
            last(rf"{of}: {score}", text) for of in ("^the linear model .*", "TF-IDF .*")
        )
        above = last(r"^above TF-IDF.*: ([+-][\d.]+) points, .*: (± .*)$", text)
        seeds = num_seeds(text)
        intervals = seeds_interval(accuracy, seeds), interval(text)
        cells = link(name), description(text), seeds, f"{examples} of {split}", accuracy, *intervals
        rows.append(row(*cells, ensemble, linear, tfidf, " ".join(above) or "–"))
    header = ["log", "what", "seeds", "texts", "accuracy, %, mean (SD)", OVER_SEEDS, OVER_BOTH]
    header += ["all replicas", "n-grams alone", "TF-IDF + LR", "above TF-IDF, points, 95 % CI"]
    return table(header, rows)


def translators() -> list[str]:
    rows = []
    for name, text in logs("exact match"):
        examples = last(r"(?:loss|greedy).*, ([\d,]+) sentences", text)
        matches = (
            last(rf"^{search}.*: exact match ({SPREAD}) %", text) for search in ("greedy", "beam")
        )
        cells = link(name), description(text), num_seeds(text), f"{examples} of validation"
        rows.append(row(*cells, *matches))
    header = ["log", "what", "seeds", "sentences", "exact matches, greedy, %", "beam, %"]
    return table(header, rows)


def variants(name: str) -> list[str]:
    """Losses of a study's variants and their differences from the first, from the JSON of scores.

    Seeds are paired if variants have equally many parameters. The interval for new seeds and text
    is that of `tlite compare`; it is left out if it was computed before 25 November 2026.
    """
    entries = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["runs"]
    scores = [{int(seed): value for seed, value in e["values"].items()} for e in entries]
    rows = []
    for entry, values in zip(entries, scores, strict=True):
        change, seeds, both, correlation = ["–"] * 4
        if entry is not entries[0]:
            paired = entry["parameters"] == entries[0]["parameters"]
            diff = difference(values, scores[0], paired=paired)
            change, seeds = f"{diff.mean:+.3f}", f"± {diff.half_width:.3f}"
            correlation = f"{diff.correlation:.2f}"
            both = f"± {entry['half_width']:.3f}" if "correlation" in entry else both
        loss = f"{entry['mean']:.3f} ({np.std([*values.values()], ddof=1):.3f})"
        cells = entry["label"], f"{entry['parameters']:,}", loss, change, seeds, both, correlation
        rows.append(row(*cells, entry["seeds"]))
    header = ["", "parameters", "validation loss, nats, mean (SD)", "minus the first", OVER_SEEDS]
    return table([*header, OVER_BOTH, "correlation by seed", "seeds"], rows, name)


def optimizers() -> list[str]:
    results = json.loads((RESULTS / "optimizers.json").read_text(encoding="utf-8"))
    speedups = {entry["label"]: entry["text"] for entry in results["speedups"]}
    rows = []
    for entry in results["runs"]:
        loss = f"{entry['mean']:.3f} ({entry['standard_deviation']:.3f})"
        change = "–" if entry["low"] is None else f"{entry['difference']:+.3f}"
        interval = "" if entry["low"] is None else f" [{entry['low']:.3f}, {entry['high']:.3f}]"
        name, _, steps = entry["label"].partition("-")
        rate, gain = entry["config"]["learning_rate"], speedups.get(entry["label"]) or "–"
        rows.append(row(name, steps, rate, loss, change + interval, gain))
    header = ["", "steps", "tuned learning rate", "validation loss, nats, mean (SD)"]
    header += [f"minus AdamW, {OVER_BOTH}", "effective speedup in steps, 95 % CI"]
    return table(header, rows, "optimizers")


def scaling() -> list[str]:
    text = read("scaling")
    law = re.findall(r"^ +(E|A|B|alpha|beta) +(\S+)  (\S+ to \S+)$", text, re.M)
    law += re.findall(r"(N\* ~ C\^)(\S+) \((.*?)\)", text)
    size = re.search(r"^([\d,]+) parameters, left out of the fit", text, re.M)[1]
    predictions = re.findall(r"^ *([\d,]+)  +([\d.]+)  ([\d.]+ to [\d.]+)  +([\d.]+) ", text, re.M)
    rows = []
    for tokens, predicted, ends, loss in predictions:
        pattern = rf"{size} +{tokens}  {re.escape(loss)} .* ± ([\d.]+), (\d+) seeds"
        spread, seeds = re.search(pattern, text).groups()
        rows.append(row(tokens, seeds, predicted, ends, f"{loss} ({spread})"))
    header = [f"characters, {size} parameters", "seeds", "predicted loss", "95 % CI"]
    fitted = table(["", "fitted", "95 % CI, bootstrap"], [row(*values) for values in law])
    return [*fitted, "", *table([*header, "measured, mean (SD)"], rows, "scaling")]


def speed() -> list[str]:
    rows = []
    for name, text in logs("contender"):
        for block in text.split("\n\n"):
            ratios = re.findall(r"^  (tlite.*?) / (.+): ([\d.]+ \(.*\))$", block, re.M)
            rates = re.findall(r"^  (\S.*?) +([\d,]+) +[\d.]+$", block, re.M)
            rates = {contender: int(rate.replace(",", "")) for contender, rate in rates}
            for ours, other, ratio in ratios[-1:]:  # the last is that of the fastest
                work = block.strip().partition("\n")[0].partition(": width")[0]
                cells = f"{rates[ours]:,}", f"{rates[other]:,}, {other}", ratio
                rows.append(row(link(name), work, *cells, float32_ratio(rates)))
    header = ["log", "work", "tlite, tokens/s", "the fastest other", "ratio, median and range"]
    return table([*header, "ratio in float32"], rows)


def float32_ratio(rates: dict[str, int]) -> str:
    """Return the ratio of tlite's rate and the fastest of PyTorch's without bfloat16, if any."""
    others = [rate for name, rate in rates.items() if name in ("PyTorch eager", "PyTorch compile")]
    return f"{rates['tlite float32'] / max(others):.2f}" if others else "–"


def plan() -> list[str]:
    rows = []
    for block in read("plan").split("$ ")[1:]:
        command = block.partition("\n")[0]
        batch = last(r"; (.* on a device at a time, .*)$", block)
        size = last(r"^  in all +(.*)$", block)
        exchanged = re.findall(r"^ +[\d,]+ ([a-z-]+) +(.* GiB)$", block, re.M)
        exchanges = ", ".join(f"{size} {kind}" for kind, size in exchanged)
        rows.append(row(f"`{command}`", batch, size, exchanges))
    header = ["command", "examples", "bytes a device", "exchanged by a device in an update"]
    return table(header, rows, "plan")


def coverage() -> list[str]:
    """Lowest and highest coverage over the ratios of variances, by seeds and examples."""
    rows, columns = {}, {}
    for line in read("coverage").split("\n\n")[0].splitlines()[3:]:
        seeds, examples, *values = line.split()
        covered = [float(value) for value in values[::2]]
        columns[examples] = None
        rows.setdefault(seeds, []).append(f"{min(covered):.1f} to {max(covered):.1f}")
    header = ["seeds", *(f"{number} examples or blocks" for number in columns)]
    return table(header, [row(seeds, *cells) for seeds, cells in rows.items()], "coverage")


TABLES = {
    make.__name__: make
    for make in (coverage, generators, classifiers, translators, optimizers, scaling, speed, plan)
} | {name: partial(variants, name) for name in ("study", "hybrid")}


def with_tables(text: str) -> str:
    """Return a document with every table written anew."""
    for name, make in TABLES.items():
        block = rf"(<!-- table: {name} -->\n).*?(?=<!-- end -->)"
        lines = "\n".join(["", *make(), "", ""])
        text = re.sub(block, lambda m, lines=lines: m[1] + lines, text, flags=re.S)
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
