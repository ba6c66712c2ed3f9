"""The progress of a preparation: a bar on a terminal, elsewhere a line for each tenth."""

import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from tlite.data.documents import Piece
from tlite.data.reading import MEGABYTE


class PrepareProgress:
    """How much of the source is done; in pieces where their sizes are not known.

    Args:
        pieces: all of them.
        done: how many were done before.
    """

    def __init__(self, pieces: Sequence[Piece], done: int):
        self._known = all(piece.size for piece in pieces)
        sizes = [piece.size if self._known else 1 for piece in pieces]
        self._total, self._done, self._text = sum(sizes), sum(sizes[:done]), 0
        self._began, self._live = time.monotonic(), sys.stdout.isatty()
        self._tenths = 10 * self._done // self._total
        self._bar = Progress(
            TextColumn("encoding"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(file=sys.stdout),
        )
        self._task = self._bar.add_task("", completed=self._done, total=self._total, rate="")

    def __enter__(self) -> "PrepareProgress":
        if self._live:
            self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        if self._live:
            self._bar.stop()

    def advance(self, size: int, text: int) -> None:
        """A piece more is done, in which so many bytes of text were."""
        self._done += size if self._known else 1
        self._text += text
        seconds = max(time.monotonic() - self._began, 1e-9)
        rate = f"{self._text / seconds / MEGABYTE:.1f} MB/s"
        self._bar.update(self._task, completed=self._done, rate=rate)
        if not self._live and (tenths := 10 * self._done // self._total) > self._tenths:
            self._tenths = tenths
            print(f"{tenths}0 %  {rate}", flush=True)
