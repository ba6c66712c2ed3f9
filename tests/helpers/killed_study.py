"""Processes that go on with a study and are killed, for good, with all that they had not written.

One after the other, each before the so-manieth renaming of what is whole: STUDY DEVICES NUMBER ...
"""

import itertools
import os
import signal
import sys
from pathlib import Path

import datasets  # noqa: F401 - which takes seconds, of the parent's and not of every child's
import jax

from tlite.recipes.study_training import resume_study


def resume_until_killed(study: Path, number: int) -> None:
    rename, numbers = os.rename, itertools.count(1)

    def renamed(path, to, **settings):
        if next(numbers) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return rename(path, to, **settings)

    os.rename = renamed  # of pathlib's and of Orbax's paths
    resume_study(study)


if __name__ == "__main__":
    study, devices, *numbers = sys.argv[1:]
    jax.config.update("jax_num_cpu_devices", int(devices))
    for number in map(int, numbers):
        if not (child := os.fork()):  # before JAX has any thread: it is imported once for all
            try:
                resume_until_killed(Path(study), number)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL, f"renaming {number} was not reached"
