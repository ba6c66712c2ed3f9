"""The tables of RESULTS.md, as the logs in experiments/results say: after a new log

    .venv/bin/python -m experiments.tables

writes them anew between `<!-- table: NAME -->` and `<!-- end -->`. A row is a log, and what it
measures its experiment's first sentence. `make readme` holds the file to what this writes.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev

FOLDER = Path(__file__).parent
RESULTS, DOCUMENT = FOLDER / "results", FOLDER / "RESULTS.md"
SPREAD = r"[\d.]+(?: ± [\d.]+)?"  # a number, of several seeds with its standard deviation


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
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    sentence = ast.get_docstring(ast.parse(source)).partition("\n")[0].rstrip(".")
    trained = text.startswith("$ tlite train")
    return f"{sentence} (`{options.strip()}`)" if trained and options else sentence


def seeds(text: str) -> int:
    """Of a run with several members, or of one run after the other."""
    known = re.search(r"^(\d+) x [\d,]+ steps|the ensemble of all (\d+) members", text, re.M)
    return int(known[1] or known[2]) if known else text.count("$ tlite evaluate")


def last(pattern: str, text: str, missing: str = "") -> str:
    """What the last match says, as a test part is read after validation."""
    found = re.findall(pattern, text, re.M)
    return found[-1] if found else missing


def over_seeds(values: list[str]) -> str:
    """One value as it is written, or mean ± standard deviation of several."""
    if len(values) == 1:
        return values[0]
    digits = len(values[0].partition(".")[2])
    numbers = [float(value) for value in values]
    return f"{mean(numbers):.{digits}f} ± {stdev(numbers):.{digits}f}"


def interval(text: str) -> str:
    """For new seeds and new texts, as `tlite evaluate` prints it last; – where it does not."""
    return last(r"^95 % for new .*(± .*)$", text, "–")


def generators() -> list[str]:
    rows = []
    for name, text in logs("nats per character, perplexity"):
        lines = re.findall(r"^step .* nats per character.*", text, re.M)  # of `evaluate`
        said = "\n".join(lines or re.findall(r"^validation loss .* nats .*", text, re.M))
        losses = re.findall(rf"loss ({SPREAD}) nats", said)
        perplexities = re.findall(rf"perplexity ({SPREAD}),", said)
        scored = last(r" ([\d,]+) characters$", said, "–")
        together = last(r"^the ensemble .*, perplexity ([\d.]+)", text)
        values = over_seeds(losses), interval(text), over_seeds(perplexities), together
        rows.append(row(link(name), measured(text), seeds(text), scored, *values))
    header = ["log", "what", "seeds", "characters", "validation loss, nats", "95 %", "perplexity"]
    return table([*header, "all members"], rows)


def classifiers() -> list[str]:
    rows = []
    for name, text in logs("TF-IDF"):
        part = "test" if "test accuracy" in text else "validation"
        ours = rf"^(?:step [\d,]+: )?{part} accuracy ({SPREAD}) %"
        accuracy, number = last(ours, text), last(rf"([\d,]+) (?:{part} )?texts$", text)
        together = last(r"^the ensemble .* accuracy ([\d.]+) %", text)
        baseline = last(rf"TF-IDF .*: {part} accuracy ([\d.]+) %", text)
        alone = last(rf"^the linear model .*: {part} accuracy ([\d.]+) %", text)
        values = f"{number} of {part}", accuracy, interval(text), together, alone, baseline
        rows.append(row(link(name), measured(text), seeds(text), *values))
    header = ["log", "what", "seeds", "texts", "accuracy, %", "95 %"]
    return table([*header, "all members", "n-grams alone", "TF-IDF + LR"], rows)


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


def study() -> list[str]:
    """The losses and differences that `tlite compare` prints of it."""
    found = read("study").split("\n\n")[1]
    cells = [re.split(r" *\| *", line)[1:-1] for line in found.splitlines()]
    wanted = [0, 1, 2, cells[0].index("seeds"), cells[0].index("parameters")]
    rows = [row(*(line[place] for place in wanted)) for line in cells]
    return [*rows, "", f"Log: {link('study')}."]


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
        rows.append(row(tokens, number, predicted, interval, f"{loss} ± {spread}"))
    header = [f"characters, {size} parameters", "seeds", "predicted loss", "95 %", "measured"]
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
        command = part.partition("\n")[0]
        batch = last(r"; (.* on a device at a time, .*)$", part)
        size = last(r"^  in all +(.*)$", part)
        exchanged = re.findall(r"^ +[\d,]+ ([a-z-]+) +(.* GiB)$", part, re.M)
        exchanges = ", ".join(f"{size} {kind}" for kind, size in exchanged)
        rows.append(row(f"`{command}`", batch, size, exchanges))
    header = ["command", "examples", "bytes a device", "exchanged by a device in an update"]
    return [*table(header, rows), "", f"Log: {link('plan')}."]


TABLES = (generators, classifiers, translators, study, scaling, speed, plan)


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
