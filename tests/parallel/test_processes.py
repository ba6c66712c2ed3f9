"""Several real processes: they agree, one prints, and all of them end where one does."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tlite.errors import UserError
from tlite.parallel import processes
from tlite.parallel.processes import (
    LOST,
    Crew,
    Place,
    agree,
    exchange,
    join,
    leave,
    lost_peer,
    of_first,
)

SECONDS = 60


def test_one_alone_needs_no_jax():
    code = (
        "import sys; from tlite.parallel import processes as p\n"
        "p.join(); p.join('localhost:1', 1, 0)\n"
        "assert (p.count(), p.is_first()) == (1, True)\n"
        "assert p.of_first(lambda: {'a': 1}) == {'a': 1}\n"
        "p.leave(); sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    )
    names = ("SLURM", "OMPI", "JAX", "TPU")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(names)}
    assert subprocess.run([sys.executable, "-c", code], env=clean, timeout=SECONDS).returncode == 0


@given(arrays.arrays(arrays.scalar_dtypes(), arrays.array_shapes(min_dims=0, max_side=3)))
def test_alone_everything_is_agreed(values):
    found = agree(values)
    assert (found.shape, found.dtype) == ((1, *values.shape), values.dtype)
    np.testing.assert_array_equal(found[0], values)


class Service:
    """The coordination service's values, as a client sees them."""

    def __init__(self, **values):
        self.values = values

    def key_value_set_bytes(self, key, value):
        self.values[key] = value

    def blocking_key_value_get_bytes(self, key, _):
        if key not in self.values:
            raise RuntimeError("UNAVAILABLE: no coordinator")
        return self.values[key]

    def key_value_delete(self, key):
        self.values = {k: v for k, v in self.values.items() if not k.startswith(key + "/")}


@pytest.fixture
def crew(monkeypatch):
    """This process as one of several, with a service that only it uses."""

    def call(process, **values):
        crew = Crew(Place("localhost:1", 2, process), Service(**values))
        monkeypatch.setattr(processes, "_crew", crew)
        return crew

    return call


@given(st.lists(st.tuples(st.binary(), st.binary()), max_size=4))
def test_what_is_exchanged_arrives_whole_and_does_not_stay(contents):
    with pytest.MonkeyPatch.context() as patch:
        first, second = (Crew(Place("localhost:1", 2, i), Service()) for i in (0, 1))
        second.client = first.client
        for round, pair in enumerate(contents):
            first.client.values[f"tlite/exchange/{round}/1"] = b"x\n" + pair[1]
            for crew, content in zip((first, second), pair, strict=True):
                patch.setattr(processes, "_crew", crew)
                assert exchange("x", content) == list(pair)
        assert len(first.client.values) <= 3  # those of the last exchange


def test_who_is_somewhere_else_in_the_program_is_told(crew):
    crew(0, **{"tlite/exchange/0/1": b"the end\n"})
    with pytest.raises(UserError, match="out of step: process 1 is at the end, not of first"):
        of_first(lambda: 1)
    crew(0, **{"tlite/exchange/0/1": b"agree\n"})
    with pytest.raises(UserError, match="out of step: process 1 is at agree, not the end"):
        leave()


def test_an_error_of_a_lost_peer_is_known_where_there_are_peers(crew, monkeypatch):
    gloo = ValueError("UNKNOWN: Gloo all-reduce failed: Connection reset by peer")
    assert lost_peer(gloo) is None
    crew(1)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert lost_peer(gloo).startswith(LOST)
    assert lost_peer(ValueError("ours")) is None


def test_a_heartbeat_takes_time():
    with pytest.raises(UserError, match="--heartbeat must be at least 1 second, not 0"):
        join(heartbeat=0)
