"""Studies are killed ten times at random moments: each ends as one that nobody disturbed."""

import random

from tests.attack.kills import chain
from tests.attack.kinds import Work
from tests.attack.processes import Result

NEEDS = ("study",)


def case(work: Work, number: int) -> Result:
    """A chain of ten kills, of variants one after the other."""
    chance = random.Random(f"{work.seed} study {number}")
    return chain(work, "study", f"study-{number}", chance, 10)
