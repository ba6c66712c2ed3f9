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
    training = [line for line in known if line["split"] == "training"]

    def mean_before(index: int) -> float | None:
        """The mean training loss between the validation before and this one."""
        start = validations[index - 1]["step"] if index else 0
        end = validations[index]["step"]
        found = [line["loss"] for line in training if start < line["step"] <= end]
        return fmean(found) if found else None

    then, now = mean_before(validations.index(best)), mean_before(len(validations) - 1)
    if then is not None and now is not None and now >= then:
        return ""  # it diverges
    told = f"validation is best at step {best['step']:,} (loss {best['loss']:.2f})"
    went_on = "" if now is None else f"training went on to {now:.2f}, "
    return f"{told}; {went_on}validation to {last['loss']:.2f}: the model overfits"
