"""Runs of a translator: pairs of sentences, their subwords, and scores of translations."""

import copy
import dataclasses
import itertools
import unicodedata
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tlite.data import Pair
from tlite.data.reading import Split
from tlite.decoding.translate import check_search, translate
from tlite.errors import UserError, show
from tlite.experiment import TranslatorExperiment
from tlite.models import Seq2Seq
from tlite.runs.reporting import spread
from tlite.runs.run import EVALUATION_BATCH, Built, ExamplesRun, check_examples, with_sizes
from tlite.text import PairTokenizer, Tokenizer
from tlite.text.subwords import (
    PAD_ID,
    START_ID,
    bleu,
    bleu_by_sentence,
    bleu_statistics,
    exact_match,
    pad_tokens,
)
from tlite.training import Task
from tlite.training.loop import validate
from tlite.training.run_dir import RunDir
from tlite.training.tasks import in_batches, make_buckets, padding_share, translator_task


class TranslatorRun(ExamplesRun):
    """A translator and the pairs of sentences that it learns from."""

    kind = "translator"
    experiment_type = TranslatorExperiment
    model_type = Seq2Seq
    unit = "pairs"
    metrics = ("loss", "accuracy", "bleu", "exact_match")
    packages = ("sacrebleu",)
    tokens_per_example = 1  # batch_size counts tokens

    @classmethod
    def read(cls, experiment: TranslatorExperiment, split: Split) -> list[Pair]:
        return check_examples(experiment.data.pairs(split), Pair)

    @classmethod
    def build(cls, experiment: TranslatorExperiment, data: tuple[list, list]) -> Built:
        if experiment.model.special_tokens.pad_id != PAD_ID:
            raise UserError(f"special_tokens.pad_id is the tokenizer's, {PAD_ID}: leave it out")
        training, validation = data
        sources, targets = ([p.source for p in training], [p.target for p in training])
        settings = experiment.tokenizer
        tokenizer = PairTokenizer.train(
            sources,
            targets,
            settings.num_subwords,
            joint=settings.joint,
            lowercase=settings.lowercase,
        )
        if not tokenizer.joint and experiment.model.head.embeddings != "separate":
            raise UserError(
                "a shared embedding needs joint subwords: --head.embeddings separate, or --joint"
            )
        sizes = {"vocabulary_size": len(tokenizer)}
        sizes["source_vocabulary_size"] = len(tokenizer.source)
        experiment = with_sizes(experiment, sizes, "tokenizer")
        with_search(experiment)
        for pairs in data:  # before anything is written
            encode_pairs(experiment, tokenizer, pairs)
        fingerprint = cls.fingerprint(experiment, data)
        return Built(experiment, tokenizer, training, validation, fingerprint)

    @classmethod
    def load_tokenizer(cls, run_dir: RunDir) -> PairTokenizer:
        return PairTokenizer.load(run_dir.path / PairTokenizer.file_name)

    @staticmethod
    def hashed_text(pair: Pair) -> str:
        return f"{pair.source}\n{pair.target}\n"

    def make_task(self) -> Task:
        config, shapes = self.experiment.training, [b.source.shape for b in self.buckets]
        try:
            return translator_task(
                self.experiment.model, shapes, config.batch_size, num_devices=len(jax.devices())
            )
        except ValueError as error:
            raise UserError(str(error)) from error

    def training_data(self) -> Any:
        encoded = encode_pairs(self.experiment, self.tokenizer, self.built.train)
        self.buckets = make_buckets(*encoded, self.experiment.buckets)
        return self.buckets

    def batches(self, pairs: list[Pair]):
        """Return (sources, targets), each (N, B, ...), of every pair once."""
        encoded = encode_pairs(self.experiment, self.tokenizer, pairs)
        arrays = tuple(map(pad_tokens, encoded))
        return in_batches(arrays, EVALUATION_BATCH, self.trainer.num_shards)

    def print_summary(self) -> None:
        share = padding_share(self.buckets, self.experiment.model.special_tokens.pad_id)
        lengths = ", ".join(str(bucket.source.shape[1]) for bucket in self.buckets)
        print(f"bucket lengths {lengths} tokens, {100 * share:.1f} % padding")
        super().print_summary()

    def extra_metrics(self, parameters, means) -> dict[str, np.ndarray]:
        """Return BLEU and exact match of greedy translations of the first validation pairs."""
        scores = self.sentence_scores(parameters)
        return {name: by_sentence.mean(1) for name, by_sentence in scores.items()}

    def sentence_scores(self, parameters: dict) -> dict[str, np.ndarray]:
        """Return linearised BLEU and exact match of each of the first validation pairs (M, N)."""
        pairs = self.built.validation[: self.experiment.bleu_sentences]
        if not pairs:
            return {}
        texts, references = [pair.source for pair in pairs], self.references(pairs)
        models = self.trainer.models(parameters)
        outputs = [self.translations(model, texts, beam=1) for model in models]
        statistics = [bleu_statistics(output, references) for output in outputs]
        return {
            "bleu": np.stack([*map(bleu_by_sentence, statistics)]),
            "exact_match": np.equal(outputs, references).astype(float),
        }

    def sums_by_example(self, parameters: dict, batches) -> dict[str, np.ndarray]:
        """Return also the scores of sentences, NaN for pairs that are not translated."""
        sums = super().sums_by_example(parameters, batches)
        for name, scores in self.sentence_scores(parameters).items():
            sums[name] = np.full(sums["count"].shape, np.nan)
            sums[name][:, : scores.shape[1]] = scores
        return sums

    def translations(self, model, texts: Sequence[str], **search) -> list[str]:
        """Return the best translation of each text."""
        sources = encode_sources(self.experiment, self.tokenizer, texts)
        results = translate(model, sources, **search)
        return [self.tokenizer.decode(beams[0][0]).lstrip(" ") for beams in results]

    def references(self, pairs: list[Pair]) -> list[str]:
        """Return the references, normalised as outputs are: NFC, case, no spaces at the start."""
        targets = [unicodedata.normalize("NFC", pair.target).lstrip(" ") for pair in pairs]
        return [t.lower() for t in targets] if self.experiment.tokenizer.lowercase else targets

    def print_report(self, means, parameters, step) -> None:
        """Print loss, BLEU and a few translations of the validation split, and draw the curves."""
        pairs = self.built.validation
        print(f"validation loss {means['loss'].mean():.4f}, {len(pairs):,} sentences")
        outputs = self.print_scores(pairs, parameters)
        rows = zip([p.source for p in pairs], outputs, self.references(pairs), strict=True)
        text = "\n".join(f"{source}\n{output}\n({target})\n" for source, output, target in rows)
        self.save_sample(step, text)
        self.save_curves("loss", "bleu", "exact_match")
        self.print_next_steps()

    def evaluate(
        self,
        split: Split = "validation",
        checkpoint: str = "best",
        replica: int | str = 0,
        **search,
    ) -> None:
        """Print loss, BLEU and exact match on a split.

        Args:
            search: settings of the beam search, as `with_search` takes them.
        """
        self.check_replica(replica)
        run = copy.copy(self)  # with other search settings
        run.dir = dataclasses.replace(self.dir, experiment=with_search(self.experiment, **search))
        pairs, ensemble = list(self.examples(split)), self.ensemble_name(replica)
        parameters, step = self.parameters(checkpoint)
        print(f"{checkpoint} checkpoint: step {step:,}")
        split = self.table or split
        batches = run.batches(pairs)
        loss = validate(self.trainer, parameters, batches)["loss"].mean()
        print(f"{split} loss {loss:.4f}, {len(pairs):,} sentences")
        if ensemble:
            (loss,) = self.evaluate_ensemble(parameters, batches)["loss"]
            print(f"{ensemble}: loss {loss:.4f}")
        run.print_scores(pairs, parameters, ensemble)

    def best_target(self, model, source: np.ndarray) -> np.ndarray:
        """Return [START] and the tokens of the best translation, cut to the model's context."""
        settings = {"beam": self.experiment.beam, "length_penalty": self.experiment.length_penalty}
        target = translate(model, [source], **settings)[0][0][0]
        config = self.experiment.model
        return np.r_[START_ID, target[target != config.special_tokens.pad_id]][: config.context]

    def print_scores(self, pairs: list[Pair], parameters: dict, ensemble: str = "") -> list[str]:
        """Print BLEU and exact match of greedy and beam search.

        BLEU is lower-cased, and also cased if the tokenizer has capitals.

        Returns:
            The last search's translations by the first replica, or by the ensemble.
        """
        texts, references = [pair.source for pair in pairs], self.references(pairs)
        cases = (True,) if self.experiment.tokenizer.lowercase else (True, False)
        if all(len(reference.split()) < 4 for reference in references):
            cases = ()  # BLEU counts four words in a row
        groups = {"": self.trainer.models(parameters)}
        if ensemble:
            groups[f"{ensemble}, "] = [self.ensemble(parameters)]
        settings = self.experiment.beam, self.experiment.length_penalty
        searches = dict.fromkeys([(1, 0.0), settings])
        for (beam, penalty), (group, models) in itertools.product(searches, groups.items()):
            search = {"beam": beam, "length_penalty": penalty}
            outputs = [self.translations(model, texts, **search) for model in models]
            name = group + (f"beam {beam}, length penalty {penalty:g}" if beam > 1 else "greedy")
            for lowercase in cases:
                scored = [bleu(output, references, lowercase=lowercase) for output in outputs]
                scores = spread(np.array([score for score, _ in scored]), ".2f")
                print(f"{name}: BLEU {scores}  {scored[0][1]}")
            matches = 100 * np.array([exact_match(output, references) for output in outputs])
            print(f"{name}: exact match {spread(matches, '.1f')} %")
        for text, output, target in list(zip(texts, outputs[0], references, strict=True))[:3]:
            show(f"\n  {text}\n  {output}\n  ({target})")
        return outputs[0]


def with_search(
    experiment: TranslatorExperiment,
    *,
    beam: int | None = None,
    length_penalty: float | None = None,
    truncate: bool = False,
    max_length: int | None = None,
) -> TranslatorExperiment:
    """Return the experiment with other search settings; None and False keep the experiment's."""
    settings = {"beam": beam, "length_penalty": length_penalty, "truncate": truncate or None}
    changes = {name: value for name, value in settings.items() if value is not None}
    try:
        experiment = dataclasses.replace(experiment, **changes)
        check_search(experiment.model, experiment.beam, experiment.length_penalty, max_length)
    except ValueError as error:
        raise UserError(str(error)) from error
    return experiment


def encode_pairs(
    experiment: TranslatorExperiment, tokenizer: PairTokenizer, pairs: list[Pair]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return tokens of sources, with their end, and of targets, with start and end."""
    names = [pair.where for pair in pairs]
    sources = encode_sources(experiment, tokenizer, [pair.source for pair in pairs], names)
    targets = tokenizer.encode_targets(pair.target for pair in pairs)
    return sources, fit_context(experiment, targets, names, experiment.model.context + 1)


def encode_sources(
    experiment: TranslatorExperiment,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    names: Sequence[str] | None = None,
) -> list[np.ndarray]:
    """Return the tokens of each sentence with the end symbol."""
    names = names or [f"line {number}" for number in range(1, len(texts) + 1)]
    sources = [np.asarray(ids, np.int32) for ids in tokenizer.encode_ids(texts)]
    return fit_context(experiment, sources, names, experiment.model.context)


def fit_context(
    experiment: TranslatorExperiment, rows: list[np.ndarray], names: Sequence[str], length: int
) -> list[np.ndarray]:
    """Return rows of at most `length` tokens, cut before the end symbol if `truncate` is True."""
    for row, name in zip(rows, names, strict=True):
        if len(row) > length and not experiment.truncate:
            raise UserError(
                f"{name} has {len(row)} tokens, more than the context of "
                f"{experiment.model.context}: cut it (--truncate of tlite train and translate), or "
                "train with a larger --context"
            )
    return [row if len(row) <= length else np.r_[row[: length - 1], row[-1:]] for row in rows]
