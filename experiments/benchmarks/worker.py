"""Worker process of a benchmark: each line on stdin requests a round, answered in JSON."""

import json
import sys
import time
from collections.abc import Callable


def serve(ready: dict, run_round: Callable[[], dict]) -> None:
    """Print `ready`, as all is compiled and warm; then run and time a round per line on stdin.

    Args:
        run_round: waits for the device, and returns what is printed beside the seconds.
    """
    print(json.dumps(ready), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        result = run_round()
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, **result}), flush=True)


def run_job(jobs: dict[str, Callable[[dict], None]]) -> None:
    """Run one of the jobs with options in JSON; the command line is JOB '{"option": ...}'."""
    jobs[sys.argv[1]](json.loads(sys.argv[2]))
