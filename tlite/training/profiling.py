"""A profile of some steps of training, for XProf, TensorBoard and Perfetto."""

import contextlib
from pathlib import Path

import jax

from tlite.errors import disk_errors
from tlite.parallel import processes
from tlite.terminal import printable


class Profile:
    """Traces so many steps, from the second call of the compiled program on: the first warms up.

    Used as a context. Of several processes the first is traced. No number changes: a call may end
    at any step.
    """

    def __init__(self, folder: Path, steps: int):
        self._folder, self._steps, self._left = folder, steps, steps
        self._warm = self._tracing = False

    def next(self, num_steps: int) -> int:
        """How many of these steps the next call is to take; the trace begins before it."""
        if not self._left or not self._warm:
            return num_steps
        if not self._tracing and processes.is_first():
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # it would slow down what is measured
            with disk_errors(self._folder):
                self._folder.mkdir(exist_ok=True)
            jax.profiler.start_trace(
                self._folder, create_perfetto_trace=True, profiler_options=options
            )
        self._tracing = True
        return min(num_steps, self._left)

    def done(self, num_steps: int) -> None:
        """A call has ended."""
        self._warm = True
        if self._tracing:
            self._left -= num_steps
            if not self._left:
                self._stop()

    def _stop(self) -> None:
        self._tracing, taken, self._left = False, self._steps - self._left, 0
        if not processes.is_first():
            return
        with disk_errors(self._folder):
            jax.profiler.stop_trace()
        files = self._folder.glob("plugins/profile/*/perfetto_trace.json.gz")
        newest = max(files, key=lambda path: path.parent.name)
        print(
            printable(
                f"profile of {taken} steps: xprof {self._folder} (or tensorboard --logdir), "
                f"or {newest} in https://ui.perfetto.dev"
            )
        )

    def __enter__(self):
        return self

    def __exit__(self, error: type | None, *_):
        if self._tracing:
            with contextlib.suppress(Exception) if error else contextlib.nullcontext():
                self._stop()
        elif self._left and not error:
            print("nothing was profiled: the run had no second call of its program to make")
