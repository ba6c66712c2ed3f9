"""How long the 2022 post's classifier takes for ten epochs of 180,000 reviews.

command   .venv/bin/python -m experiments.benchmarks.reviews

time      4.1 minutes on two cores of an AMD EPYC, beside other work

That post's author took an hour. The reviews here are synthetic: random words, of the same number
and length, since only the time is of interest.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

from tlite.distributed.devices import prepare_devices
from tlite.models import ClassifierConfig
from tlite.training import Trainer, TrainingConfig, classifier_task

REVIEWS, EPOCHS, BATCH, CALL = 180_000, 10, 32, 500


def main() -> None:
    prepare_devices()
    config = ClassifierConfig(vocabulary_size=7_455, num_classes=5, context=50)
    generator = np.random.default_rng(0)
    lengths = generator.integers(10, 100, REVIEWS)[:, None]
    words = generator.integers(0, config.vocabulary_size, (REVIEWS, config.context))
    tokens = np.where(np.arange(config.context) < lengths, words, -1).astype(np.int32)
    data = jnp.asarray(tokens), jnp.asarray(generator.integers(0, 5, REVIEWS))
    steps = REVIEWS * EPOCHS // BATCH
    training = TrainingConfig(steps=steps, batch_size=BATCH)
    trainer = Trainer(classifier_task(config), training, data)
    began = time.perf_counter()
    replicas = trainer.init()
    for step in range(0, steps, CALL):
        replicas, _ = trainer.train(replicas, step, min(CALL, steps - step))
    jax.block_until_ready(replicas.parameters)
    minutes = (time.perf_counter() - began) / 60
    print(
        f"{trainer.num_parameters:,} parameters, {EPOCHS} epochs of {REVIEWS:,} reviews of up to "
        f"{config.context} words, {steps:,} steps of {BATCH}: {minutes:.1f} minutes with the "
        f"compilation, on {trainer.mesh.size} {jax.default_backend()} device(s)"
    )


if __name__ == "__main__":
    main()
