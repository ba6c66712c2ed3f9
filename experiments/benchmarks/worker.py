"""Worker process of a benchmark: each line on stdin requests a round, answered in JSON."""

import json
import sys
import time
from collections.abc import Callable


def serve(ready: dict, run_round: Callable[[], dict]) -> None:
    """Print `ready`, then run one round for each line on stdin and print its seconds.

    Call this after compilation and a first round, which would distort the times.

    Args:
        ready: printed as JSON, to announce that rounds can be requested.
        run_round: runs a round, waits until the device has finished, and returns a dictionary that
            is printed together with the seconds.
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
