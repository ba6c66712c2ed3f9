"""A contender in a process of its own: waits on stdin for "go", answers with a line of JSON."""

import json
import resource
import sys
import time
from collections.abc import Callable


def serve(ready: dict, timed: Callable[[], dict]) -> None:
    """Say that all is compiled and warm, then time one round for each line on stdin."""
    print(json.dumps(ready), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        result = timed()
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, **result}), flush=True)


def peak_mb() -> float:
    """The most memory this process has had (Linux counts in kB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def work(jobs: dict[str, Callable[[dict], None]]) -> None:
    """Run the job and settings that the command line names: JOB '{"option": ...}'."""
    jobs[sys.argv[1]](json.loads(sys.argv[2]))
