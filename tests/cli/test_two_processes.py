"""Two processes train the same as one: the one run of several that `make test` has."""

import numpy as np
import pytest

from tests.helpers.launching import assert_close, metric_of

pytest_plugins = "tests.helpers.several"


@pytest.mark.parametrize(("number", "placed"), [(1, "data_parallel"), (4, "fsdp")])
def test_two_processes_train_what_devices_of_one_train(several, alone, number, placed):
    together = several(2, 1)
    found, step = together.parameters("last")
    assert step == 6
    right, losses = alone(together, number, sharding=placed)
    assert_close(found, right)
    np.testing.assert_allclose(metric_of(together, "training"), losses[:, 0], atol=1e-5)
