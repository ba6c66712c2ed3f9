"""Variants that differ in numbers: side by side they are what each is alone, and harm none."""

import contextlib
import dataclasses
import functools
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.recipes import LOGISTIC, interrupt, stopped, without_report
from tlite.config import from_dict, to_dict
from tlite.errors import RunFailed, UserError
from tlite.experiment import Experiment
from tlite.models import ClassifierConfig, FeedForward, GeneratorConfig, Seq2SeqConfig
from tlite.recipes import open_recipe, start
from tlite.recipes.kinds import take_member
from tlite.recipes.loading import load_model
from tlite.training import (
    Trainer,
    TrainingConfig,
    classifier_task,
    generator_task,
    validation_batches,
)
from tlite.training.checkpoints import Checkpoints
from tlite.training.config import VARIED, Varied
from tlite.training.loop import fit, host_copy, validate
from tlite.training.metrics import read_metrics
from tlite.training.runs import open_run
from tlite.training.side_by_side import Finite, failures, in_words, is_faster, merged
from tlite.training.step import Buckets
from tlite.training.translator import translator_task

TOKENS = np.random.default_rng(9).integers(0, 11, 300)
MODEL = GeneratorConfig(
    vocabulary_size=11, context=8, width=8, num_heads=2, num_blocks=1, dropout=0.0
)
PLAIN = TrainingConfig(steps=6, batch_size=4, learning_rate=1e-3, seeds=2, evaluate_every=3)
OTHERS = {
    "learning_rate": 3e-3,
    "weight_decay": 0.5,
    "beta1": 0.7,
    "beta2": 0.95,
    "adam_epsilon": 1e-2,
    "muon_momentum": 0.8,
    "label_smoothing": 0.2,
    "clip_norm": 0.1,
    "final_learning_rate": 0.5,
}


def changed(**changes):
    return dataclasses.replace(PLAIN, **changes)


def make_trainer(config, num_devices=1, **of_task):
    task = generator_task(MODEL, config.label_smoothing)._replace(**of_task)
    return Trainer(task, config, jnp.asarray(TOKENS), jax.devices()[:num_devices])


def trained(config):
    trainer = make_trainer(config)
    return run(trainer, trainer.init())


def run(trainer, members):
    """Parameters (M, ...) as one row for each member, and the losses of every step (N, M)."""
    members, history = trainer.train(members, 0, PLAIN.steps)
    return rows(members.parameters), history["loss"]


def rows(arrays):
    return np.concatenate([np.asarray(a).reshape(len(a), -1) for a in arrays.values()], axis=1)


def test_every_number_can_be_varied():
    assert OTHERS.keys() == set(VARIED)


def variants():
    """One to compare with, one for each of the numbers, and one that differs in all of them."""
    plain = changed(optimizer="muon", schedule="cosine", seeds=1)
    own = [{name: value} for name, value in OTHERS.items()]
    return [dataclasses.replace(plain, **changes) for changes in ({}, *own, OTHERS)]


@functools.cache
def variants_together():
    return trained(merged(variants()))


def test_variants_side_by_side_are_what_each_is_alone():
    together, losses = variants_together()
    for member in (0, len(OTHERS) + 1):
        alone, own = trained(variants()[member])
        np.testing.assert_allclose(together[[member]], alone, rtol=1e-5, atol=2e-7)
        np.testing.assert_allclose(losses[:, [member]], own, rtol=1e-6)


def test_every_number_that_is_varied_is_heeded():
    together, _ = variants_together()
    assert len(np.unique(together, axis=0)) == len(variants())


OTHER = changed(beta2=0.9, weight_decay=0.5, clip_norm=0.1)
DIVERGING = merged([PLAIN, changed(learning_rate=1e30), OTHER])
TAME = merged([PLAIN, changed(learning_rate=2e-3), OTHER])


@functools.cache
def compiled():
    """A trainer that is compiled once for all runs of such variants, and where they start."""
    trainer = make_trainer(TAME)
    trainer.compile()
    return trainer, host_copy(trainer.init())


def of_variants(*configs):
    """That trainer, of others of which each differs in the same numbers."""
    trainer, _ = compiled()
    trainer.config = merged(configs)
    assert trainer.config.numbers.keys() == TAME.numbers.keys()
    return trainer


def test_devices_do_not_change_the_numbers_of_variants(monkeypatch):
    monkeypatch.setattr("tlite.training.placement.WHOLE_BELOW", 64)  # so that arrays are divided
    slow = [
        dataclasses.replace(variant, learning_rate=rate)
        for variant, rate in zip(TAME.variants, (1e-4, 2e-4, 1e-4), strict=True)
    ]
    trainer = of_variants(*slow)
    config = dataclasses.replace(trainer.config, placement="sharded", model_devices=2)
    divided, start = make_trainer(config, 4), compiled()[1]
    results = [run(one, one.place(start)) for one in (trainer, divided)]
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_members_taken_in_turn_have_their_own_numbers_too():
    """As a translator's are, whose batches come in buckets."""
    plain, (_, start) = generator_task(MODEL), compiled()
    draw = functools.partial(plain.draw, size=PLAIN.batch_size)
    in_turn = make_trainer(TAME, buckets=Buckets(lambda *_: jnp.int32(0), (draw,)))
    results = [run(one, one.place(start)) for one in (of_variants(*TAME.variants), in_turn)]
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-7)


def test_varied_learning_rates_are_several_learning_rates():
    """Of a config a program has the members and the numbers."""
    rates = (1e-3, 3e-3)
    together = merged([changed(learning_rate=rate) for rate in rates])
    assert together.members == changed(learning_rates=rates).members
    assert together.numbers == {}


@pytest.mark.parametrize("kind", ["language", "classification", "sentences", "pairs"])
def test_a_member_s_label_smoothing_takes_the_place_of_the_task_s(kind):
    sizes = {"vocabulary_size": 7, "context": 6, "width": 8, "num_heads": 2, "num_blocks": 1}
    sizes |= {"dropout": 0.0, "feed_forward": FeedForward()}
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, 7, (4, 2, 6) if kind == "sentences" else (4, 6))
    if kind == "language":
        make, batch = functools.partial(generator_task, GeneratorConfig(**sizes)), (tokens, tokens)
    elif kind == "pairs":
        config = Seq2SeqConfig(**sizes, source_vocabulary_size=7)
        make = lambda value: translator_task(config, [(4, 6)], 24, label_smoothing=value)  # noqa: E731
        batch = tokens, np.pad(tokens, [(0, 0), (1, 0)], constant_values=1)
    else:
        config = ClassifierConfig(**sizes, num_classes=2)
        make, batch = functools.partial(classifier_task, config), (tokens, np.array([0, 1, 1, 0]))

    @jax.jit
    def losses(batch, smoothing):
        model = make(0.1).init(jax.random.key(1))
        given = make(0.1).loss(model, batch, None, label_smoothing=smoothing)
        own, other = (make(value).loss(model, batch, None) for value in (0.3, 0.1))
        return given["loss"], own["loss"], other["loss"]

    given, own, other = losses(jax.tree.map(jnp.asarray, batch), 0.3)
    np.testing.assert_allclose(given, own, rtol=1e-6)
    assert abs(given[0] - other[0]) > 1e-3


def test_only_what_differs_is_data_of_the_program():
    assert PLAIN.numbers == {}
    assert merged([PLAIN, changed(learning_rate=1e-2)]).numbers == {}
    both = changed(clip_norm=1.0, weight_decay=0.1)
    numbers = merged([both, dataclasses.replace(both, beta1=0.8, clip_norm=None)]).numbers
    assert numbers == {"beta1": [0.9, 0.9, 0.8, 0.8], "clip_norm": [1, 1, np.inf, np.inf]}


@pytest.mark.parametrize(
    "other",
    [
        {"steps": 7},
        {"batch_size": 8},
        {"optimizer": "lion"},
        {"seed": 1},
        {"seeds": 3},
        {"learning_rates": (1e-3, 1e-2)},
        {"warmup_steps": 2},
        {"precision": "mixed"},
    ],
)
def test_what_differs_in_more_than_numbers_is_not_merged(other):
    assert merged([PLAIN, changed(**other)]) is None


def test_variants_with_patience_are_not_merged_as_each_would_end_by_itself():
    assert merged([changed(patience=2), changed(patience=2, beta1=0.8)]) is None
    with pytest.raises(ValueError, match="patience"):
        changed(patience=2, varied=(Varied(),))


def test_a_member_alone_is_its_variant_with_its_seed():
    configs = [PLAIN, changed(clip_norm=1.0), changed(weight_decay=0.1, clip_norm=2.0)]
    together = merged(configs)
    assert together.num_members == 6
    assert together.variants == tuple(configs)
    for member in range(6):
        alone = dataclasses.replace(configs[member // 2], seed=member % 2, seeds=1)
        assert together.of_member(member) == alone
        assert together.members[member] == (alone.seed, alone.learning_rate)
    assert in_words(together, 1) == (
        "seed 1 with learning rate 0.001 and weight decay 0 and no clip norm"
    )
    assert from_dict(TrainingConfig, to_dict(together)) == together


def test_a_variant_of_numbers_that_can_t_be_is_refused():
    with pytest.raises(ValueError, match="beta1 must be in"):
        changed(varied=(Varied(beta1=2.0),))


def fitted(folder, config, steps=PLAIN.steps):
    """Train in a folder up to a step of it."""
    folder.mkdir(exist_ok=True)
    trainer, start = compiled()
    trainer.config = dataclasses.replace(config, steps=steps)
    batches = validation_batches(TOKENS, MODEL.context, 8, 1)
    return fit(trainer, folder, batches, MODEL.context, lambda: trainer.place(start))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The members, the folder, and what was said of runs from their start to their end."""

    @functools.cache
    def run(config):
        folder = tmp_path_factory.mktemp("whole")
        with contextlib.redirect_stdout(io.StringIO()) as said:
            return fitted(folder, config), folder, said.getvalue()

    return run


def lines(folder):
    content = read_metrics(folder / "metrics.jsonl")
    return [{k: v for k, v in line.items() if k != "tokens_per_second"} for line in content]


def test_a_variant_that_diverges_is_out_and_changes_no_bit_of_the_others(whole):
    diverged, folder, said = whole(DIVERGING)
    members, tame, _ = whole(TAME)
    others = [0, 1, 4, 5]
    for part in ("parameters", "optimizer"):
        found, expected = (jax.tree.leaves(getattr(m, part)) for m in (diverged, members))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(a)[others], np.asarray(b)[others])
    failed = failures(folder / "metrics.jsonl")
    assert failed.keys() == {2, 3}
    for member, step in failed.items():
        words = f"{in_words(DIVERGING, member)} is out"
        assert said.count(words) == 1
        assert f"{words}: its loss is not finite since step {step};" in said
    for a, b in zip(lines(folder), lines(tame), strict=True):
        losses = a["loss_members"]
        for member in range(6):
            out = member in failed and failed[member] <= a["step"]
            assert (losses[member] is None) == out
            assert member not in others or losses[member] == b["loss_members"][member]
        assert a["loss"] == pytest.approx(np.mean([loss for loss in losses if loss is not None]))


def test_a_run_that_a_variant_has_left_goes_on_to_the_same_bits(whole, tmp_path, capsys):
    members, folder, _ = whole(DIVERGING)
    fitted(tmp_path / "cut", DIVERGING, steps=3)
    capsys.readouterr()
    cut = fitted(tmp_path / "cut", DIVERGING)
    assert "is out" not in capsys.readouterr().out
    for a, b in zip(*map(jax.tree.leaves, (members.parameters, cut.parameters)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert lines(folder) == lines(tmp_path / "cut")


@pytest.mark.parametrize("members", [[1], range(6)])
def test_a_validation_where_a_run_was_cut_fails_nobody(whole, tmp_path, monkeypatch, members):
    def not_finite(*arguments):
        means = validate(*arguments)
        means["loss"][list(members)] = np.nan
        return means

    with monkeypatch.context() as patch:
        interrupt(patch, 4, pretraining=True)
        fitted(tmp_path / "cut", TAME, steps=3)
        patch.setattr("tlite.training.loop.validate", not_finite)
        assert "stopped at step 3, and saved" in stopped(fitted, tmp_path / "cut", TAME)
    fitted(tmp_path / "cut", TAME)
    assert failures(tmp_path / "cut" / "metrics.jsonl") == {}
    assert lines(tmp_path / "cut") == lines(whole(TAME)[1])


def test_it_ends_only_when_every_variant_has_failed(tmp_path):
    each = zip(TAME.variants, (1e30, 1e31, 1e32), strict=True)
    config = merged([dataclasses.replace(v, learning_rate=rate) for v, rate in each])
    with pytest.raises(RunFailed, match="and every other variant has failed; no checkpoint had"):
        fitted(tmp_path / "run", config)
    assert len(failures(tmp_path / "run" / "metrics.jsonl")) == 6


def test_where_nothing_is_varied_any_failure_ends_it(tmp_path):
    config, losses = changed(learning_rates=(1e-3, 1e30)), np.array([[2.0, 2.0, np.nan, 2.0]])
    finite = Finite(config, Checkpoints(tmp_path), {})
    with pytest.raises(RunFailed, match=r"training loss of seed 0 with learning rate 1e\+30 is"):
        finite.check("training", losses, 0, finite.note(losses, 0))


def test_a_run_s_variants_are_told_and_taken_out_and_one_that_has_failed_is_not(tmp_path, capsys):
    training = dataclasses.replace(LOGISTIC.training, precision="float32")
    variants = [
        dataclasses.replace(training, **changes)
        for changes in ({}, {"learning_rate": 1e38}, {"beta1": 0.8, "label_smoothing": 0.1})
    ]
    run = start(dataclasses.replace(LOGISTIC, training=merged(variants)), tmp_path / "run")
    run.train()
    said = capsys.readouterr().out
    assert said.count(": validation loss ") == 6
    assert said.count(": validation loss is not finite") == 2
    for member in (0, 5):
        alone = take_member(open_recipe(tmp_path / "run"), member)
        config = dataclasses.replace(variants[member // 2], seed=member % 2, seeds=1)
        assert alone.experiment.training == config
    without_report(alone).train()
    with pytest.raises(UserError, match=r"member 2, seed 0 with learning rate 1e\+38 and "):
        take_member(open_recipe(tmp_path / "run"), 2)
    load_model(open_run(tmp_path / "run", Experiment), member=5)
    with pytest.raises(UserError, match="there is no member 6"):
        load_model(open_run(tmp_path / "run", Experiment), member=6)


@pytest.mark.parametrize(
    ("backend", "sizes", "pays"),
    [
        ("cpu", (10_000, 3, 5, 2), True),
        ("cpu", (44_487, 3, 1, 2), True),
        ("cpu", (44_487, 3, 2, 2), False),
        ("cpu", (800_000, 3, 1, 2), False),
        ("cpu", (10_000, 1, 1, 2), False),
        ("gpu", (800_000, 3, 5, 1), True),
        ("gpu", (10_000_000, 3, 5, 1), False),
    ],
)
def test_it_pays_for_what_was_measured_to(backend, sizes, pays, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert is_faster(*sizes) == pays
