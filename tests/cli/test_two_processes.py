"""Two processes train the same as one: the only run of several processes in `make test`."""

import numpy as np
import pytest

from tests.helpers.launching import assert_close, metric_of

pytest_plugins = "tests.helpers.several"


@pytest.mark.parametrize(("num_devices", "sharding"), [(1, "data_parallel"), (4, "fsdp")])
def test_two_processes_train_as_the_devices_of_one(several, alone, num_devices, sharding):
    run = several(2, 1)
    parameters, step = run.parameters("last")
    assert step == 6
    expected, losses = alone(run, num_devices, sharding=sharding)
    assert_close(parameters, expected)
    np.testing.assert_allclose(metric_of(run, "training"), losses[:, 0], atol=1e-5)
