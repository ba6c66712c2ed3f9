"""A function of many things by several processes, its results in the order of the things."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from tlite.errors import UserError

Task, Result = TypeVar("Task"), TypeVar("Result")
AHEAD = 16  # tasks for each process that may be under way or done before the first of them is


def in_order(
    function: Callable[[Task], Result], tasks: Iterable[Task], processes: int
) -> Iterator[Result]:
    """The results of a function, one after another; with one process none is started.

    The processes end with this one, however it ends.

    Raises:
        UserError: what the function raises, or a process was killed.
    """
    if processes == 1:
        yield from map(function, tasks)
        return
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(processes, context, _begin) as pool:
        try:
            waiting: deque[Any] = deque()
            for task in tasks:
                waiting.append(pool.submit(function, task))
                if len(waiting) > AHEAD * processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
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
