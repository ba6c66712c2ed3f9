"""The study of optimizers trains each one, with budgets on both sides of AdamW's loss."""

from experiments.tools import optimizer_study as study
from tlite.training.optimizers import OPTIMIZERS


def test_every_optimizer_of_tlite_is_studied():
    assert {*study.RANGES} == {*OPTIMIZERS}
    for name in study.RANGES:
        training = study.experiment_with(name).training
        assert training.optimizer == OPTIMIZERS[name]


def test_budgets_reach_the_loss_of_adamw_from_both_sides():
    losses = {"adamw": 2.0, "muon": 1.9, "sgd": 2.1}
    assert study.budgets("adamw", losses) == (400,)
    assert study.budgets("muon", losses) == (400, 200)
    assert study.budgets("sgd", losses) == (400, 600)
