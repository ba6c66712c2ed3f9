"""Masked diffusion: the loss is the published bound, the sampler draws from the model."""

import dataclasses
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tlite
from experiments.masked_diffusion import draw_ratios, experiment, sample
from tests.helpers.models import call, drawn
from tests.helpers.runs import train
from tlite import functional as F
from tlite.data import TextFile
from tlite.models import make_model
from tlite.runs import Run
from tlite.training.metrics import means_from_sums

V, T, MASK = 3, 3, 3  # a, b and the unknown character; the mask
SMALL = {
    "model.width": 8, "model.num_heads": 2, "model.num_blocks": 1, "model.context": T,
    "training.batch_size": 64, "training.precision": "float32", "training.warmup_steps": 0,
    "training.learning_rate": 0.03, "training.steps": 20, "training.evaluate_every": 10,
}  # fmt: skip
SEQUENCES = np.array(list(itertools.product(range(V), repeat=T)))
SETS = np.array(list(itertools.product([False, True], repeat=T)))[1:]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diffusion")
    (folder / "text.txt").write_text("aab" * 600)
    small = tlite.override(experiment, SMALL)
    data = TextFile(str(folder / "text.txt"), validation_fraction=0.1)
    return train(dataclasses.replace(small, data=data), folder / "run")


@pytest.fixture(scope="module")
def evaluate(run):
    return jax.jit(run.trainer.task.evaluate)


@pytest.fixture(scope="module")
def model():
    return drawn(make_model, tlite.override(experiment.model, {
        "vocabulary_size": V + 1, "context": T, "width": 8, "num_heads": 2, "num_blocks": 1,
    }))  # fmt: skip


@pytest.fixture(scope="module")
def log_p(model):
    """log p(x_i | x outside of M) by sequence, set M and position, in float64."""
    inputs = np.where(SETS, MASK, SEQUENCES[:, None])
    logits = np.float64(call(model, jnp.asarray(inputs)))[..., :V]
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    targets = np.broadcast_to(SEQUENCES[:, None], inputs.shape)
    return np.take_along_axis(logits, targets[..., None], -1)[..., 0]


@pytest.fixture(scope="module")
def log_chains(log_p):
    """log of the probability of each sequence, unmasked one by one, by order."""
    chains = []
    for order in itertools.permutations(range(T)):
        masked = [np.isin(np.arange(T), order[i:]) for i in range(T)]
        sets = [int(np.flatnonzero((m == SETS).all(1))[0]) for m in masked]
        chains.append(sum(log_p[:, m, i] for m, i in zip(sets, order, strict=True)))
    return np.array(chains)


def expected_loss(evaluate, model, sequence):
    """Return the loss over all masked sets of a sequence, each with its probability."""
    sizes = SETS.sum(1)
    ratios = SETS * T / sizes[:, None]
    tokens = jnp.broadcast_to(sequence, SETS.shape)
    sums = evaluate(model, (jnp.asarray(ratios), tokens, jnp.ones(SETS.shape)))
    np.testing.assert_array_equal(sums["count"].sum(1), T)
    probability = np.array([1, 1 / 3, 1 / 3, 1])[sizes] / T  # 1/T for the size, 1/C(T, n)
    return np.float64(sums["loss"].sum(1)) @ probability


def test_expected_loss_is_the_bound_integrated_over_time(evaluate, model, log_p):
    points, weights = np.polynomial.legendre.leggauss(T)  # exact for polynomials in t
    times, sizes = (points + 1) / 2, SETS.sum(1)
    masking = times[:, None] ** sizes * (1 - times[:, None]) ** (T - sizes)
    masking = (weights / 2) @ (masking / times[:, None])
    for row, sequence in enumerate(SEQUENCES):
        bound = -(masking * (SETS * log_p[row]).sum(1)).sum()
        np.testing.assert_allclose(expected_loss(evaluate, model, sequence), bound, rtol=1e-5)


def test_expected_loss_bounds_the_likelihood_of_random_orders(evaluate, model, log_chains):
    """It is -log p averaged over orders, so -log of the averaged p is smaller (Jensen)."""
    losses = np.array([expected_loss(evaluate, model, sequence) for sequence in SEQUENCES])
    np.testing.assert_allclose(losses, -log_chains.mean(0), rtol=1e-5)
    gaps = losses + np.log(np.exp(log_chains).mean(0))
    assert gaps.min() > -1e-5
    assert gaps.max() > 0.01


def test_training_draws_sets_of_the_expected_loss(run, evaluate, model):
    tokens = jnp.asarray(SEQUENCES[5])
    keys = jax.random.split(jax.random.key(1), 9000)
    windows = jnp.broadcast_to(tokens, (9000, T))
    ratios = np.asarray(jax.vmap(draw_ratios)(keys, windows))
    sets, counts = np.unique(ratios > 0, axis=0, return_counts=True)
    expected = 9000 / T / np.array([1, 3, 3, 1])[sets.sum(1)]
    np.testing.assert_allclose(ratios, np.where(ratios, T / (ratios > 0).sum(1, keepdims=True), 0))
    assert len(sets) == len(SETS)
    assert (abs(counts - expected) < 5 * np.sqrt(expected)).all()
    loss = jax.jit(partial(run.trainer.task.loss, token_loss=F.token_cross_entropy))
    sums = loss(model, (windows, windows), keys)
    evaluated = evaluate(model, (jnp.asarray(ratios), windows, windows * 0 + 1.0))
    np.testing.assert_allclose(sums["loss"][0], evaluated["loss"].sum(), rtol=1e-5)
    np.testing.assert_allclose(sums["loss"][1], 9000 * T, rtol=1e-5)


def test_one_token_a_step_draws_from_the_average_of_orders(model, log_chains):
    number, start = 20_000, jnp.full(T, MASK)
    draw = jax.jit(jax.vmap(lambda rng: sample(model, start, T, rng)))
    drawn_tokens = np.asarray(draw(jax.random.split(jax.random.key(2), number)))
    assert drawn_tokens.max() < V
    counts = np.bincount(drawn_tokens @ [9, 3, 1], minlength=V**T)
    expected = number * np.exp(log_chains).mean(0)
    np.testing.assert_allclose(expected.sum(), number, rtol=1e-9)
    assert (abs(counts - expected) < 5 * np.sqrt(expected + 1)).all()


def test_twenty_steps_lower_the_bound_and_give_a_sample(run, capsys):
    def bound(parameters):
        sums = run.trainer.evaluate(parameters, run.validation(), by_example=True)
        return means_from_sums(sums)["loss"][0]

    parameters, _ = run.parameters()
    assert bound(parameters) < bound(run.init_state().parameters) - 0.1
    np.testing.assert_array_equal(run.validation()[0], Run.open(run.dir.path).validation()[0])
    type(run).report(run)
    (path,) = run.dir.samples.iterdir()
    text = path.read_text()
    assert len(text) == T
    assert set(text) <= set("ab\N{REPLACEMENT CHARACTER}")
    bits = bound(parameters) / np.log(2)
    assert f"at most {bits:.4f} bits per character" in capsys.readouterr().out
