"""The progress of training on a terminal: step, loss, tokens/s, time left."""

import math
import sys

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class TrainingProgress:
    """A bar on a terminal; elsewhere (a log, CI) a line for each validation."""

    def __init__(self, step: int, steps: int):
        self._bar = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=20),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("validation {task.fields[validation]}"),
            TextColumn("{task.fields[rate]} tokens/s"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(file=sys.stdout),
        )
        fields = {"loss": "-", "validation": "-", "rate": "-"}
        self._task = self._bar.add_task("", completed=step, total=steps, **fields)
        self._live = sys.stdout.isatty()
        self._last = ""

    def __enter__(self):
        if self._live:
            self._bar.start()
        return self

    def __exit__(self, *_):
        if self._live:
            self._bar.stop()

    def update(self, step: int, loss: float, tokens_per_second: float) -> None:
        fields = {"loss": f"{loss:.3f}", "rate": f"{tokens_per_second:,.0f}"}
        self._bar.update(self._task, completed=step, **fields)
        self._last = f"step {step}  training loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s"

    def validated(self, loss: float | None) -> None:
        """A validation has found this loss; None: one that is not finite."""
        loss = math.inf if loss is None else loss
        self._bar.update(self._task, validation=f"{loss:.3f}")
        if not self._live:
            print(f"{self._last}  validation loss {loss:.4f}", flush=True)
