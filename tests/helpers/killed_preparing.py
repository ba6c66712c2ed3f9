"""Prepare a corpus (arguments: SOURCE FOLDER) in processes that are killed one after another.

Each is killed at one of its first renames, when it has appended tokens, until one succeeds. The
number of kills is printed.
"""

import itertools
import os
import random
import signal
import sys

from tests.helpers.preparing import prepare_corpus


def prepare_until_killed(source: str, folder: str, limit: int) -> None:
    count = itertools.count(1)

    def kill_at_limit(function):
        def counted(*arguments, **settings):
            if next(count) == limit:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **settings)

        return counted

    os.rename, os.replace = kill_at_limit(os.rename), kill_at_limit(os.replace)
    prepare_corpus(source, folder, unit_bytes=2000)


if __name__ == "__main__":
    numbers, ends = random.Random(1), []
    while not ends or ends[-1] == -signal.SIGKILL:
        limit = 1 if not ends else numbers.randrange(2, 15)
        if not (child := os.fork()):  # JAX has started no thread here
            prepare_until_killed(*sys.argv[1:], limit)
            sys.stdout.flush()
            os._exit(0)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(f"\n{len(ends) - 1}")
    sys.exit(ends[-1])
