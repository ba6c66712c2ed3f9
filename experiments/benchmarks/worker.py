"""Worker process of a benchmark: each line on stdin requests a round, answered in JSON."""

import json
import sys
import time
from collections.abc import Callable
from statistics import fmean
from typing import Any


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a call, and its seconds."""
    began = time.perf_counter()
    result = call()
    return result, time.perf_counter() - began


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
        result, seconds = timed(run_round)
        print(json.dumps({"seconds": seconds, **result}), flush=True)


def serve_training(
    train: Callable[[int], list[float]], steps_per_round: int, num_parameters: int
) -> None:
    """Time the first step, train the rest of an untimed round, and serve rounds of steps.

    Args:
        train: trains a number of steps and returns the loss of each.
    """
    losses, seconds = timed(lambda: train(1))
    losses += train(steps_per_round - 1)
    ready = {"parameters": num_parameters, "first_seconds": seconds, "loss": fmean(losses)}
    serve(ready, lambda: {"loss": fmean(train(steps_per_round))})


def run_job(jobs: dict[str, Callable[[dict], None]]) -> None:
    """Run one of the jobs with options in JSON; the command line is JOB '{"option": ...}'."""
    jobs[sys.argv[1]](json.loads(sys.argv[2]))
