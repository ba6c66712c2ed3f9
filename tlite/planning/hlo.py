"""What a compiled program exchanges between devices, read off its text (HLO)."""

import math
import re
from collections import Counter

COLLECTIVES = "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"

COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+)[^\n]*\{\n(.*?)^\}", re.M | re.S)
OPERATION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = (\(.*?\)|\S+) ([a-z][a-z-]*)\(")
CALLED = re.compile(r"(?:calls|to_apply|body|branch_computations)=\{?(%?[\w., %-]+)\}?")
KNOWN_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


def exchanged(program: str) -> dict[str, tuple[int, int]]:
    """{kind of collective: (how many, bytes of their results)}, on each device and for a step.

    What stands in a loop counts as often as the loop runs, where that is known: the outermost, over
    the steps of a call, is not.
    """
    counts, sizes = Counter(), Counter()
    found = COMPUTATION.findall(program)
    computations = {entry + name: lines.splitlines() for entry, name, lines in found}
    entry = next(name for name in computations if name.startswith("ENTRY "))
    todo = [(entry, 1)]
    while todo:
        name, times = todo.pop()
        for line in computations.get(name, ()):
            if not (matched := OPERATION.match(line)):
                continue
            result, operation = matched.groups()
            kind = operation.removesuffix("-start")
            if kind in COLLECTIVES:
                counts[kind] += times
                # Of what is begun here the operand is told too, before the result.
                both = operation in ("all-gather-start", "collective-permute-start")
                sizes[kind] += times * _bytes(result, first=1 if both else 0)
            inside = times * (_trips(line, computations) if operation == "while" else 1)
            for called in CALLED.findall(line):
                todo += [(name.strip().lstrip("%"), inside) for name in called.split(",")]
    return {kind: (counts[kind], sizes[kind]) for kind in COLLECTIVES if counts[kind]}


def _trips(line: str, computations: dict[str, list[str]]) -> int:
    """How often a loop runs: as the compiler says, or up to the one number it compares with."""
    if told := KNOWN_TRIPS.search(line):
        return int(told[1])
    condition = "\n".join(computations.get(re.search(r"condition=%?([\w.-]+)", line)[1], ()))
    bounds = re.findall(r" constant\((\d+)\)", condition)
    return int(bounds[0]) if len(bounds) == 1 and "direction=LT" in condition else 1


def _bytes(result: str, first: int = 0) -> int:
    """Of a shape `f32[8,4]{1,0}`, or of several in brackets, from the `first` on."""
    total = 0
    for kind, axes in re.findall(r"([a-z]+\d*)\[([\d,]*)\]", result)[first:]:
        size = math.prod(int(axis) for axis in axes.split(",") if axis)
        total += size * int(re.sub(r"\D", "", kind) or 8) // 8  # "pred" has no number
    return total
