"""The words of `tlite train NAME`, read without a file and without training."""

from collections.abc import Mapping
from typing import Any

from tlite.cli import parse_known
from tlite.cli.commands import Train
from tlite.cli.overrides import read_experiments


def read_line(
    words: list[str], experiment: Any, variants: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], Train]:
    """Return the experiments to train, by variant name, and the other options."""
    options, words = parse_known(Train, words, "tlite train", add_help=False)
    experiments = read_experiments(experiment, variants or {}, words, options.vary, options.only)
    return experiments, options
