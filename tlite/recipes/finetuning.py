"""What a run starts from: a model of others, or a generator that it trains itself."""

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from tlite.errors import UserError
from tlite.experiment import Pretrained
from tlite.models import BlocksConfig, GeneratorConfig, Head
from tlite.models.parameters import by_name
from tlite.pretrained import load_pretrained
from tlite.pretrained.configs import filled_in, with_fields
from tlite.recipes.recipe import EVALUATION_BATCH, Recipe
from tlite.training import Trainer, TrainingConfig, TrainState, generator_task, validation_batches
from tlite.training.loop import fit
from tlite.training.runs import sha256

OURS = {  # an experiment's own
    "dropout", "feed_forward.dropout", "embedding.word_dropout", "attention.function",
    "attention.rows", "head.product", "embedding.deviation", "loop.scan", "loop.remat", "context",
}  # fmt: skip


def taken_from(
    settings: Pretrained, config: BlocksConfig, num_classes: int | None = None
) -> tuple[BlocksConfig, dict[str, Any], Any, Pretrained]:
    """The config, the arrays by name and the tokenizer that a run starts from; and where from.

    Its context, dropout and function of attention are the experiment's, the rest is the folder's.

    Raises:
        UserError: the folder can't be read, has another kind of model, or has changed; or the
            experiment asks for other parts.
    """
    model, tokenizer, told = load_pretrained(settings.folder, num_classes=num_classes)
    if type(model.config) is not type(config):
        raise UserError(f"{settings.folder} has a {told.family} {told.kind}: that can't start it")
    if tokenizer is None:
        raise UserError(told.no_tokenizer)
    digest = hashlib.sha256()
    for path in sorted(told.folder.glob("*.safetensors")):
        digest.update(bytes.fromhex(sha256(path)))
    if settings.sha256 not in ("", digest.hexdigest()):
        raise UserError(f"the arrays in {settings.folder} have changed since the run was made")
    ours, theirs = filled_in(config), filled_in(model.config)
    for path in set_in(config):
        if path not in OURS and ours[path] != theirs.get(path):
            raise UserError(f"{path} is the pre-trained model's: leave it out")
    changed = {path: ours[path] for path in OURS & ours.keys()}
    changed["context"] = min(config.context, model.config.context)
    arrays = by_name(model)
    for name in told.new:  # each member draws its own
        del arrays[name]
    if "positions.table" in arrays:  # those of the places that are not used are left out
        rows = changed["context"] + model.config.positions.offset
        arrays["positions.table"] = arrays["positions.table"][:rows]
    try:
        config = with_fields(model.config, changed)
    except ValueError as error:
        raise UserError(str(error)) from error
    return config, arrays, tokenizer, dataclasses.replace(settings, sha256=digest.hexdigest())


def set_in(part, prefix: str = "") -> Iterator[str]:
    """The paths of the fields that are not what they are unless given."""
    for field in dataclasses.fields(part):
        value, path = getattr(part, field.name), prefix + field.name
        if value != field.default:
            yield path
            if dataclasses.is_dataclass(value):
                yield from set_in(value, f"{path}.")


def start_from(
    trainer: Trainer, arrays: dict[str, Any], members: TrainState | None = None
) -> TrainState:
    """Members that all have these parameters, by name; what is not among them they have of their
    own, as `members` or as they are drawn."""
    start = trainer.init() if members is None else members
    parameters = {
        name: np.broadcast_to(arrays[name], a.shape).astype(a.dtype) if name in arrays else a
        for name, a in start.parameters.items()
    }
    return trainer.place(start._replace(parameters=parameters))


def pretrained_members(recipe: Recipe) -> TrainState:
    """A classifier run's members, all with the embedding and blocks of one generator.

    "Improving language understanding by generative pre-training" (Radford et al. 2018), in small:
    it learns from the same texts, without their labels. It is trained (or, in a run that is
    resumed, trained on) in the folder `pretraining` of the run.
    """
    settings, data = recipe.experiment.pretraining, recipe.experiment.data
    config = generator_config(recipe.experiment.model, settings.pretraining_dropout)
    training = pretraining_config(recipe.experiment.training, settings)
    texts = (example.text for example in recipe.data.training)
    more = (text for file in settings.unlabelled for text in data.texts(file))
    learned = token_stream(recipe.tokenizer, dict.fromkeys([*texts, *more]))
    held_out = token_stream(recipe.tokenizer, (e.text for e in recipe.data.validation))
    for name, tokens in (("training", learned), ("validation", held_out)):
        if len(tokens) <= config.context:
            raise UserError(
                f"the {name} part is too short for pre-training: it has {len(tokens)} tokens, "
                f"and a context of {config.context} needs one more than that"
            )
    trainer = Trainer(generator_task(config), training, jnp.asarray(learned))
    shards = trainer.num_shards
    batches = validation_batches(held_out, config.context, EVALUATION_BATCH, shards)
    folder = recipe.run.folder / "pretraining"
    folder.mkdir(exist_ok=True)
    print(f"pre-training a generator on {len(learned):,} tokens, {training.steps:,} steps")
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
