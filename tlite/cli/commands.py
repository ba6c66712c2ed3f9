"""What the commands of `tlite` do: train, evaluate, generate, classify, translate, inspect."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import jax
import numpy as np

from tlite import comparison
from tlite.data.documents import Source
from tlite.data.reading import (
    MAX_MEGABYTES,
    decode,
    pieces,
    split_lines,
    standard_input,
    whole,
)
from tlite.decoding.translate import translate as search_all
from tlite.errors import UserError
from tlite.experiment import (
    ClassifierExperiment,
    Experiment,
    GeneratorExperiment,
    TranslatorExperiment,
)
from tlite.preparation import prepare_corpus
from tlite.pretrained import PretrainedTokenizer, is_pretrained
from tlite.recipes import (
    GeneratorRecipe,
    TranslatorRecipe,
    check_member,
    finetuning,
    open_recipe,
    start,
    study_training,
)
from tlite.recipes.classifier import encode_texts, probabilities
from tlite.recipes.ensemble import check_together
from tlite.recipes.evaluation import evaluate_classifier
from tlite.recipes.finetuning import evaluate_text
from tlite.recipes.generator import write_sample
from tlite.recipes.inspect_pretrained import inspect_pretrained
from tlite.recipes.inspect_run import inspect_run
from tlite.recipes.loading import open_model, warn_of_unheeded
from tlite.recipes.study import is_study
from tlite.recipes.tokens import check_prompt, end_ids, prompt_tokens
from tlite.recipes.translator import encode_sources, with_search
from tlite.terminal import show
from tlite.training.runs import Run


def train(experiment: Experiment, folder: Path | None = None, profile: int = 0) -> None:
    """Train an experiment in a new run folder; some of the steps are profiled if asked."""
    start(experiment, folder).train(profile)


def train_study(experiments: dict[str, Experiment], folder: Path | None = None) -> None:
    """Train variants of an experiment, by name, in a new folder, and compare them."""
    study_training.train_study(experiments, folder)


def resume(
    folder: Path, member: int | None = None, steps: int | None = None, profile: int = 0
) -> None:
    """Go on with a run that was cut short; or with one member of it, in a folder of its own.

    With `steps` the run goes on to as many.
    """
    if is_pretrained(folder):
        raise UserError(f"{folder} is no run: an experiment starts from it, make finetune-trec say")
    if is_study(folder):
        options = {"--member": member is not None, "--steps": steps is not None}
        for option in (name for name, given in (options | {"--profile": profile}).items() if given):
            raise UserError(f"{option} is for runs: {folder} is a study, name a run in it")
        study_training.resume_study(folder)
        return
    if member is not None and steps is not None:
        raise UserError("--steps is for all of a run: take the member first, then give it steps")
    run = open_recipe(folder, steps)
    (run if member is None else run.take_member(member)).train(profile)


def prepare(source: str, folder: Path, **options) -> None:
    """Make a corpus of texts: a folder of token files."""
    names = ("field", "split", "subset", "validation_fraction")
    of_source = {name: options.pop(name) for name in names if name in options}
    prepare_corpus(Source(source, **of_source), folder, **options)


def evaluate(
    folder: Path,
    checkpoint: str = "best",
    split: str = "validation",
    *,
    path: Path | None = None,
    sampled: int = 0,
    member: int | Literal["all"] = 0,
    beside: Path | None = None,
    beam: int | None = None,
    length_penalty: float | None = None,
    truncate: bool = False,
) -> None:
    """Print how a run's models do on a part of its data."""
    if sampled < 0:
        raise UserError(f"--sampled must be at least 1, not {sampled}")
    if is_pretrained(folder):
        if sampled or member or beside or (checkpoint, split) != ("best", "validation"):
            raise UserError("of a Hugging Face folder's generator only a text is scored: --path")
        evaluate_text(folder, path)
        return
    if path:
        raise UserError("--path is for Hugging Face folders: a run has data of its own")
    run = open_recipe(folder)
    if member == "all":
        check_together(run.run)
    search = {"beam": beam, "length_penalty": length_penalty, "truncate": truncate}
    if isinstance(run, TranslatorRecipe):
        if sampled or beside or member not in (0, "all"):
            raise UserError("--sampled is for generators, --beside and --member N for classifiers")
        run.evaluate(checkpoint, split, member == "all", **search)
        return
    if search != {"beam": None, "length_penalty": None, "truncate": False}:
        raise UserError("--beam, --length-penalty and --truncate are for translators")
    if isinstance(run, GeneratorRecipe):
        if beside or member not in (0, "all"):
            raise UserError("--beside and --member N are for classifiers")
        run.evaluate(checkpoint, split, sampled, member == "all")
        return
    if sampled:
        raise UserError("--sampled is for generators")
    evaluate_classifier(run, checkpoint, split, member, beside)


def generate(
    folder: Path,
    prompt: str | None = None,
    *,
    unknown: bool = False,
    checkpoint: str = "best",
    member: int | Literal["all"] = 0,
    samples: int = 1,
    seed: int = 0,
    tokens: int = 500,
    **sampling,
) -> None:
    """Print what the model of a run writes after the prompt."""
    if not 0 <= seed < 2**31:
        raise UserError(f"--seed must be in [0, 2^31), not {seed}")
    if not 1 <= samples <= 2**31 - seed:
        raise UserError(
            f"--samples must be at least 1 and at most {2**31 - seed:,}, as sample i is drawn with "
            f"seed + i, not {samples:,}"
        )
    check_sampling(**sampling)
    model, tokenizer, source = open_model(folder, GeneratorExperiment, checkpoint, member)
    if isinstance(source, Run):
        prompt = (source.experiment.prompt or None) if prompt is None else prompt
        sampling["end_ids"] = end_ids(tokenizer)
    else:
        sampling["end_ids"] = source.end_ids
        warn_of_unheeded(source)
    start = encode_prompt(tokenizer, prompt, unknown)
    for index in range(samples):
        head = f"--- sample {index + 1}\n" if samples > 1 else ""
        key = jax.random.key(seed + index)
        try:
            settings = {"key": key, "num_tokens": tokens, **sampling}
            write_sample(model, tokenizer, start, head + (prompt or ""), **settings)
        except ValueError as error:
            raise UserError(str(error)) from error


def check_sampling(temperature: float = 1.0, top_p: float | None = None, **_) -> None:
    """Raises a `UserError` for what is 0 or infinite among the numbers that JAX computes with."""
    if temperature > 0 and not 1e-4 <= temperature <= 1e4:
        raise UserError(f"--temperature must be between 0.0001 and 10,000, not {temperature:g}")
    if top_p is not None and 0 < top_p < 1e-6:
        raise UserError(f"--top-p must be at least 0.000001, not {top_p:g}")


def encode_prompt(tokenizer, prompt: str | None, unknown: bool) -> np.ndarray:
    """Tokens of the prompt; without one the mark that texts begin with, or end."""
    if prompt is None:
        marks = tokenizer.bos_id, tokenizer.eos_id
        if marks == (None, None):
            raise UserError("this model's texts begin with no mark: give a --prompt")
        return np.array([marks[1] if marks[0] is None else marks[0]], np.int32)
    check_prompt(prompt)
    strange = tokenizer.unknown_in(prompt) if hasattr(tokenizer, "unknown_in") else []
    if strange and not unknown:
        raise UserError(
            f"the model does not know {', '.join(map(repr, strange))} in the prompt: "
            f"leave out, or pass --unknown to read as the unknown symbol"
        )
    return prompt_tokens(tokenizer, prompt)


def classify(
    folder: Path,
    texts: Sequence[str],
    *,
    checkpoint: str = "best",
    member: int | Literal["all"] = 0,
    format: Literal["table", "jsonl"] = "table",
) -> None:
    """Print the class and the probabilities of each text; without texts, of each line read."""
    model, tokenizer, source = open_model(folder, ClassifierExperiment, checkpoint, member)
    texts = list(texts) or read_input("classify")
    if isinstance(tokenizer, PretrainedTokenizer):
        tokens = tokenizer.encode_batch(texts)
        if tokens.shape[1] > (context := model.config.context):
            tokens = tokenizer.encode_batch(texts, context)
    else:
        for number, text in enumerate(texts, 1):
            if not (tokenizer.encode_texts([text]) >= 0).any():
                print(f"warning: text {number} has no word in it", file=sys.stderr)
        tokens = encode_texts(source.experiment, tokenizer, texts)
    rows = probabilities(model, tokens)
    classes = source.experiment.data.classes if isinstance(source, Run) else source.labels
    if format == "jsonl":
        for text, row in zip(texts, rows.tolist(), strict=True):
            scores = {name: round(p, 6) for name, p in zip(classes, row, strict=True)}
            line = {"text": text, "class": max(scores, key=scores.get), "probabilities": scores}
            show(json.dumps(line))
        return
    width = max(*map(len, classes), 5)
    show("  ".join(f"{name:>{width}}" for name in [*classes, "class"]) + "  text")
    for text, row in zip(texts, rows, strict=True):
        cells = [f"{p:.3f}" for p in row] + [classes[row.argmax()]]
        shown = text if len(text) <= 60 else text[:59] + "\N{HORIZONTAL ELLIPSIS}"
        show("  ".join(f"{cell:>{width}}" for cell in cells) + f"  {shown}")


def translate(
    folder: Path,
    texts: Sequence[str],
    *,
    input: Path | None = None,
    checkpoint: str = "best",
    member: int | Literal["all"] = 0,
    beam: int | None = None,
    length_penalty: float | None = None,
    max_length: int | None = None,
    n_best: int = 1,
    truncate: bool = False,
    format: Literal["text", "jsonl"] = "text",
) -> None:
    """Print the translation of each text; without texts, of each line of a file or of the input."""
    if texts and input:
        raise UserError("give texts or --input, not both")
    model, tokenizer, source = open_model(folder, TranslatorExperiment, checkpoint, member)
    if isinstance(source, Run):
        experiment = source.experiment
    else:
        experiment = TranslatorExperiment("pretrained", model=model.config)
        warn_of_unheeded(source)
    experiment = with_search(experiment, beam, length_penalty, max_length, truncate)
    beam, penalty = experiment.beam, experiment.length_penalty
    if not 1 <= n_best <= beam:
        raise UserError(f"--n-best must be between 1 and the beam's {beam}, not {n_best}")
    texts = list(texts) or read_input("translate", input)
    for number, text in enumerate(texts, 1):
        if not text.strip():
            raise UserError(f"line {number} is empty: there is nothing to translate")
    sources = encode_sources(experiment, tokenizer, texts)
    settings = {"beam": beam, "length_penalty": penalty, "max_length": max_length}
    for text, found in zip(texts, search_all(model, sources, **settings), strict=True):
        chosen = [(tokenizer.decode(tokens), float(score)) for tokens, score in found[:n_best]]
        if format == "jsonl":
            best = [{"translation": t, "score": round(score, 4)} for t, score in chosen]
            show(json.dumps({"text": text, "translations": best}, ensure_ascii=False))
        elif n_best == 1:
            show(chosen[0][0])
        else:
            for place, (translation, score) in enumerate(chosen, 1):
                show(f"{place}\t{score:.4f}\t{translation}")


def compare(folders: Sequence[Path], *, to: Path | None, format: comparison.Format) -> None:
    """Print how runs differ from the first, and write tables, pictures and a page of it."""
    jax.config.update("jax_platforms", "cpu")  # a GPU may be busy with what is compared
    comparison.compare(folders, to, format)


def export(
    folder: Path,
    to: Path,
    *,
    family: str | None = None,
    checkpoint: str = "best",
    member: int = 0,
) -> None:
    """Write the model of a run for transformers."""
    family = finetuning.export(folder, to, family=family, checkpoint=checkpoint, member=member)
    print(f"saved in {to} as a {family} model: AutoModel*.from_pretrained({str(to)!r}) opens it")


def inspect(
    folder: Path, text: str | None = None, *, checkpoint: str = "best", member: int = 0
) -> None:
    """Draw every picture of a run into its folder, and write one page with all of them."""
    if is_pretrained(folder):
        path = inspect_pretrained(folder, checkpoint, member, text)
    else:
        run = open_recipe(folder)
        check_member(member, len(run.experiment.training.members))
        path = inspect_run(run, checkpoint, member, text)
    number = len(list(path.parent.glob("*.png")))
    print(f"{number} pictures in {path.parent}; all of them on one page: {path}")


def read_input(purpose: str, path: Path | None = None) -> list[str]:
    """The lines of a file, or of standard input.

    Raises:
        UserError: there are none or too many, they are not UTF-8, or can't be read.
    """
    if path is None and sys.stdin.isatty():
        print("one text a line; end with Ctrl-D", file=sys.stderr)
    parts = pieces(path) if path else standard_input()
    name = path or "standard input"
    content = whole(parts, name, MAX_MEGABYTES, f"{purpose} a part of it at a time")
    if not (lines := split_lines(decode(content, name, "utf-8"))):
        raise UserError(f"there is nothing to {purpose}: give texts, or lines on standard input")
    return lines
