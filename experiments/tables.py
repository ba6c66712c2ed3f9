"""The tables of RESULTS.md, as the logs in experiments/results say: after a new log

    .venv/bin/python -m experiments.tables

writes them anew between `<!-- table: NAME -->` and `<!-- end -->`. A row is a log, and what it
measures its experiment's first sentence. `make readme` holds the file to what this writes.
"""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from tlite.comparison.statistics import difference, quantile

FOLDER = Path(__file__).parent
RESULTS, DOCUMENT = FOLDER / "results", FOLDER / "RESULTS.md"
SPREAD = r"[\d.]+(?: (?:± |\(SD )[\d.]+\)?)?"  # a number, or a mean and a standard deviation
# Logs keep what was printed: earlier versions had other names.
SEEDS = r"^(\d+) x [\d,]+ steps|^seeds=(\d+) |the ensemble of all (\d+) (?:replicas|members)"
RENAMED = {"numbers": "number_words"}
OVER_SEEDS, OVER_BOTH = "over seeds, 95 % CI", "new seeds and examples, 95 % CI"


def read(name: str) -> str:
    return (RESULTS / f"{name}.log").read_text(encoding="utf-8")


def logs(mark: str) -> Iterator[tuple[str, str]]:
    """Name and text of each log with a mark, records first."""
    names = sorted(path.stem for path in RESULTS.glob("*.log"))
    for name in sorted(names, key=lambda name: not name.startswith("record")):
        if mark in (text := read(name)):
            yield name, text


def link(name: str) -> str:
    return f"[{name}](results/{name}.log)"


def row(*cells: object) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def table(header: list[str], rows: list[str]) -> list[str]:
    return [row(*header), row(*["---"] * len(header)), *rows]


def measured(text: str) -> str:
    """What a run is of: its experiment's first sentence, and the options that differ from it."""
    name, options = re.match(r"\$ tlite (?:train |evaluate runs/)(\w+)(.*)", text).groups()
    source = (FOLDER / f"{RENAMED.get(name, name)}.py").read_text(encoding="utf-8")
    sentence = ast.get_docstring(ast.parse(source)).partition("\n")[0].rstrip(".")
    trained = text.startswith("$ tlite train")
    return f"{sentence} (`{options.strip()}`)" if trained and options else sentence


def seeds(text: str) -> int:
    """Of a run with several replicas, or of one run after the other."""
    known = re.search(SEEDS, text, re.M)
    return int(next(filter(None, known.groups()))) if known else text.count("$ tlite evaluate")


def last(pattern: str, text: str, missing: str = "") -> str:
    """What the last match says, as a test part is read after validation."""
    found = re.findall(pattern, text, re.M)
    return found[-1] if found else missing


def over_seeds(values: list[str]) -> str:
    """One value, or mean (SD) of several: those of a log's line, or of one line for each run."""
    if len(values) == 1:
        return re.sub(r" (?:± |\(SD )([\d.]+)\)?", r" (\1)", values[0])
    digits = len(values[0].partition(".")[2])
    numbers = [float(value) for value in values]
    return f"{mean(numbers):.{digits}f} ({stdev(numbers):.{digits}f})"


def seeds_interval(mean_and_deviation: str, number: int) -> str:
    """± t(S - 1) SD / sqrt(S), from a cell of `over_seeds`; – of a single seed."""
    found = re.search(r"\(([\d.]+)\)", mean_and_deviation)
    if not found:
        return "–"
    half = quantile(number - 1) * float(found[1]) / number**0.5
    return f"± {half:.{len(found[1].partition('.')[2])}f}"


def interval(text: str) -> str:
    """The interval that `tlite evaluate` prints last; – where a log has none.

    Logs from before 25 November 2026 say "new seeds and text": these intervals were computed with
    wrong degrees of freedom, and are not shown. That of a single seed is right.
    """
    found = re.findall(r"^95 % for (new (?!seeds and (?!new )).*?): (.*)$", text, re.M)
    if not found:
        return "–"
    what, numbers = found[-1]
    return f"{numbers}, with this seed" if what.endswith("with this seed") else numbers


def generators() -> list[str]:
    rows = []
    for name, text in logs("nats per character, perplexity"):
        lines = re.findall(r"^step .* nats per character.*", text, re.M)  # of `evaluate`
        said = "\n".join(lines or re.findall(r"^validation loss .* nats .*", text, re.M))
        losses = re.findall(rf"loss ({SPREAD}) nats", said)
        perplexities = re.findall(rf"perplexity ({SPREAD}),", said)
        scored = last(r" ([\d,]+) characters$", said, "–")
        together = last(r"^the ensemble .*, perplexity ([\d.]+)", text)
        loss, number = over_seeds(losses), seeds(text)
        values = loss, seeds_interval(loss, number), interval(text), over_seeds(perplexities)
        rows.append(row(link(name), measured(text), number, scored, *values, together))
    header = ["log", "what", "seeds", "characters", "validation loss, nats, mean (SD)"]
    header += [OVER_SEEDS, OVER_BOTH, "perplexity, mean (SD)", "all replicas"]
    return table(header, rows)


def classifiers() -> list[str]:
    rows = []
    for name, text in logs("TF-IDF"):
        part = "test" if "test accuracy" in text else "validation"
        ours = rf"^(?:step [\d,]+: )?{part} accuracy ({SPREAD}) %"
        accuracy, number = last(ours, text), last(rf"([\d,]+) (?:{part} )?texts$", text)
        together = last(r"^the ensemble .* accuracy ([\d.]+) %", text)
        baseline = last(rf"TF-IDF .*: {part} accuracy ([\d.]+) %", text)
        alone = last(rf"^the linear model .*: {part} accuracy ([\d.]+) %", text)
        accuracy, found = over_seeds([accuracy]), seeds(text)
        above = last(r"^above TF-IDF.*: ([+-][\d.]+) points, .*: (± .*)$", text)
        values = f"{number} of {part}", accuracy, seeds_interval(accuracy, found), interval(text)
        paired = " ".join(above) if above else "–"
        rows.append(
            row(link(name), measured(text), found, *values, together, alone, baseline, paired)
        )
    header = ["log", "what", "seeds", "texts", "accuracy, %, mean (SD)", OVER_SEEDS, OVER_BOTH]
    header += ["all replicas", "n-grams alone", "TF-IDF + LR", "above TF-IDF, points, 95 % CI"]
    return table(header, rows)


def translators() -> list[str]:
    rows = []
    for name, text in logs("exact match"):
        number = last(r"(?:loss|greedy).*, ([\d,]+) sentences", text)
        values = (
            last(rf"^{kind}.*: exact match ({SPREAD}) %", text) for kind in ("greedy", "beam")
        )
        rows.append(
            row(link(name), measured(text), seeds(text), f"{number} of validation", *values)
        )
    header = ["log", "what", "seeds", "sentences", "exact matches, greedy, %", "beam, %"]
    return table(header, rows)


def variants(name: str) -> list[str]:
    """Losses of a study's variants and differences from the first, from the JSON of its scores.

    Seeds are paired where variants have as many parameters. The interval for new seeds and text is
    that of `tlite compare`, where it has one by today's formula.
    """
    entries = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["entries"]
    scores = [{int(seed): value for seed, value in e["values"].items()} for e in entries]
    rows = []
    for entry, values in zip(entries, scores, strict=True):
        found, both = ["–"] * 3, "–"
        if entry is not entries[0]:
            paired = entry["parameters"] == entries[0]["parameters"]
            by = difference(values, scores[0], paired=paired)
            found = f"{by.mean:+.3f}", f"± {by.half_width:.3f}", f"{by.correlation:.2f}"
            if "correlation" in entry:
                both = f"± {entry['half_width']:.3f}"
        deviation = np.std([*values.values()], ddof=1)
        loss = f"{entry['mean']:.3f} ({deviation:.3f})"
        parameters = f"{entry['parameters']:,}"
        cells = parameters, loss, *found[:2], both, found[2], entry["seeds"]
        rows.append(row(entry["entry"], *cells))
    header = ["", "parameters", "validation loss, nats, mean (SD)", "minus the first", OVER_SEEDS]
    header += [OVER_BOTH, "correlation by seed", "seeds"]
    return [*table(header, rows), "", f"Log: {link(name)}."]


def study() -> list[str]:
    return variants("study")


def hybrid() -> list[str]:
    return variants("hybrid")


def scaling() -> list[str]:
    text = read("scaling")
    law = re.findall(r"^ +(E|A|B|alpha|beta) +(\S+)  (\S+ to \S+)$", text, re.M)
    law += re.findall(r"(N\* ~ C\^)(\S+) \((.*?)\)", text)
    size = re.search(r"^([\d,]+) parameters, left out of the fit", text, re.M)[1]
    left_out = re.findall(r"^ *([\d,]+)  +([\d.]+)  ([\d.]+ to [\d.]+)  +([\d.]+) ", text, re.M)
    rows = []
    for tokens, predicted, interval, loss in left_out:
        pattern = rf"{size} +{tokens}  {re.escape(loss)} .* ± ([\d.]+), (\d+) seeds"
        spread, number = re.search(pattern, text).groups()
        rows.append(row(tokens, number, predicted, interval, f"{loss} ({spread})"))
    header = [f"characters, {size} parameters", "seeds", "predicted loss", "95 % CI"]
    header += ["measured, mean (SD)"]
    fitted = table(["", "fitted", "95 % by bootstrap"], [row(*values) for values in law])
    return [*fitted, "", *table(header, rows), "", f"Log: {link('scaling')}."]


def speed() -> list[str]:
    rows = []
    for name, text in logs("contender"):
        for part in text.split("\n\n"):
            ratios = re.findall(r"^  (tlite.*?) / (.+): ([\d.]+ \(.*\))$", part, re.M)
            for ours, theirs, times in ratios[-1:]:  # of several the fastest is the last
                work = part.strip().partition("\n")[0].partition(": width")[0]
                mine, other = (
                    re.search(rf"^  {who} +([\d,]+) ", part, re.M)[1] for who in (ours, theirs)
                )
                rows.append(row(link(name), work, mine, f"{other}, {theirs}", times))
    header = ["log", "work", "tlite, tokens/s", "the fastest other", "ratio, median and range"]
    return table(header, rows)


def plan() -> list[str]:
    rows = []
    for part in read("plan").split("$ ")[1:]:
        command = part.partition("\n")[0].replace("--placement sharded", "--sharding fsdp")
        batch = last(r"; (.* on a device at a time, .*)$", part)
        size = last(r"^  in all +(.*)$", part)
        exchanged = re.findall(r"^ +[\d,]+ ([a-z-]+) +(.* GiB)$", part, re.M)
        exchanges = ", ".join(f"{size} {kind}" for kind, size in exchanged)
        rows.append(row(f"`{command}`", batch, size, exchanges))
    header = ["command", "examples", "bytes a device", "exchanged by a device in an update"]
    return [*table(header, rows), "", f"Log: {link('plan')}."]


def coverage() -> list[str]:
    """Least and largest coverage over the ratios of variances, by seeds and examples."""
    rows, columns = {}, {}
    for line in read("coverage").split("\n\n")[0].splitlines()[3:]:
        seeds, examples, *found = line.split()
        covered = [float(value) for value in found[::2]]
        columns[examples] = None
        rows.setdefault(seeds, []).append(f"{min(covered):.1f} to {max(covered):.1f}")
    header = ["seeds", *(f"{number} examples or blocks" for number in columns)]
    lines = [row(seeds, *cells) for seeds, cells in rows.items()]
    return [*table(header, lines), "", f"Log: {link('coverage')}."]


TABLES = coverage, generators, classifiers, translators, study, hybrid, scaling, speed, plan


def written(text: str) -> str:
    """A document with each table as the logs say."""
    for make in TABLES:
        block = rf"(<!-- table: {make.__name__} -->\n).*?(?=<!-- end -->)"
        lines = "\n".join(["", *make(), "", ""])
        text = re.sub(block, lambda m, lines=lines: m[1] + lines, text, flags=re.S)
    return text


def main() -> None:
    DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
