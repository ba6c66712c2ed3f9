"""Messages of user errors."""

import pytest

from tlite.errors import UserError


def complaint(action, *arguments, **settings) -> str:
    """Return the message of the user error that an action raises; it is one line."""
    with pytest.raises(UserError) as caught:
        action(*arguments, **settings)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)
