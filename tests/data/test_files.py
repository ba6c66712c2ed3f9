"""Kinds of files by their endings."""

from pathlib import Path

import pytest

from tlite.data.files import KINDS, kind_of
from tlite.errors import UserError


def complaint(action, *arguments) -> str:
    """The one line that a user error says."""
    with pytest.raises(UserError) as caught:
        action(*arguments)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize("ending", KINDS)
@pytest.mark.parametrize("name", ["a{}", "a{}.gz", "a.b.xml{}", ".hidden{}.gz", "folder.txt/a{}"])
def test_the_kind_is_decided_by_the_ending_before_gz(ending, name):
    assert kind_of(Path(name.format(ending))) == KINDS[ending]


@pytest.mark.parametrize(
    "name", ["a", "a.gz", "a.xml", "a.csv.xml", "a.csv.gz.gz", ".csv", "a.zip"]
)
def test_other_endings_are_refused_and_the_known_ones_listed(name):
    message = complaint(kind_of, Path(name))
    assert message.startswith(f"{name} has none of the endings")
    assert all(ending in message for ending in KINDS)
