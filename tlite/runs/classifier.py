"""Runs of a classifier: labelled texts, their tokens, pretraining, and reports on the model."""

import dataclasses
import hashlib
import itertools
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

import tlite.distributed as distributed
import tlite.functional as F
from tlite.baselines.tfidf import tfidf_logistic_regression
from tlite.data import Example
from tlite.data.reading import Split
from tlite.errors import UserError, check_packages, show
from tlite.experiment import ClassifierExperiment, Subwords, Words
from tlite.models import (
    ClassifierConfig,
    GeneratorConfig,
    LMHead,
    SequenceClassifier,
    TransformerConfig,
)
from tlite.pretrained import PretrainedTokenizer
from tlite.runs.models import check_replica
from tlite.runs.reporting import accuracy_interval, interval, spread
from tlite.runs.run import (
    EVALUATION_BATCH,
    Built,
    ExamplesRun,
    check_examples,
    finite_models,
    with_sizes,
)
from tlite.text import (
    PADDING,
    IndexTokenizer,
    NgramTokenizer,
    SubwordTokenizer,
    Tokenizer,
    select_vocabulary,
    sentences,
)
from tlite.text.word_tokenizers import is_word_ngram
from tlite.training import Task, Trainer, TrainingConfig, generator_task, validation_batches
from tlite.training.loop import fit
from tlite.training.run_dir import UNLABELLED, RunDir
from tlite.training.tasks import class_logits, classifier_task, in_batches

CHUNK_TEXTS = 10_000  # texts that are encoded at a time
NGRAM_SIZES = "wide.num_word_ngrams", "wide.num_character_ngrams"


class ClassifierRun(ExamplesRun):
    """A classifier and the texts whose labels it learns to predict."""

    kind = "classifier"
    experiment_type = ClassifierExperiment
    model_type = SequenceClassifier
    unit = "texts"
    packages = ("sklearn",)  # for the baseline

    @classmethod
    def read(cls, experiment: ClassifierExperiment, split: Split) -> Iterable[Example]:
        examples = check_examples(experiment.data.examples(split), Example)
        number = len(experiment.data.classes)
        for example in examples if isinstance(examples, list) else []:
            label = example.label
            if label is not None and not (
                isinstance(label, int | np.integer) and 0 <= label < number
            ):
                raise UserError(
                    f"the label of {example.text!r:.60} is {label!r}: it must be None or the "
                    f"index of one of the {number} classes"
                )
        return examples

    @classmethod
    def build(cls, experiment: ClassifierExperiment, data: tuple[Iterable, Iterable]) -> Built:
        training, validation = data
        classes, init_from = experiment.data.classes, experiment.init_from
        check_classes(training, validation, classes)
        if experiment.sentences and len(classes) != 2:
            raise UserError(f"--sentences joins the scores of two classes, not of {len(classes)}")
        is_transformer = isinstance(experiment.model, ClassifierConfig)
        if (experiment.pretraining or init_from) and not is_transformer:
            raise UserError("a logistic regression has no blocks that could be pretrained")
        if init_from:
            from tlite.runs.init_from import load_init

            if experiment.sentences:
                raise UserError("a pretrained model reads complete texts: no --sentences")
            if experiment.tokenizer != Words() or experiment.padding != "mask":
                raise UserError("the pretrained model sets tokenizer and padding: leave them out")
            init = load_init(init_from, experiment.model, len(classes))
            experiment = dataclasses.replace(experiment, model=init.config, init_from=init.settings)
            tokenizer, new_arrays = init.tokenizer, init.new
        else:
            texts = (example.text for example in training if example.label is not None)
            tokenizer = learn_tokenizer(experiment.tokenizer, texts)
            sizes = {"vocabulary_size": len(tokenizer), "num_classes": len(classes)}
            sizes |= num_ngrams(experiment, tokenizer)
            experiment, new_arrays = with_sizes(experiment, sizes, "data"), None
        fingerprint = cls.fingerprint(experiment, data)
        return Built(experiment, tokenizer, training, validation, fingerprint, new_arrays)

    @classmethod
    def load_tokenizer(cls, run_dir: RunDir) -> Tokenizer:
        settings = run_dir.experiment.tokenizer
        kind: type[Tokenizer] = IndexTokenizer
        if run_dir.experiment.init_from:
            kind = PretrainedTokenizer
        elif isinstance(settings, Subwords):
            kind = SubwordTokenizer
        elif settings.has_ngrams:
            kind = NgramTokenizer
        return kind.load(run_dir.path / kind.file_name)

    @classmethod
    def fingerprint(cls, experiment: ClassifierExperiment, data: Any) -> dict[str, Any]:
        values = super().fingerprint(experiment, data)
        if not experiment.unlabelled:
            return values
        if not hasattr(experiment.data, "texts"):
            data = type(experiment.data).__name__
            raise UserError(f"unlabelled texts need data of files or the hub, not {data}")
        digest = hashlib.sha256()
        for text in unlabelled_texts(experiment):
            digest.update(f"{text}\n".encode())
        return values | {UNLABELLED: digest.hexdigest()}

    @staticmethod
    def hashed_text(example: Example) -> str:
        return f"{example.value}\n{example.text}\n"

    def make_task(self) -> Task:
        return classifier_task(self.experiment.model)

    def training_data(self) -> Any:
        tokenizer = self.tokenizer
        if isinstance(tokenizer, NgramTokenizer):
            tokenizer = tokenizer.without_ngrams()  # `fit_ngrams` fits their weights
        return encode_examples(self.experiment, tokenizer, self.built.train)

    def batches(self, examples: Iterable[Example]):
        """Return (tokens, labels, weights), each (N, B, ...), of the examples that have a class."""
        tokens, labels = encode_examples(self.experiment, self.tokenizer, examples)
        arrays = tokens, labels, np.ones(len(labels), np.float32)
        return in_batches(arrays, EVALUATION_BATCH, self.trainer.num_shards)

    @property
    def tokens_per_example(self) -> int:
        return self.experiment.model.context * max(self.experiment.sentences, 1)

    def init_params(self) -> dict[str, Any]:
        stage = self.experiment.pretraining
        params = super().init_params()
        if stage and stage.pretraining_steps:
            shapes = self.trainer.shapes
            params = {name: array for name, array in pretrain(self).items() if name in shapes}
        if isinstance(self.tokenizer, NgramTokenizer):
            params = params | fit_ngrams(self)
        return params

    def predict(self, texts: list[str], checkpoint: str = "best") -> tuple[np.ndarray, int]:
        """Return class probabilities of shape (seeds, texts, classes), and the checkpoint's step.

        >>> probabilities, step = run.predict(["Superb sound, superb price!"])
        >>> run.experiment.data.classes[probabilities[0, 0].argmax()]
        """
        if isinstance(texts, str):
            raise ValueError(f"texts must be a list of strings, not {texts!r}")
        parameters, step = self.parameters(checkpoint)
        tokens = encode_texts(self.experiment, self.tokenizer, texts)
        models = self.trainer.models(parameters)
        return np.stack([probabilities(model, tokens) for model in models]), step

    def print_summary(self) -> None:
        """Print also how many training texts are truncated."""
        super().print_summary()
        if distributed.is_process0():
            print_truncated(self.experiment, self.tokenizer, self.built.train, "training")

    def print_report(self, means, parameters, step) -> None:
        """Print the accuracies of the model and the baseline, and draw the learning curves."""
        accuracy = spread(100 * means["accuracy"], ".1f")
        print(f"validation accuracy {accuracy} %, loss {means['loss'].mean():.4f}")
        self.print_baseline("validation", list(self.built.validation))
        self.save_curves("loss", "accuracy")
        self.print_next_steps()

    def evaluate(
        self, split: Split = "validation", checkpoint: str = "best", replica: int | str = 0
    ) -> None:
        """Print and draw accuracy, loss and the scores of each class on a split.

        Scores by class, confusions and texts are those of one replica, or with "all" those of the
        ensemble, which averages the replicas' probabilities; its accuracy and loss are printed too.
        """
        check_packages("text", self.packages)
        self.check_replica(replica)
        number, ensemble = self.experiment.training.seeds, self.ensemble_name(replica)
        examples, classes = list(self.examples(split)), self.experiment.data.classes
        by_replica, step = self.predict([e.text for e in examples], checkpoint)
        labels = np.array([-1 if e.label is None else e.label for e in examples])
        if not (labelled := labels >= 0).any():
            source = self.table or f"the {split} split"
            raise UserError(f"no text of {source} has one of the classes")
        split = self.table or split
        right = (by_replica.argmax(-1) == labels)[:, labelled]
        accuracy = spread(100.0 * right.mean(1), ".1f")
        print(f"step {step:,}: {split} accuracy {accuracy} %, {labelled.sum():,} texts")
        print(accuracy_interval(right, "texts"))
        print_truncated(self.experiment, self.tokenizer, examples, split)
        self.print_baseline(split, examples, right)
        self.print_ngrams(split, examples, labels, checkpoint)
        index = 0 if replica == "all" else replica
        probabilities, label = by_replica[index], f" (replica {index})" if number > 1 else ""
        if ensemble:
            by_replica = finite_models({"probabilities": by_replica})["probabilities"]
            probabilities, label = by_replica.mean(0), " (the ensemble)"
            print_ensemble(ensemble, by_replica[:, labelled], labels[labelled])
        predicted = probabilities[labelled].argmax(-1)
        confusions = print_classes(label, classes, labels[labelled], predicted)
        print_most_certain(label, classes, examples, labels, probabilities)
        self.draw(split, examples, labels, probabilities, confusions)

    def check_replica(self, replica: int | str) -> None:
        if replica != "all":
            check_replica(replica, self.experiment.training.seeds)

    def draw(self, split: str, examples: list[Example], labels, probabilities, confusions) -> None:
        """Draw an evaluation; with two classes also the texts that have neither of them.

        Args:
            split: its name, or that of a table.
        """
        from tlite import pictures  # matplotlib is slow to import

        classes, values = self.experiment.data.classes, [example.value for example in examples]
        is_binary = len(classes) == 2
        shown = np.flatnonzero((labels >= 0) | is_binary)
        column, name = (1, classes[1]) if is_binary else (labels[shown], "the true class")
        shown_values = [values[index] for index in shown]
        scores, predicted = probabilities[shown, column], probabilities.argmax(-1)
        plots = {
            "confusion": lambda: pictures.plot_confusion(confusions, classes),
            "probability": lambda: pictures.plot_probability_by_value(scores, shown_values, name),
            "predictions": lambda: pictures.plot_predictions_by_value(predicted, values, classes),
        }
        self.save_plots({f"{split}-{name}": plot for name, plot in plots.items()})
        names = ", ".join(f"{split}-{name}.png" for name in plots)
        print(f"\npictures in {self.dir.plots}: {names}")

    def print_baseline(
        self, split: str, examples: list[Example], right: Bool[np.ndarray, "M N"] | None = None
    ) -> None:
        """Print the accuracy of TF-IDF and logistic regression on the same examples.

        Args:
            right: True where the models are right, to print the difference with its interval.
        """
        name = "TF-IDF + logistic regression"
        if getattr(self.experiment.data, "stream", False):
            print(f"{name}: not fitted, as the texts are streamed")
            return
        train = [(e.text, e.label) for e in self.built.train if e.label is not None]
        scored = [(e.text, e.label) for e in examples if e.label is not None]
        try:
            baseline = tfidf_logistic_regression(*zip(*train, strict=True))
        except ValueError:
            print(f"{name}: not fitted, as no word is in two texts")
            return
        predicted = baseline.predict([text for text, _ in scored])
        baseline_right = predicted == np.array([label for _, label in scored])
        print(f"{name}: {split} accuracy {100 * baseline_right.mean():.1f} %")
        if right is not None and np.ptp(difference := 100.0 * right - 100.0 * baseline_right):
            half = interval(difference, "texts", ".1f")
            print(f"above {name}: {difference.mean():+.1f} points, {half}")

    def print_ngrams(self, split: str, examples: list, labels: np.ndarray, checkpoint: str) -> None:
        """Print the accuracy of the linear model of n-grams alone, if there is one."""
        if not isinstance(self.tokenizer, NgramTokenizer):
            return
        model = self.trainer.models(self.parameters(checkpoint)[0])[0]
        tokens = encode_texts(self.experiment, self.tokenizer, [e.text for e in examples])
        features = tokens[:, self.experiment.model.context :]
        logits = jax.lax.map(model.ngram_logits, features, batch_size=EVALUATION_BATCH)
        right = np.asarray(logits.argmax(-1) == labels)[labels >= 0]
        print(f"the linear model of n-grams alone: {split} accuracy {100 * right.mean():.1f} %")


def check_classes(
    training: Iterable[Example], validation: Iterable[Example], classes: list[str]
) -> None:
    """Warn of the number of empty texts, which have no class and are left out.

    Raises:
        UserError: there are fewer than two classes, or one has no training text.
    """
    for split, examples in (("training", training), ("validation", validation)):
        seen, empty = set(), 0
        for example in examples:
            seen.add(example.label)
            empty += example.label is None and not example.text.strip()
        missing = [name for index, name in enumerate(classes) if index not in seen]
        if missing and split == "training":
            raise UserError(
                f"no text of the training split has the class {', '.join(missing)}: "
                "leave it out, or add texts"
            )
        if empty:
            message = f"warning: {split} texts that are empty are left out: {empty:,}"
            print(message, file=sys.stderr)
    if len(classes) < 2:
        raise UserError(f"a classifier needs two classes: {classes[0]!r} is the only class")


# Tokens


def learn_tokenizer(settings: Words | Subwords, texts: Iterable[str]) -> Tokenizer:
    """Learn subwords or words from the texts, with n-grams if the settings have them."""
    if isinstance(settings, Subwords):
        return SubwordTokenizer.train(texts, settings.num_subwords)
    frequency, marks = settings.min_document_frequency, settings.marks
    if settings.has_ngrams:
        sizes = settings.word_ngrams, settings.character_ngrams
        tokenizer = NgramTokenizer.learn(texts, frequency, *sizes, marks)
    else:
        tokenizer = IndexTokenizer(select_vocabulary(texts, frequency, marks), marks=marks)
    if len(tokenizer) == 1 and frequency > 1:
        raise UserError(f"no word is in {frequency:,} texts: --min-document-frequency")
    return tokenizer


def encode_examples(
    experiment: ClassifierExperiment, tokenizer, examples: Iterable[Example]
) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and labels of the examples that have a class, encoded in chunks."""
    labelled = (example for example in examples if example.label is not None)
    chunks, labels = [], []
    while chunk := list(itertools.islice(labelled, CHUNK_TEXTS)):
        chunks.append(encode_texts(experiment, tokenizer, [e.text for e in chunk]))
        labels += [e.label for e in chunk]
    if not labels:
        raise UserError("no text has one of the classes")
    longest = max(tokens.shape[-1] for tokens in chunks)  # the number of n-grams differs
    rows = np.full((len(labels), *chunks[0].shape[1:-1], longest), PADDING, np.int32)
    for number, tokens in enumerate(chunks):
        rows[number * CHUNK_TEXTS :][: len(tokens), ..., : tokens.shape[-1]] = tokens
    return rows, np.array(labels, np.int32)


def encode_texts(experiment: ClassifierExperiment, tokenizer, texts: list[str]) -> np.ndarray:
    """Return tokens (N, T), or (N, S, T) if each sentence is scored alone."""
    length = experiment.model.context
    masked = experiment.padding == "mask" or experiment.init_from is not None
    pad_id = PADDING if masked else tokenizer.unknown_id
    if not experiment.sentences:
        return tokenizer.encode_texts(texts, length, pad_id)
    split = [sentences(text)[: experiment.sentences] for text in texts]
    rows = np.full((len(texts), experiment.sentences, length), PADDING, np.int32)
    lengths = np.array([len(row) for row in split])
    is_sentence = np.arange(experiment.sentences) < lengths[:, None]
    rows[is_sentence] = tokenizer.encode_texts(
        [sentence for row in split for sentence in row], length, pad_id
    )
    return rows


def print_truncated(experiment, tokenizer: Tokenizer, examples: Any, split: str) -> None:
    """Print how many texts with a class are longer than the model's input; not of streamed data."""
    if not isinstance(examples, list):
        return
    texts = [example.text for example in examples if example.label is not None]
    if number := sum(are_cut(experiment, tokenizer, texts)):
        size = f"{experiment.model.context} tokens"
        size = f"{experiment.sentences} sentences of {size}" if experiment.sentences else size
        print(f"{number:,} of {len(texts):,} {split} texts are truncated to {size}")


def are_cut(experiment: ClassifierExperiment, tokenizer: Tokenizer, texts: list[str]) -> list[bool]:
    """Return True for each text that is longer than the model's input."""
    context, max_sentences = experiment.model.context, experiment.sentences
    split = [sentences(text) if max_sentences else [text] for text in texts]
    lengths = map(len, tokenizer.encode_ids([part for row in split for part in row]))
    longest = [max(itertools.islice(lengths, len(row)), default=0) for row in split]
    too_many = (len(row) > max(max_sentences, 1) for row in split)
    return [size > context or many for size, many in zip(longest, too_many, strict=True)]


# Report


def probabilities(model, tokens: np.ndarray) -> np.ndarray:
    """Return the probabilities of the classes (N, C)."""
    batches = in_batches(tokens, min(EVALUATION_BATCH, max(len(tokens), 1)))
    rows = np.asarray(jax.nn.softmax(_logits_of_batches(model, batches)))
    return rows.reshape(-1, rows.shape[-1])[: len(tokens)]


@jax.jit  # compiled once for all replicas
@F.float32_products
def _logits_of_batches(model, batches):
    return jax.lax.map(lambda batch: class_logits(model, batch), batches)


def print_ensemble(name: str, probabilities: Float[np.ndarray, "M N C"], labels) -> None:
    """Print accuracy and loss of the ensemble, the mean of all replicas' probabilities."""
    mean = probabilities.mean(0)
    accuracy = 100 * (mean.argmax(-1) == labels).mean()
    true_class = np.stack([*probabilities, mean])[:, np.arange(len(labels)), labels]
    positive = np.maximum(true_class.astype(np.float64), np.finfo(np.float32).tiny)
    *losses, loss = -np.log(positive).mean(1)
    single = spread(np.array(losses), ".4f")
    print(f"{name}: accuracy {accuracy:.1f} %, loss {loss:.4f} (single replicas: {single})")


def print_classes(label: str, classes: list[str], labels, predicted) -> np.ndarray:
    """Print precision, recall and F1 of each class; print and return the confusion matrix.

    Scores and their averages cover only classes that occur among labels or predictions.
    """
    from sklearn.metrics import classification_report, confusion_matrix

    ids, names = range(len(classes)), [classes[i] for i in np.union1d(labels, predicted)]
    print(f"\nscores by class{label}")
    show(classification_report(labels, predicted, target_names=names, zero_division=0))
    print(f"confusions{label}: rows are true classes, columns predicted ones")
    confusions = confusion_matrix(labels, predicted, labels=[*ids])
    width = max(*map(len, classes), 6) + 2
    rows = zip(classes, confusions, strict=True)
    for cells in (["", *classes], *([name, *map("{:,}".format, row)] for name, row in rows)):
        show("".join(f"{cell:>{width}}" for cell in cells))
    return confusions


def print_most_certain(label: str, classes: list[str], examples, labels, probabilities) -> None:
    """Print the right and the wrong predictions with the highest probabilities, each text once."""
    predicted = probabilities.argmax(-1)
    for title, right in (("right", True), ("wrong", False)):
        print(f"\nmost certain {title} predictions{label}")
        shown = np.flatnonzero((labels >= 0) & ((predicted == labels) == right))
        by_text: dict[str, int] = {}
        for index in shown[np.argsort(-probabilities[shown].max(-1))]:
            by_text.setdefault(examples[index].text, index)
        for text, index in itertools.islice(by_text.items(), 3):
            show(
                f"  {classes[labels[index]]}, predicted {classes[predicted[index]]} "
                f"({probabilities[index].max():.3f}): "
                f"{textwrap.shorten(text, 150, placeholder=' ...')}"
            )


# Pretraining


def pretrain(run: ClassifierRun) -> dict[str, np.ndarray]:
    """Train a generator on the run's texts and return its parameters by name.

    This is "Improving language understanding by generative pre-training" (Radford et al. 2018) at a
    small scale. The generator is trained, or resumed, in the folder `pretraining` of the run.
    """
    settings = run.experiment.pretraining
    config = generator_config(run.experiment.model, settings.pretraining_dropout)
    training = pretraining_config(run.experiment.training, settings)
    texts = (example.text for example in run.built.train)
    unlabelled = unlabelled_texts(run.experiment)
    train = token_stream(run.tokenizer, dict.fromkeys([*texts, *unlabelled]))
    validation = token_stream(run.tokenizer, (e.text for e in run.built.validation))
    for name, tokens in (("training", train), ("validation", validation)):
        if len(tokens) <= config.context:
            raise UserError(
                f"the {name} split is too short for pretraining: it has {len(tokens)} tokens, "
                f"and a context of {config.context} needs at least {config.context + 1}"
            )
    trainer = Trainer(generator_task(config), training, jnp.asarray(train))
    shards = trainer.num_shards
    batches = validation_batches(validation, config.context, EVALUATION_BATCH, shards)
    folder = run.dir.path / "pretraining"
    folder.mkdir(exist_ok=True)
    print(f"pretraining a generator: steps={training.steps} tokens={len(train):,}")
    state = fit(trainer, folder, batches, config.context)
    print("pretraining has ended")
    return trainer.on_host(state.parameters)


def unlabelled_texts(experiment: ClassifierExperiment) -> Iterator[str]:
    """Yield the texts of the files that only pretraining reads."""
    for file in experiment.unlabelled:
        yield from experiment.data.texts(file)


def generator_config(config: TransformerConfig, dropout: float) -> GeneratorConfig:
    """Return the config of a generator with the embedding and the blocks of a classifier."""
    shared = {f.name: getattr(config, f.name) for f in dataclasses.fields(TransformerConfig)}
    shared |= {"dropout": dropout}
    shared["embedding"] = dataclasses.replace(config.embedding, word_dropout=0.0)
    return GeneratorConfig(**shared, head=LMHead(tied=True))


def pretraining_config(training: TrainingConfig, settings) -> TrainingConfig:
    """Return the training config of the generator; its seed is the classifier's first seed."""
    return TrainingConfig(
        steps=settings.pretraining_steps,
        batch_size=settings.pretraining_batch_size,
        learning_rate=settings.pretraining_learning_rate,
        schedule="cosine",
        warmup_steps=min(100, settings.pretraining_steps),
        weight_decay=0.1,
        clip_norm=1.0,
        aux_weight=training.aux_weight,
        seed=training.seed,
        precision=training.precision,
        evaluate_every=max(settings.pretraining_steps // 8, 1),
    )


def token_stream(tokenizer, texts: Iterable[str]) -> np.ndarray:
    """Return all tokens of the texts (N,); an unknown token marks the end of each text."""
    rows = tokenizer.encode_texts(texts)
    ends = np.full((len(rows), 1), tokenizer.unknown_id, rows.dtype)
    padded = np.concatenate([rows, ends], axis=1)
    return padded[padded >= 0]


# The linear model of n-grams, fitted before the transformer is trained


def num_ngrams(experiment: ClassifierExperiment, tokenizer) -> dict[str, int]:
    """Return the numbers of word and character n-grams by field of the model's config."""
    is_transformer = isinstance(experiment.model, ClassifierConfig)
    if not isinstance(tokenizer, NgramTokenizer):
        return dict.fromkeys(NGRAM_SIZES, 0) if is_transformer else {}
    if not is_transformer:
        raise UserError("n-grams are added to a transformer: use --bigrams of this model instead")
    if experiment.sentences or experiment.model.wide.bigrams:
        other = "--sentences" if experiment.sentences else "--wide.bigrams"
        raise UserError(
            f"n-grams are counted in complete texts and replace bigrams: leave out {other}"
        )
    if not tokenizer.ngrams:
        raise UserError("no n-gram is frequent enough: lower --min-document-frequency")
    words = sum(is_word_ngram(ngram) for ngram in tokenizer.ngrams)
    return dict(zip(NGRAM_SIZES, (words, len(tokenizer.ngrams) - words), strict=True))


def fit_ngrams(run: ClassifierRun) -> dict[str, np.ndarray]:
    """Fit a linear model of n-grams to the training texts and return its parameters by name."""
    from tlite.baselines.convex import fit_bags_of_words  # SciPy is slow to import

    experiment, model = run.experiment, run.experiment.model
    tokens, labels = encode_examples(experiment, run.tokenizer, run.built.train)
    num_words = model.vocabulary_size + model.wide.num_word_ngrams
    sizes = [size for size in (num_words, model.wide.num_character_ngrams) if size]
    features = tokens[:, model.context :]
    weights, bias = fit_bags_of_words(
        features, labels, sizes, model.num_classes, experiment.ngram_l2
    )
    parameters = {"word_ngrams.weights": weights[:num_words], "word_ngrams.bias": bias}
    parameters |= {"character_ngrams.weights": weights[num_words:]} if len(sizes) > 1 else {}
    print(f"linear model of n-grams: features={sum(sizes):,}")
    return parameters
