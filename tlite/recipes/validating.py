"""What a validation can tell: whether its part is large enough, and whether the model overfits."""

from collections.abc import Sequence
from statistics import fmean

FEW = {"texts": 100, "pairs": 100}
FEW_TOKENS = 2000
WORSE = 1.02  # the last loss, as a multiple of the best


def few_scored(number: int, what: str) -> str:
    """A warning where so few texts, pairs or tokens are scored that it says little; else ""."""
    if number >= FEW.get(what, FEW_TOKENS):
        return ""
    told = f"warning: the validation part has {number:,} {what}"
    return f"{told}: differences of a few percent mean nothing"


def overfitted(lines: Sequence[dict]) -> str:
    """A sentence where the validation loss has risen clearly since its best; else "".

    Args:
        lines: those of metrics.jsonl.
    """
    known = [line for line in lines if line.get("loss") is not None]
    validations = [line for line in known if line["split"] == "validation"]
    if len(validations) < 2:
        return ""
    best, last = min(validations, key=lambda line: line["loss"]), validations[-1]
    if best["step"] > 0.8 * last["step"] or last["loss"] < WORSE * best["loss"]:
        return ""
    after, training = validations[-2]["step"], [n for n in known if n["split"] == "training"]
    ends = [line["loss"] for line in training if after < line["step"] <= last["step"]]
    told = f"validation is best at step {best['step']:,} (loss {best['loss']:.2f})"
    went_on = f"training went on to {fmean(ends):.2f}, " if ends else ""
    return f"{told}; {went_on}validation to {last['loss']:.2f}: the model overfits"
