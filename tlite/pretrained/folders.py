"""Models of Hugging Face folders and hub names."""

import contextlib
import os
import re
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tlite.data.reading import read_json
from tlite.errors import UserError
from tlite.models import TransformerConfig, make_model
from tlite.models.parameters import from_named_arrays, named_arrays
from tlite.pretrained.configs import (
    class_names,
    kind_of,
    labelled,
    read_config,
    says_tied,
    unknown_fields,
)
from tlite.pretrained.files import HUB_NAME, TYPES, Stored, download, json_of, stored_arrays
from tlite.pretrained.layers import LAYERS, counterparts, to_ours
from tlite.pretrained.tokenizers import PretrainedTokenizer
from tlite.terminal import printable

GENERATION = "generation_config.json"
NEW_HEAD = re.compile(r"(projection|projection_norm|head)\.\w+")


@dataclass(frozen=True)
class Pretrained:
    """What a folder said of a model; with it, the model is saved as it was."""

    folder: Path
    family: str
    kind: str
    """generator, masked, classifier, encoder or seq2seq."""
    fields: dict[str, Any]
    """Its config.json."""
    config: TransformerConfig
    generation: dict[str, Any] = field(default_factory=dict)
    """Its generation_config.json."""
    no_tokenizer: str = ""
    """Why the folder has no tokenizer that can be read."""
    dtype: str = "F32"
    """The type of its arrays: F32, F16 or BF16."""
    kept: dict[str, np.ndarray] = field(default_factory=dict)
    """Arrays that the model has no use for, and that are saved again with it."""
    new: tuple[str, ...] = ()
    """Names of our arrays that the folder did not have, and that training has to fill."""

    @property
    def labels(self) -> list[str]:
        """The names of a classifier's classes; transformers leaves out LABEL_0 and LABEL_1."""
        if self.kind != "classifier":
            return []
        numbered = [f"LABEL_{index}" for index in range(self.config.num_classes)]
        return class_names(self.fields) or numbered

    @property
    def end_ids(self) -> list[int]:
        """The tokens that end a text."""
        given = self.generation.get("eos_token_id", self.fields.get("eos_token_id"))
        return given if isinstance(given, list) else [] if given is None else [given]


def is_pretrained(name: str | Path) -> bool:
    """Whether this is a folder with a model of transformers, or has the form of a hub name.

    `runs/first` has that form too: where there is a folder `runs`, it is a path.
    """
    path = Path(name)
    if not os.path.exists(path):
        return bool(HUB_NAME.fullmatch(str(name))) and not os.path.exists(path.parent)
    try:
        return "model_type" in read_json(path / "config.json")
    except UserError:
        return False


def local_folder(name: str | Path) -> Path:
    """The folder; for a hub name, where the hub's client keeps what it downloads.

    Raises:
        UserError: there is neither, or the hub can't be reached.
    """
    if Path(name).is_dir():
        return Path(name)
    if not is_pretrained(name):
        raise UserError(f"there is no folder {name}")
    # One copy of the weights, not those of other libraries in folders of their own.
    only = {"ignore_patterns": ["*/*", "consolidated*"]}
    return download(str(name), "model", ["*.safetensors", "*.json", "*.txt", "*.model"], **only)


def load_pretrained(
    name: str | Path, *, num_classes: int | None = None, rng: jax.Array | None = None
) -> tuple[Any, PretrainedTokenizer | None, Pretrained]:
    """The model of a folder or hub name, in float32, with its tokenizer if there is one.

    Args:
        num_classes: take an encoder as a classifier of so many classes, with a new head: kernels
            drawn from N(0, 0.02^2) with `rng`, and zeros. What the folder has for the layer
            before the head (BERT's pooler) is taken.

    Raises:
        UserError: an array is unknown or missing, a field says what tlite doesn't have, or a file
            is damaged.
    """
    folder = local_folder(name)
    theirs, generation = read_json(folder / "config.json"), json_of(folder, GENERATION)
    with _understood(folder):
        family, kind = kind_of(theirs)
        if num_classes is not None:
            if "classifier" not in LAYERS[family].heads:
                raise UserError(f"{name} is a {kind}: classifiers start from encoders, BERT say")
            kind, of_head = "classifier", ("num_labels", "problem_type")  # of the one that was
            theirs = {field: value for field, value in theirs.items() if field not in of_head}
            theirs |= labelled(f"LABEL_{i}" for i in range(num_classes))
        stored = _canonical(folder, family, theirs)
        first = {name: generation[name] for name in generation if name == "forced_bos_token_id"}
        config = read_config(theirs | first, family, kind, stored)
        abstract = abstract_model(config)
    if unknown := unknown_fields(theirs, family):
        warning = f"warning: {folder / 'config.json'} says what tlite doesn't know: {unknown}"
        print(printable(warning), file=sys.stderr)
    try:
        tokenizer, reason = PretrainedTokenizer.load(folder), ""
        tokenizer.limit = getattr(config, "source_vocabulary_size", config.vocabulary_size)
    except UserError as error:
        tokenizer, reason = None, str(error)
    told = Pretrained(folder, family, kind, theirs, config, generation, reason)
    rng = None if num_classes is None else jax.random.key(0) if rng is None else rng
    arrays, told = _read_arrays(told, stored, named_arrays(abstract), rng)
    return from_named_arrays(abstract)(arrays), tokenizer, told


def _read_arrays(
    told: Pretrained,
    stored: dict[str, Stored],
    abstract: dict[str, jax.ShapeDtypeStruct],
    rng: jax.Array | None,
) -> tuple[dict[str, jax.Array], Pretrained]:
    """Our arrays by name, in float32; and what is told of theirs.

    Args:
        rng: draws a new head; without it the folder's is taken, and nothing strange may be left.
    """
    folder, family, kind = told.folder, told.family, told.kind
    arrays, new, left = {}, [], dict(stored)
    for theirs, names in counterparts(family, kind, list(abstract)).items():
        shapes = {name: abstract[name].shape for name in names}
        of_head = rng is not None and all(map(NEW_HEAD.fullmatch, names))
        if of_head and (theirs not in left or names[0].startswith("head.")):
            arrays |= {name: _fresh(name, shape, rng) for name, shape in shapes.items()}
            new += names
            continue
        if theirs not in left:
            raise UserError(f"{folder} has no array {theirs}, which its config.json asks for")
        array = left.pop(theirs)
        try:
            parts = to_ours(family, theirs, array.read(), shapes, told.config.head_dim)
        except ValueError as error:
            what = f"{array.name} of {error}, which its config.json asks for"
            raise UserError(f"{folder} has {what}") from error
        arrays |= {n: jnp.asarray(np.array(p, np.float32, order="C")) for n, p in parts.items()}
    left = {} if rng is not None else left  # else of the old head
    if strange := [name for name in left if not re.fullmatch(LAYERS[family].kept, name)]:
        what = f"an array that a {family} {kind} has no place for: {strange[0]}"
        raise UserError(f"{folder} has {what}")
    dtype = max(TYPES, key=[array.dtype for array in stored.values()].count)
    kept = {name: np.array(array.read(), np.float32) for name, array in left.items()}
    return arrays, replace(told, dtype=dtype, kept=kept, new=tuple(new))


@contextlib.contextmanager
def _understood(folder: Path) -> Iterator[None]:
    """Turn what strange values in config.json bring about into one sentence."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"config.json of {folder} is not one that tlite understands: {reason}"
        ) from error


def abstract_model(config: TransformerConfig):
    """The model with shapes for arrays: nothing is drawn."""
    return jax.eval_shape(lambda: make_model(config, rng=jax.random.key(0)))


def _canonical(folder: Path, family: str, theirs: dict[str, Any]) -> dict[str, Stored]:
    """The arrays under the names of a bare model today, without buffers and second copies.

    A head that is said to be untied is no copy, even if it is equal.
    """
    layers, stored = LAYERS[family], {}
    for name, array in stored_arrays(folder).items():
        name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        name = name.removeprefix(layers.prefix)
        if not re.fullmatch(layers.ignored, name):
            stored[name] = array
    copies = dict(layers.copies) if theirs.get("share_encoder_decoder_embeddings", True) else {}
    if not says_tied(theirs, family):
        copies.pop(f"{layers.head}.weight", None)
    for copy, name in copies.items():
        if copy in stored and name not in stored:
            stored[name] = stored.pop(copy)
        elif copy in stored and np.array_equal(stored[copy].read(), stored[name].read()):
            del stored[copy]
    return stored


def _fresh(name: str, shape: tuple[int, ...], rng: jax.Array) -> jax.Array:
    if name.endswith("kernel"):
        return 0.02 * jax.random.normal(jax.random.fold_in(rng, zlib.crc32(name.encode())), shape)
    return jnp.ones(shape) if name.endswith("scale") else jnp.zeros(shape)
