"""The 2024 post's own setting to the letter: `shakespeare` with Adam at a constant 1e-3.

command   make shakespeare-post   (OPTIONS="--seeds 3" for mean and spread)
time      about as long as `shakespeare`
result    three seeds: validation perplexity 6.524 +- 0.045 (loss 1.8755 +- 0.0069)
"""

from experiments.shakespeare import experiment as shakespeare
from tlite import override

experiment = override(
    shakespeare,
    {
        "name": "shakespeare_post",
        "training.learning_rate": 1e-3,
        "training.schedule": "constant",
    },
)
