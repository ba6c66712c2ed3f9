"""What a user is told."""

import pytest

from tlite.errors import UserError


def complaint(action, *arguments, **settings) -> str:
    """The one line that a user error says."""
    with pytest.raises(UserError) as caught:
        action(*arguments, **settings)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)
