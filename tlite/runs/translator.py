"""Runs of a translator: pairs of sentences, their subwords, and how good the translations are."""

import dataclasses
import itertools
from collections.abc import Sequence

import jax
import numpy as np

from tlite.data import Pair
from tlite.data.tables import Part
from tlite.decoding.translate import check_search, translate
from tlite.errors import UserError
from tlite.experiment import TranslatorExperiment
from tlite.models import Seq2Seq
from tlite.runs.run import (
    EVALUATION_BATCH,
    Parts,
    Run,
    check_examples,
    spread,
    with_sizes,
)
from tlite.terminal import show
from tlite.text import PairTokenizer, Tokenizer
from tlite.text.subwords import PAD_ID, START_ID, bleu, exact_match, pad_tokens
from tlite.training import Trainer
from tlite.training.loop import validate
from tlite.training.run_dir import RunDir
from tlite.training.tasks import in_batches, make_buckets, padding_share, translator_task


class TranslatorRun(Run):
    """A translator and the pairs of sentences that it learns from."""

    kind = "translator"
    experiment_type = TranslatorExperiment
    model_type = Seq2Seq
    data_needs = ("pairs",)
    unit = "pairs"
    measured = ("loss", "accuracy", "bleu", "exact_match")
    packages = ("sacrebleu",)
    tokens_per_example = 1  # a batch is counted in tokens

    @classmethod
    def read(cls, experiment: TranslatorExperiment, part: Part) -> list[Pair]:
        return check_examples(experiment.data.pairs(part), Pair)

    @classmethod
    def fit_to_data(cls, experiment: TranslatorExperiment, data: Parts):
        if experiment.model.special_tokens.pad_id != PAD_ID:
            raise UserError(f"special_tokens.pad_id is the tokenizer's, {PAD_ID}: leave it out")
        sides = ([getattr(p, side) for p in data.training] for side in ("source", "target"))
        tokenizer = PairTokenizer.train(*sides, **vars(experiment.tokenizer))
        if not tokenizer.joint and experiment.model.head.embeddings != "separate":
            raise UserError(
                "a shared embedding needs joint subwords: --head.embeddings separate, or --joint"
            )
        sizes = {
            "vocabulary_size": len(tokenizer), "source_vocabulary_size": len(tokenizer.source)
        }  # fmt: skip
        experiment = with_sizes(experiment, sizes, "tokenizer")
        with_search(experiment)
        for pairs in data:  # before anything is written
            encode_pairs(experiment, tokenizer, pairs)
        return experiment, tokenizer

    @classmethod
    def load_tokenizer(cls, run: RunDir) -> PairTokenizer:
        return PairTokenizer.load(run.path / PairTokenizer.file_name)

    @staticmethod
    def text_of(pair: Pair) -> str:
        return f"{pair.source}\n{pair.target}\n"

    def make_trainer(self) -> Trainer:
        model, training = self.experiment.model, self.experiment.training
        encoded = encode_pairs(self.experiment, self.tokenizer, self.data.training)
        self.buckets = make_buckets(*encoded, self.experiment.buckets)
        sizes = [bucket.source.shape for bucket in self.buckets]
        settings = {"num_devices": len(jax.devices()), "label_smoothing": training.label_smoothing}
        try:
            task = translator_task(model, sizes, training.batch_size, **settings)
        except ValueError as error:
            raise UserError(str(error)) from error
        return Trainer(task, training, self.buckets)

    def batches(self, pairs: list[Pair]):
        """Every pair once: (sources, targets), each (N, B, ...)."""
        encoded = encode_pairs(self.experiment, self.tokenizer, pairs)
        arrays = tuple(map(pad_tokens, encoded))
        return in_batches(arrays, EVALUATION_BATCH, self.trainer.num_shards)

    def tell_what_is_trained(self) -> None:
        share = padding_share(self.buckets, self.experiment.model.special_tokens.pad_id)
        lengths = ", ".join(str(bucket.source.shape[1]) for bucket in self.buckets)
        print(f"buckets of up to {lengths} tokens, {100 * share:.1f} % padding")
        super().tell_what_is_trained()

    def measure(self, parameters, means) -> dict[str, np.ndarray]:
        """Of the greedy translations of the first validation sentences, by replica."""
        pairs = self.data.validation[: self.experiment.bleu_sentences]
        if not pairs:
            return {}
        texts, references = [pair.source for pair in pairs], self.references(pairs)
        models = self.trainer.models(parameters)
        found = [self.translations(model, texts, beam=1) for model in models]
        return {
            "bleu": np.array([bleu(f, references)[0] for f in found]),
            "exact_match": np.array([exact_match(f, references) for f in found]),
        }

    def translations(self, model, texts: Sequence[str], **search) -> list[str]:
        """The best translation of each text."""
        sources = encode_sources(self.experiment, self.tokenizer, texts)
        return [self.tokenizer.decode(found[0][0]) for found in translate(model, sources, **search)]

    def references(self, pairs: list[Pair]) -> list[str]:
        """What translations are compared with: lower-cased where the subwords have no capitals."""
        lowercase = self.experiment.tokenizer.lowercase
        return [pair.target.lower() if lowercase else pair.target for pair in pairs]

    def report(self, means, parameters, step) -> None:
        """Print loss, BLEU and a few translations of the validation part, and draw the curves."""
        pairs = self.data.validation
        print(f"validation loss {means['loss'].mean():.4f}, {len(pairs):,} sentences")
        found = self.print_scores(pairs, parameters)
        rows = zip([p.source for p in pairs], found, self.references(pairs), strict=True)
        text = "\n".join(f"{source}\n{written}\n({right})\n" for source, written, right in rows)
        self.save_sample(step, text)
        self.save_curves("loss", "bleu", "exact_match")
        self.advise_test()

    def evaluate(
        self, split: Part = "validation", checkpoint: str = "best", replica: int | str = 0, **search
    ) -> None:
        """Print the scores on a part.

        Args:
            search: as `with_search` takes it.
        """
        experiment = with_search(self.experiment, **search)
        self.dir = dataclasses.replace(self.dir, experiment=experiment)
        pairs, ensemble = self.examples(split), self.ensemble(replica)
        parameters, step = self.parameters(checkpoint)
        print(f"{checkpoint} checkpoint: step {step:,}")
        batches = self.batches(pairs)
        loss = validate(self.trainer, parameters, batches)["loss"].mean()
        print(f"{split} loss {loss:.4f}, {len(pairs):,} sentences")
        if ensemble:
            (loss,) = self.ensemble_means(parameters, batches)["loss"]
            print(f"{ensemble}: loss {loss:.4f}")
        self.print_scores(pairs, parameters, ensemble)

    def best_target(self, model, source: np.ndarray) -> np.ndarray:
        """[START] and the tokens of the best translation, as far as the model can read them."""
        settings = {"beam": self.experiment.beam, "length_penalty": self.experiment.length_penalty}
        target = translate(model, [source], **settings)[0][0][0]
        config = self.experiment.model
        return np.r_[START_ID, target[target != config.special_tokens.pad_id]][: config.context]

    def print_scores(self, pairs: list[Pair], parameters: dict, ensemble: str = "") -> list[str]:
        """Print BLEU and exact matches of greedy and beam search.

        BLEU is lower-cased, and also cased where the subwords have capitals. With the name of an
        `ensemble` also of that. Returns the last search's translations by the first replica, or by
        the ensemble.
        """
        texts, references = [pair.source for pair in pairs], self.references(pairs)
        cases = (True,) if self.experiment.tokenizer.lowercase else (True, False)
        if all(len(reference.split()) < 4 for reference in references):
            cases = ()  # BLEU counts four words in a row
        groups = {"": self.trainer.models(parameters)}
        if ensemble:
            groups[f"{ensemble}, "] = [self.ensemble_of(parameters)]
        settings = self.experiment.beam, self.experiment.length_penalty
        searches = dict.fromkeys([(1, 0.0), settings])
        for (beam, penalty), (who, models) in itertools.product(searches, groups.items()):
            found = [self.translations(m, texts, beam=beam, length_penalty=penalty) for m in models]
            name = who + (f"beam {beam}, length penalty {penalty:g}" if beam > 1 else "greedy")
            for lowercase in cases:
                scored = [bleu(written, references, lowercase=lowercase) for written in found]
                scores = spread(np.array([score for score, _ in scored]), ".2f")
                print(f"{name}: BLEU {scores}  {scored[0][1]}")
            matches = 100 * np.array([exact_match(written, references) for written in found])
            print(f"{name}: exact match {spread(matches, '.1f')} %")
        for text, written, right in itertools.islice(zip(texts, found[0], references), 3):  # noqa: B905
            show(f"\n  {text}\n  {written}\n  ({right})")
        return found[0]


def with_search(
    experiment: TranslatorExperiment, *, max_length: int | None = None, **given
) -> TranslatorExperiment:
    """The experiment with other settings of its search, where they are given.

    Args:
        given: `beam`, `length_penalty` and `truncate`; None or False is as the experiment has it.

    Raises:
        UserError: they make no sense.
    """
    given = {n: value for n, value in given.items() if value is not None and value is not False}
    try:
        experiment = dataclasses.replace(experiment, **given)
        check_search(experiment.model, experiment.beam, experiment.length_penalty, max_length)
    except ValueError as error:
        raise UserError(str(error)) from error
    return experiment


def encode_pairs(
    experiment: TranslatorExperiment, tokenizer: PairTokenizer, pairs: list[Pair]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Sources with their end, targets with start and end.

    Raises:
        UserError: one is longer than the model's context, and is not to be cut.
    """
    places = [pair.where for pair in pairs]
    sources = encode_sources(experiment, tokenizer, [pair.source for pair in pairs], places)
    targets = tokenizer.encode_targets(pair.target for pair in pairs)
    return sources, fit_context(experiment, targets, places, experiment.model.context + 1)


def encode_sources(
    experiment: TranslatorExperiment,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    places: Sequence[str] | None = None,
) -> list[np.ndarray]:
    """Tokens of each sentence and its end."""
    places = places or [f"line {number}" for number in range(1, len(texts) + 1)]
    sources = [np.asarray(ids, np.int32) for ids in tokenizer.encode_ids(texts)]
    return fit_context(experiment, sources, places, experiment.model.context)


def fit_context(
    experiment: TranslatorExperiment, rows: list[np.ndarray], places: Sequence[str], length: int
) -> list[np.ndarray]:
    """The rows, cut to `length` tokens (the end symbol stays) if the experiment says `truncate`."""
    for row, place in zip(rows, places, strict=True):
        if len(row) > length and not experiment.truncate:
            raise UserError(
                f"{place} has {len(row)} tokens, which is more than the context of "
                f"{experiment.model.context}: cut it (--truncate of tlite train and translate), or "
                "train with a larger --context"
            )
    return [row if len(row) <= length else np.r_[row[: length - 1], row[-1:]] for row in rows]
