"""The commands that are about a run or a corpus and not about a text, handed their options."""

from functools import partial
from typing import Any

import jax

from tlite.cli.options import Compare, Evaluate, Export, Inspect, Prepare, Resume, Search
from tlite.data.corpus import BEGINNINGS
from tlite.data.documents import Source
from tlite.data.prepare import Texts
from tlite.data.prepare import prepare as write_corpus
from tlite.data.reading import MEGABYTE
from tlite.errors import UserError
from tlite.experiment import (
    BPE,
    Bytes,
    Characters,
    TextTokenizer,
    TokenizerFile,
    tokenizer_named,
)
from tlite.pretrained import is_pretrained, learn_bpe
from tlite.pretrained.tokenizers import open_tokenizer
from tlite.runs import ClassifierRun, Run, TranslatorRun, models
from tlite.runs.models import check_replica
from tlite.text import ByteTokenizer, CharTokenizer
from tlite.training.run_dir import STUDY, check_shared

LEARNED_FROM = 50 * MEGABYTE  # bytes of the training part


def prepare(options: Prepare) -> None:
    """Make a corpus of texts, a folder of token files, and say what it has come to."""
    try:
        tokenizer = tokenizer_named(options.tokenizer)
    except ValueError as error:
        raise UserError(f"--tokenizer {options.tokenizer}: {error}") from error
    name = f"bpe:{tokenizer.pieces}" if isinstance(tokenizer, BPE) else options.tokenizer
    if isinstance(tokenizer, TokenizerFile):
        open_tokenizer(tokenizer.path)  # a missing one fails before anything is read
    names = "source", "field", "split", "subset", "validation_fraction"
    source = Source(*(getattr(options, name) for name in names))
    sizes = {"shard_tokens": options.shard_tokens, "processes": options.processes}
    make = partial(make_tokenizer, tokenizer)
    manifest = write_corpus(source, options.folder, name, make, **sizes)
    for part in BEGINNINGS:
        if found := manifest.parts.get(part):
            print(
                f"{part}: {found.tokens:,} tokens, {found.bytes:,} bytes of text, "
                f"{found.documents:,} documents"
            )
    print(f"{options.folder}: {manifest.vocabulary_size:,} different tokens, as {manifest.dtype}")


def make_tokenizer(settings: TextTokenizer, texts: Texts) -> Any:
    """The tokenizer of these settings; what has to be learned is learned from the texts."""
    if isinstance(settings, Bytes):
        return ByteTokenizer()
    if isinstance(settings, Characters):
        return CharTokenizer("".join(set().union(*texts(None))))
    if isinstance(settings, BPE):
        return learn_bpe(texts(LEARNED_FROM), settings.pieces)
    return open_tokenizer(settings.path)[0]


def resume(options: Resume) -> None:
    """Go on with a study or a run that was cut short."""
    check_shared(options.resume)
    if (options.resume / STUDY).is_file():
        if options.steps is not None or options.profile:
            raise UserError("--steps and --profile are for a run: name one in the study")
        from tlite.runs import study

        study.resume_study(options.resume)
        return
    Run.open(options.resume, steps=options.steps).train(profile=options.profile)


def evaluate(options: Evaluate) -> None:
    """Print how a run's models do on a part of its data, or a model of others on a text."""
    asked = {name: value for name, value in vars(options).items() if name not in ("run", "code")}
    given = {name: value for name, value in asked.items() if value != getattr(Evaluate, name)}
    run = None if is_pretrained(options.run) else Run.open(options.run)
    known = {"checkpoint", "split", "replica"} if run else {"path"}
    if isinstance(run, TranslatorRun):
        known |= {*Search.__dataclass_fields__}
    for name in given.keys() - known:
        raise UserError(f"there is no option --{name.replace('_', '-')} for {options.run}")
    if options.replica not in (0, "all") and not isinstance(run, ClassifierRun):
        raise UserError(f"--replica must be 0 or all for {options.run}, not {options.replica}")
    if run:
        run.evaluate(**given)
    else:
        models.evaluate_text(options.run, options.path)


def export(options: Export) -> None:
    """Write the model of a run for transformers."""
    to = options.to
    settings = {"checkpoint": options.checkpoint, "replica": options.replica}
    family = models.export(options.run, to, family=options.family, **settings)
    print(f"saved in {to} as a {family} model: AutoModel*.from_pretrained({str(to)!r}) opens it")


def compare(options: Compare) -> None:
    """Print how runs differ from the first, and write tables, pictures and a page of it."""
    from tlite import comparison  # it imports what draws, which is slow

    jax.config.update("jax_platforms", "cpu")  # a GPU may be busy with what is compared
    comparison.compare(**vars(options))


def inspect(options: Inspect) -> None:
    """Draw every picture of a run or a model, and write one page with all of them."""
    from tlite.report import inspect_pretrained, inspect_run

    settings = options.checkpoint, options.replica, options.text, options.to
    if is_pretrained(options.run):
        path = inspect_pretrained(options.run, *settings)
    else:
        run = Run.open(options.run)
        check_replica(options.replica, len(run.experiment.training.seed_range))
        path = inspect_run(run, *settings)
    number = len(list(path.parent.glob("*.png")))
    print(f"{number} pictures in {path.parent}; all of them on one page: {path}")
