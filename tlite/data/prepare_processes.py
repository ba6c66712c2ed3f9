"""A function of many things by several processes, and how far they are."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from tlite.data.reading import MEGABYTE
from tlite.errors import UserError

Task, Result = TypeVar("Task"), TypeVar("Result")


def by_processes(
    function: Callable[[Task], Result], tasks: Sequence[Task], processes: int
) -> Iterator[tuple[Task, Result]]:
    """Each task with its result, as they come; with one process none is started.

    The processes end with this one, however it ends.

    Raises:
        UserError: what the function raises, or a process was killed.
    """
    if min(processes, len(tasks)) <= 1:
        yield from ((task, function(task)) for task in tasks)
        return
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(min(processes, len(tasks)), context, _begin) as pool:
        try:
            under_way = {pool.submit(function, task): task for task in tasks}
            for done in as_completed(under_way):
                yield under_way[done], done.result()
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - others:
                process.kill()  # nobody waits for what they do now
            if isinstance(error, BrokenProcessPool):
                raise UserError(
                    "a process that encodes texts was killed, perhaps for want of memory: the same "
                    "command goes on, with fewer --processes if need be"
                ) from error
            raise


def _begin() -> None:
    """What a process does first: leave Ctrl-C to its parent, and end when that has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core each
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


class PrepareProgress(Progress):
    """How far a preparation is: a bar on a terminal, elsewhere a line for each tenth.

    Args:
        total: the size of all that is to be done.
        done: how much of it was done before.
    """

    def __init__(self, total: int, done: int):
        super().__init__(
            TextColumn("encoding"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(file=sys.stdout),
            disable=not sys.stdout.isatty(),
        )
        self.add_task("", completed=done, total=total, rate="")
        self._began, self._text = time.monotonic(), 0

    def add(self, size: int, text: int) -> None:
        """So much more is done, in which so many bytes of text were."""
        (task,) = self.tasks
        before, self._text = task.completed, self._text + text
        seconds = max(time.monotonic() - self._began, 1e-9)
        rate = f"{self._text / seconds / MEGABYTE:.1f} MB/s"
        self.update(task.id, advance=size, rate=rate)
        tenths = 10 * task.completed // task.total
        if self.disable and tenths > 10 * before // task.total:
            print(f"{tenths}0 %  {rate}", flush=True)
