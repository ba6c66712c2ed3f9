"""The task of a language model refuses what it can't compute."""

import pytest

from tlite.errors import UserError
from tlite.models import GeneratorConfig
from tlite.training.generator import generator_task

CONVOLVED = GeneratorConfig(vocabulary_size=7, context=6, convolution=2)


def test_a_convolution_is_refused_where_texts_are_documents():
    generator_task(CONVOLVED)
    with pytest.raises(UserError, match="a convolution can't tell documents apart"):
        generator_task(CONVOLVED, end_id=0)
