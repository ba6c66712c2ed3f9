"""Protocol of a worker process: a line of JSON for each round that a line on stdin requests."""

import json
import sys
import time
from collections.abc import Callable


def serve(ready: dict, timed: Callable[[], dict]) -> None:
    """Print that all is compiled and warm, then time one round for each line on stdin."""
    print(json.dumps(ready), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        result = timed()
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, **result}), flush=True)


def run_job(jobs: dict[str, Callable[[dict], None]]) -> None:
    """Run the job and settings that the command line names: JOB '{"option": ...}'."""
    jobs[sys.argv[1]](json.loads(sys.argv[2]))
