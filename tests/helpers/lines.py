"""The words of `tlite train NAME`, read without a file and without training."""

from tlite.cli import parse
from tlite.cli.options import Train
from tlite.cli.overrides import read_experiments
from tlite.experiment import Experiment


def read_line(
    name: str, words: list[str], experiment: Experiment, own: dict[str, Experiment] | None = None
) -> tuple[dict[str, Experiment], Train]:
    """What is to be trained, by name, and what else the words say."""
    asked, words = parse(Train, words, f"tlite train {name}", return_unknown_args=True)
    return read_experiments(name, asked, words, experiment, own or {}), asked
