"""One of the models of a run as a run of its own."""

import dataclasses

import jax

from tlite import processes
from tlite.errors import UserError
from tlite.recipes.recipe import Recipe
from tlite.recipes.restoring import check_member
from tlite.training.checkpoints import Checkpoints
from tlite.training.loop import host_copy, selection_scores
from tlite.training.metrics import MetricsFile, iterate_metrics, split_member
from tlite.training.named import to_named
from tlite.training.runs import Run, create_run, new_folder
from tlite.training.side_by_side import failures, in_words


def take_member(recipe: Recipe, member: int) -> Recipe:
    """A new run, beside the folder of the one, at its last checkpoint.

    Raises:
        UserError: there is no such member, or it has failed.
    """
    run, training = recipe.run, recipe.experiment.training
    if processes.count() > 1:
        raise UserError("a member is taken by one process: name it without the others first")
    check_member(member, training.num_members)
    if since := failures(run.metrics).get(member):
        words = in_words(training, member)
        raise UserError(f"member {member}, {words}, has failed at step {since}")
    experiment = dataclasses.replace(recipe.experiment, training=training.of_member(member))
    members, step = recipe.restore("last")
    lines = [split_member(n, member) for n in iterate_metrics(run.metrics) if n["step"] <= step]
    validated = [n for n in lines if n["split"] == "validation" and n["step"] == step]
    if not (scores := selection_scores(experiment.training, validated)):
        raise UserError(f"{run.metrics} has no validation at step {step}")
    alone = to_named(jax.tree.map(lambda a: a[member : member + 1], host_copy(members)))

    def fill(new: Run) -> None:
        with MetricsFile(new.metrics) as metrics:
            metrics.write(lines)
        with Checkpoints(new.checkpoints, writing=True) as checkpoints:
            checkpoints.save(step, alone, scores[-1])

    folder = run.folder.with_name(f"{run.folder.name}-{member}")
    folder = new_folder(experiment.name, folder)
    new = create_run(folder, experiment, run.data, recipe.tokenizer, fill, exactly=False)
    return type(recipe)(new, recipe.tokenizer, recipe.data)
