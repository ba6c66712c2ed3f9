"""The commands that ask a model for something: generate, classify, translate."""

import json
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np

import tlite.functional as F
from tlite.cli.options import Classify, Generate, Translate
from tlite.data.reading import read_lines
from tlite.decoding import Sampler
from tlite.decoding.translate import translate as search_all
from tlite.errors import UserError, printable, show
from tlite.experiment import ClassifierExperiment, GeneratorExperiment, TranslatorExperiment
from tlite.runs.classifier import are_cut, encode_texts, probabilities
from tlite.runs.generator import end_ids, prompt_tokens, write_sample
from tlite.runs.models import open_model, warn_unsupported_generation
from tlite.runs.translator import encode_sources, with_search
from tlite.text import Tokenizer
from tlite.training.run_dir import RunDir

NAMED = 5  # unknown words


def generate(options: Generate) -> None:
    """Print what the model of a run writes after the prompt."""
    asked = options.run, GeneratorExperiment, options.checkpoint, options.replica
    model, tokenizer, source = open_model(*asked)
    prompt = options.prompt
    if isinstance(source, RunDir):
        prompt = (source.experiment.prompt or None) if prompt is None else prompt
        ends = end_ids(tokenizer)
    else:
        ends = source.end_ids
        warn_unsupported_generation(source)
    start = encode_prompt(tokenizer, prompt, options.unknown)
    settings = {"num_tokens": options.tokens, "stop": ends, "sampler": make_sampler(options)}
    for index in range(options.samples):
        head = f"--- sample {index + 1}\n" if options.samples > 1 else ""
        key = jax.random.key(options.seed + index)
        try:
            write_sample(model, tokenizer, start, head + (prompt or ""), rng=key, **settings)
        except ValueError as error:
            raise UserError(str(error)) from error


def make_sampler(options: Generate) -> Sampler:
    """Return the sampler of the command's options; greedy at temperature 0."""
    filters = {name: getattr(options, name) for name in ("top_k", "top_p", "min_p")}
    if options.temperature and not options.greedy:
        return partial(F.sample, temperature=options.temperature, **filters)
    if options.temperature not in (0, 1) or any(value is not None for value in filters.values()):
        raise UserError("greedy decoding has no --temperature, --top-k, --top-p or --min-p")
    return F.greedy


def encode_prompt(tokenizer: Tokenizer, prompt: str | None, unknown: bool) -> np.ndarray:
    """Tokens of the prompt; without one the mark that texts begin with, or end."""
    if prompt is None:
        marks = tokenizer.bos_id, tokenizer.eos_id
        if marks == (None, None):
            raise UserError("this model's texts begin with no mark: give a --prompt")
        return np.array([marks[1] if marks[0] is None else marks[0]], np.int32)
    if not unknown and (strange := tokenizer.unknown_in(prompt)):
        raise UserError(
            f"the model does not know {', '.join(map(repr, strange))} in the prompt: "
            f"leave out, or pass --unknown to read as the unknown symbol"
        )
    return prompt_tokens(tokenizer, prompt)


def classify(options: Classify) -> None:
    """Print the class and the probabilities of each text; without texts, of each line read."""
    asked = options.run, ClassifierExperiment, options.checkpoint, options.replica
    model, tokenizer, source = open_model(*asked)
    texts = list(options.texts) or read_input("classify")
    for number, text in enumerate(texts, 1):
        if not tokenizer.words(text):
            warn(f"text {number} has no word in it")
    if isinstance(source, RunDir):
        read = source.experiment, tokenizer, texts
        tokens, cut = encode_texts(*read), are_cut(*read)
    else:
        context = model.config.context
        cut = [len(ids) > context for ids in tokenizer.encode_ids(texts)]
        tokens = tokenizer.encode_texts(texts, context if any(cut) else None)
    tell_unread(tokenizer, texts, cut)
    rows = probabilities(model, tokens)
    classes = source.experiment.data.classes if isinstance(source, RunDir) else source.labels
    if options.format == "jsonl":
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


def translate(options: Translate) -> None:
    """Print the translation of each text; without texts, of each line of a file or of the input."""
    asked = options.run, TranslatorExperiment, options.checkpoint, options.replica
    model, tokenizer, source = open_model(*asked)
    if isinstance(source, RunDir):
        experiment = source.experiment
    else:
        experiment = TranslatorExperiment("pretrained", model=model.config)
        warn_unsupported_generation(source)
    names = "beam", "length_penalty", "truncate", "max_length"
    experiment = with_search(experiment, **{name: getattr(options, name) for name in names})
    if not 1 <= options.n_best <= experiment.beam:
        most = experiment.beam
        raise UserError(f"--n-best must be between 1 and the beam's {most}, not {options.n_best}")
    texts = list(options.texts) or read_input("translate", options.input)
    for number, text in enumerate(texts, 1):
        if not text.strip():
            raise UserError(f"line {number} is empty: there is nothing to translate")
    sources = encode_sources(experiment, tokenizer, texts)
    context = experiment.model.context
    tell_unread(tokenizer, texts, [len(ids) > context for ids in tokenizer.encode_ids(texts)])
    settings = {"beam": experiment.beam, "length_penalty": experiment.length_penalty}
    settings["max_length"] = options.max_length
    for text, found in zip(texts, search_all(model, sources, **settings), strict=True):
        chosen = found[: options.n_best]
        chosen = [(tokenizer.decode(tokens), float(score)) for tokens, score in chosen]
        if options.format == "jsonl":
            best = [{"translation": t, "score": round(score, 4)} for t, score in chosen]
            known = sys.stdout.encoding.lower() in ("utf-8", "utf8")  # else letters are escaped
            show(json.dumps({"text": text, "translations": best}, ensure_ascii=not known))
        elif options.n_best == 1:
            show(chosen[0][0])
        else:
            for place, (translation, score) in enumerate(chosen, 1):
                show(f"{place}\t{score:.4f}\t{translation}\t{text}")


def tell_unread(tokenizer: Tokenizer, texts: list[str], cut: list[bool]) -> None:
    """Say on standard error how many words are unknown, and how many texts were cut."""
    whole = "\n".join(texts)
    if unknown := tokenizer.unknown_in(whole):
        shown = ", ".join(map(repr, unknown[:NAMED])) + ", ..." * (len(unknown) > NAMED)
        number = len(set(tokenizer.words(whole)))
        warn(f"{len(unknown)} of {number} different words are unknown to the model: {shown}")
    if any(cut):
        said = "texts are longer than the model reads, and cut: the first is text"
        warn(f"{sum(cut)} of {len(texts)} {said} {cut.index(True) + 1}")


def warn(text: str) -> None:
    print(printable(f"warning: {text}"), file=sys.stderr)


def read_input(purpose: str, path: Path | None = None) -> list[str]:
    """The lines of a file, or of standard input.

    Raises:
        UserError: there are none or too many, they are not UTF-8, or can't be read.
    """
    if path is None and sys.stdin.isatty():
        print("one text a line; end with Ctrl-D", file=sys.stderr)
    if not (lines := read_lines(path)):
        raise UserError(f"there is nothing to {purpose}: give texts, or lines on standard input")
    return lines
