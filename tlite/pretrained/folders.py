"""Load models from Hugging Face folders and the hub."""

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tlite.data.reading import read_json
from tlite.errors import UserError
from tlite.models import ClassifierConfig, TransformerConfig, make_model
from tlite.models.parameters import from_named_arrays, named_arrays
from tlite.pretrained import files
from tlite.pretrained.arrays import map_names, to_tlite
from tlite.pretrained.configs import class_names, identify, is_hf_tied, label_fields, read_config
from tlite.pretrained.families import BUFFERS, FAMILIES, UNUSED
from tlite.pretrained.files import HUB_NAME, StoredArray, open_arrays, read_optional_json
from tlite.pretrained.tokenizers import PretrainedTokenizer

GENERATION = "generation_config.json"
HEAD = re.compile(r"(projection|projection_norm|head)\.\w+")


@dataclass(frozen=True)
class Pretrained:
    """A Hugging Face folder that a model was loaded from, to save the model as it was."""

    folder: Path
    family: str
    kind: str
    """generator, masked, classifier, encoder or seq2seq."""
    fields: dict[str, Any]
    """Fields of config.json."""
    config: TransformerConfig
    generation: dict[str, Any] = field(default_factory=dict)
    """Fields of generation_config.json."""
    no_tokenizer: str = ""
    """Reason why the folder has no tokenizer that can be read; "" if it has one."""
    unused: dict[str, np.ndarray] = field(default_factory=dict)
    """Arrays that tlite does not use, to be saved again."""
    new: tuple[str, ...] = ()
    """Names of the tlite arrays of a new head."""

    @property
    def labels(self) -> list[str]:
        """Names of a classifier's classes; transformers does not store LABEL_0 and LABEL_1."""
        if not isinstance(self.config, ClassifierConfig):
            return []
        names = [f"LABEL_{index}" for index in range(self.config.num_classes)]
        return class_names(self.fields) or names

    @property
    def end_ids(self) -> list[int]:
        """Tokens that end a text."""
        ids = self.generation.get("eos_token_id", self.fields.get("eos_token_id"))
        ids = ids if isinstance(ids, list) else [ids]
        # GPT-2's default, 50256, stands in configs of smaller vocabularies, too.
        return [i for i in ids if i is not None and 0 <= i < self.config.vocabulary_size]


def is_pretrained(name: str | Path) -> bool:
    """True for a folder with a model of transformers, and for a possible hub name."""
    path = Path(name)
    if not os.path.exists(path):  # `runs/first` is no hub name if there is a folder `runs`
        return bool(HUB_NAME.fullmatch(str(name))) and not os.path.exists(path.parent)
    try:
        return "model_type" in read_json(path / "config.json")
    except UserError:
        return False


def local_folder(name: str | Path) -> Path:
    """Return the folder, or for a hub name the cache of huggingface_hub after a download."""
    if Path(name).is_dir():
        return Path(name)
    if not is_pretrained(name):
        raise UserError(
            f"there is no folder {name}; a name on the hub has an owner: openai-community/gpt2"
        )
    # No second copy of the weights, which other libraries have in subfolders.
    patterns, ignored = ["*.safetensors", "*.json", "*.txt", "*.model"], ["*/*", "consolidated*"]
    return files.download(str(name), "model", patterns, ignore_patterns=ignored)


def load_pretrained(
    name: str | Path, *, num_classes: int | None = None, rng: jax.Array | None = None
) -> tuple[Any, PretrainedTokenizer | None, Pretrained]:
    """Load a model from a folder or the hub, in float32, with its tokenizer if there is one.

    Args:
        num_classes: if not None, load an encoder as a classifier with a new head: kernels drawn
            from N(0, 0.02^2) with `rng`, zeros elsewhere. A layer before the head that the folder
            has (BERT's pooler) is loaded.

    Raises:
        UserError: an array is unexpected or missing, tlite does not have the model that
            config.json describes, or a file is damaged.
    """
    folder = local_folder(name)
    hf, generation = read_json(folder / "config.json"), read_optional_json(folder, GENERATION)
    try:
        family, kind = identify(hf)
        if num_classes is not None:
            if "classifier" not in FAMILIES[family].heads:
                raise UserError(f"{name} is a {kind}: a classifier needs an encoder such as BERT")
            kind, old_head = "classifier", ("num_labels", "problem_type")
            hf = {name: value for name, value in hf.items() if name not in old_head}
            hf |= label_fields(f"LABEL_{i}" for i in range(num_classes))
        stored = _rename_arrays(open_arrays(folder), family, hf)
        forced = {name: generation[name] for name in generation if name == "forced_bos_token_id"}
        config = read_config(hf | forced, family, kind, stored)
        abstract = abstract_model(config)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"config.json of {folder} is invalid: {reason}") from error
    tokenizer, reason = _load_tokenizer(folder, config)
    pretrained = Pretrained(folder, family, kind, hf, config, generation, reason)
    head_rng = None if num_classes is None else jax.random.key(0) if rng is None else rng
    arrays, pretrained = _read_arrays(pretrained, stored, named_arrays(abstract), head_rng)
    return from_named_arrays(abstract)(arrays), tokenizer, pretrained


def _load_tokenizer(folder: Path, config: Any) -> tuple[PretrainedTokenizer | None, str]:
    """Return the tokenizer, or None and the reason."""
    try:
        tokenizer = PretrainedTokenizer.load(folder)
    except UserError as error:
        return None, str(error)
    tokenizer.num_embeddings = getattr(config, "source_vocabulary_size", config.vocabulary_size)
    return tokenizer, ""


def _read_arrays(
    pretrained: Pretrained,
    stored: dict[str, StoredArray],
    abstract: dict[str, jax.ShapeDtypeStruct],
    head_rng: jax.Array | None,
) -> tuple[dict[str, jax.Array], Pretrained]:
    """Return the tlite arrays in float32, and `pretrained` with `unused` and `new`.

    Args:
        head_rng: draws a new head; None loads the folder's.
    """
    folder, family, kind = pretrained.folder, pretrained.family, pretrained.kind
    arrays: dict[str, jax.Array] = {}
    new, unread = [], dict(stored)
    for hf, names in map_names(family, kind, list(abstract)).items():
        shapes, in_head = {n: abstract[n].shape for n in names}, all(map(HEAD.fullmatch, names))
        if head_rng is not None and in_head and (hf not in unread or names[0].startswith("head.")):
            arrays |= {name: _init_head(name, shapes[name], head_rng) for name in names}
            new += names
            continue
        if hf not in unread:
            raise UserError(f"{folder} has no array {hf}, which its config.json requires")
        try:
            array = unread.pop(hf).read()
            converted = to_tlite(family, hf, array, shapes, pretrained.config.head_dim)
        except ValueError as error:
            raise UserError(f"{folder}: {hf} has {error} as in its config.json") from error
        arrays |= {n: jnp.asarray(np.array(a, np.float32, order="C")) for n, a in converted.items()}
    unread = {n: a for n, a in unread.items() if head_rng is None and not BUFFERS.fullmatch(n)}
    if unexpected := [name for name in unread if not UNUSED.fullmatch(name)]:
        raise UserError(f"{folder}: a {family} {kind} has no array {unexpected[0]}")
    unused = {name: np.array(array.read(), np.float32) for name, array in unread.items()}
    return arrays, replace(pretrained, unused=unused, new=tuple(new))


def abstract_model(config: TransformerConfig):
    """Return the model with shapes in place of arrays."""
    return jax.eval_shape(lambda: make_model(config, rng=jax.random.key(0)))


def _rename_arrays(
    arrays: dict[str, StoredArray], family: str, hf: Mapping[str, Any]
) -> dict[str, StoredArray]:
    """Rename arrays as in a bare model of today, and drop copies (not of an untied head)."""
    tables, renamed = FAMILIES[family], {}
    for name, array in arrays.items():
        name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        renamed[name.removeprefix(tables.prefix)] = array
    copies = tables.copies if hf.get("share_encoder_decoder_embeddings", True) else {}
    if not is_hf_tied(hf, family) and "masked" not in tables.heads:
        copies.pop(f"{tables.output}.weight", None)
    for copy, name in copies.items():
        if copy in renamed and name not in renamed:
            renamed[name] = renamed.pop(copy)
        elif copy in renamed and np.array_equal(renamed[copy].read(), renamed[name].read()):
            del renamed[copy]
    return renamed


def _init_head(name: str, shape: tuple[int, ...], rng: jax.Array) -> jax.Array:
    if name.endswith("kernel"):
        return 0.02 * jax.random.normal(jax.random.fold_in(rng, zlib.crc32(name.encode())), shape)
    return jnp.ones(shape) if name.endswith("scale") else jnp.zeros(shape)
