"""The post's own setting to the letter: `shakespeare` with Adam at a constant 1e-3.

command   make shakespeare-post
"""

import dataclasses

from experiments.shakespeare import experiment as shakespeare

experiment = dataclasses.replace(
    shakespeare,
    name="shakespeare_post",
    training=dataclasses.replace(shakespeare.training, learning_rate=1e-3, schedule="constant"),
)
