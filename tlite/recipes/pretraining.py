"""Before a classifier is trained: a generator on the same texts, without their labels.

"Improving language understanding by generative pre-training" (Radford et al. 2018), in small.
"""

import dataclasses
from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np

from tlite.data.labelled import LabelledText
from tlite.errors import UserError
from tlite.experiment import ClassifierExperiment, Pretraining
from tlite.models import BlocksConfig, GeneratorConfig, Head
from tlite.recipes.finetuning import start_from
from tlite.recipes.recipe import EVALUATION_BATCH, Recipe
from tlite.training import Trainer, TrainingConfig, TrainState, generator_task, validation_batches
from tlite.training.loop import fit


def check_pretraining(experiment: ClassifierExperiment) -> None:
    """Raises a `UserError` where the experiment's pre-training can't be."""
    settings = experiment.pretraining
    if not isinstance(settings, Pretraining) or not settings.pretraining_steps:
        return
    if not isinstance(experiment.model, BlocksConfig):
        raise UserError("a logistic regression has no blocks that could be pre-trained")
    if settings.unlabelled and not isinstance(experiment.data, LabelledText):
        raise UserError("there are no unlabelled files beside synthetic reviews")


def pretrained_members(recipe: Recipe) -> TrainState:
    """A classifier run's members, all with the embedding and blocks of one generator.

    The generator is trained (or, in a run that is resumed, trained on) in the folder
    `pretraining` of the run.
    """
    settings = recipe.experiment.pretraining
    config = generator_config(recipe.experiment.model, settings.pretraining_dropout)
    training = pretraining_config(recipe.experiment.training, settings)
    texts = (example.text for example in recipe.data.training)
    data = recipe.experiment.data
    more = (text for file in settings.unlabelled for text in data.texts(file))
    stream = token_stream(recipe.tokenizer, dict.fromkeys([*texts, *more]))
    held_out = token_stream(recipe.tokenizer, (e.text for e in recipe.data.validation))
    for name, tokens in (("training", stream), ("validation", held_out)):
        if len(tokens) <= config.context:
            raise UserError(
                f"the {name} part is too short for pre-training: it has {len(tokens)} tokens, "
                f"and a context of {config.context} needs one more than that"
            )
    trainer = Trainer(generator_task(config), training, jnp.asarray(stream))
    shards = trainer.num_shards
    batches = validation_batches(held_out, config.context, EVALUATION_BATCH, shards)
    folder = recipe.run.folder / "pretraining"
    folder.mkdir(exist_ok=True)
    print(f"pre-training a generator on {len(stream):,} tokens, {training.steps:,} steps")
    members = fit(trainer, folder, batches, config.context)
    print("pre-training has ended; now the classifier")
    return start_from(recipe.trainer, trainer.on_host(members.parameters))


def generator_config(config: BlocksConfig, dropout: float) -> GeneratorConfig:
    """The generator whose embedding and blocks a classifier of this config can take over."""
    shared = {f.name: getattr(config, f.name) for f in dataclasses.fields(BlocksConfig)}
    return GeneratorConfig(**shared | {"dropout": dropout}, head=Head(tied=True))


def pretraining_config(training: TrainingConfig, settings) -> TrainingConfig:
    """The settings of the generator's training; its seed is the classifier's first."""
    return TrainingConfig(
        steps=settings.pretraining_steps,
        batch_size=settings.pretraining_batch_size,
        learning_rate=settings.pretraining_learning_rate,
        schedule="cosine",
        warmup_steps=min(100, settings.pretraining_steps),
        weight_decay=0.1,
        clip_norm=1.0,
        seed=training.seed,
        precision=training.precision,
        evaluate_every=max(settings.pretraining_steps // 8, 1),
    )


def token_stream(tokenizer, texts: Iterable[str]) -> np.ndarray:
    """All tokens of the texts (N,), with an unknown token after each text."""
    rows = tokenizer.encode_texts(texts)
    ends = np.full((len(rows), 1), tokenizer.unknown_id, rows.dtype)
    padded = np.concatenate([rows, ends], axis=1)
    return padded[padded >= 0]
