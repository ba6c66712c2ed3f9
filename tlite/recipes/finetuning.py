"""What a run starts from: a model that others have trained, or a generator that it trains itself.

Models of others are also evaluated on a text here, and a run's are given back to them."""

import dataclasses
import hashlib
import math
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tlite.data import every_window
from tlite.data.labelled import LabelledText
from tlite.data.reading import decoded, pieces
from tlite.errors import UserError, disk_errors
from tlite.experiment import (
    ClassifierExperiment,
    Experiment,
    GeneratorExperiment,
    Pretrained,
    Pretraining,
)
from tlite.models import BlocksConfig, GeneratorConfig, Head
from tlite.models.parameters import parameter_names
from tlite.pretrained import is_pretrained, load_pretrained, save_pretrained
from tlite.pretrained.configs import filled_in, with_fields
from tlite.recipes.loading import open_model
from tlite.recipes.recipe import EVALUATION_BATCH, Recipe
from tlite.training import Trainer, TrainingConfig, TrainState, generator_task, validation_batches
from tlite.training.checkpoints import from_named, to_named
from tlite.training.loop import fit
from tlite.training.runs import sha256
from tlite.training.step import in_batches

LONGEST = 1024  # tokens of a window that a text is scored in
MOST_LOGITS = 2**26  # numbers, in memory at a time
OURS = {  # an experiment's own
    "dropout", "feed_forward.dropout", "embedding.word_dropout", "attention.function",
    "attention.rows", "head.product", "embedding.deviation", "loop.scan", "loop.remat", "context",
}  # fmt: skip


def evaluate_text(folder: str | Path, path: Path | None) -> None:
    """Print how well a generator of a Hugging Face folder predicts each token of a text."""
    if path is None:
        raise UserError(f"{folder} has no data of its own: name a text, --path FILE")
    model, tokenizer, _ = open_model(folder, GeneratorExperiment)
    text = "".join(decoded(pieces(path), path))
    tokens, marked = tokenizer.encode(text, marks=False), tokenizer.encode(text)
    begun = tokenizer.bos_id is not None and marked[:1].tolist() == [tokenizer.bos_id]
    if len(tokens) < 2:
        raise UserError(f"{path} is too short: it has {len(tokens)} tokens")
    config = model.config
    length = min(config.context, LONGEST, len(tokens) - 1)
    size = max(1, MOST_LOGITS // (length * config.vocabulary_size))
    windows = every_window(np.r_[tokenizer.bos_id, tokens] if begun else tokens, length)
    if begun:  # each of them is
        windows = np.copy(windows[0]), *windows[1:]
        windows[0][:, 0] = tokenizer.bos_id
    score = jax.jit(generator_task(config).evaluate)
    totals: dict[str, float] = {}
    for batch in zip(*in_batches(windows, size), strict=True):
        for name, sums in score(model, batch).items():
            totals[name] = totals.get(name, 0.0) + float(np.asarray(sums, np.float64).sum())
    loss, right = (totals[name] / totals["count"] for name in ("loss", "accuracy"))
    # Without a mark before it the first token is not predicted, and its bytes do not count.
    size = len(text.encode()) - (0 if begun else len(tokenizer.decode(tokens[:1]).encode()))
    print(
        f"{path}: loss {loss:.4f} nats per token, perplexity {math.exp(min(loss, 700)):.3f}, "
        f"{totals['loss'] / math.log(2) / max(size, 1):.4f} bits per byte, "
        f"accuracy {100 * right:.1f} %, {totals['count']:,.0f} tokens in windows of {length:,}"
    )


def export(
    folder: str | Path,
    to: Path,
    *,
    checkpoint: str = "best",
    member: int = 0,
    family: str | None = None,
) -> str:
    """Write a run's model to a new folder that `transformers` opens; returns its family.

    Raises:
        UserError: the folder exists, or there is no counterpart; the reason is told.
    """
    if os.path.lexists(to):
        raise UserError(f"{to} exists already: name another folder")
    settings: dict[str, Any] = {"family": family}
    if is_pretrained(folder):
        model, tokenizer, settings["original"] = load_pretrained(folder)
    else:
        model, tokenizer, run = open_model(folder, Experiment, checkpoint, member)
        settings["labels"] = getattr(run.experiment.data, "classes", None)
        if getattr(run.experiment, "sentences", 0):
            raise UserError("a text's class is joined from sentences': transformers has no such")
        source = getattr(run.experiment, "pretraining", None)
        if isinstance(source, Pretrained) and not family:
            settings["original"] = _origin(source, model)
    with disk_errors(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{to.name}.", dir=to.parent) as place:
            beside = Path(place) / to.name
            family = save_pretrained(beside, model, tokenizer, **settings)
            beside.rename(to)
    return family


def _origin(source: Pretrained, model):
    """What the folder says that a run has started from."""
    try:
        classes = getattr(model.config, "num_classes", None)
        return load_pretrained(source.folder, num_classes=classes)[2]
    except UserError as error:
        raise UserError(f"{error}; without what the run started from name a --family") from error


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
    place = os.path.abspath(settings.folder) if os.path.isdir(settings.folder) else settings.folder
    settings = Pretrained(place, digest.hexdigest())
    ours, theirs = filled_in(config), filled_in(model.config)
    for path in set_in(config):
        if path not in OURS and ours[path] != theirs.get(path):
            raise UserError(f"{path} is the pre-trained model's: leave it out")
    changed = {path: ours[path] for path in OURS & ours.keys()}
    changed["context"] = min(config.context, model.config.context)
    arrays = dict(zip(parameter_names(model), jax.tree.leaves(model), strict=True))
    for name in told.new:  # each member draws its own
        del arrays[name]
    if "positions.table" in arrays:  # those of the places that are not used are left out
        rows = changed["context"] + model.config.positions.offset
        arrays["positions.table"] = arrays["positions.table"][:rows]
    try:
        config = with_fields(model.config, changed)
    except ValueError as error:
        raise UserError(str(error)) from error
    return config, arrays, tokenizer, settings


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
    named = to_named(start)
    for name, array in named["parameters"].items():
        if name in arrays:
            same = np.broadcast_to(np.asarray(arrays[name]), array.shape)
            named["parameters"][name] = same.astype(array.dtype)
    return trainer.place(from_named(start, named))


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

    "Improving language understanding by generative pre-training" (Radford et al. 2018), in small:
    it learns from the same texts, without their labels. It is trained (or, in a run that is
    resumed, trained on) in the folder `pretraining` of the run.
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
