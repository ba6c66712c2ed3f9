"""What the commands of `tlite` do that neither draw nor are about a text, handed their options."""

from pathlib import Path

from tlite.cli.options import Export, Resume
from tlite.errors import UserError
from tlite.experiment import Experiment
from tlite.pretrained import is_pretrained
from tlite.recipes import finetuning
from tlite.recipes.kinds import open_recipe, start, take_member
from tlite.recipes.options import Evaluate
from tlite.training.runs import STUDY


def train(experiment: Experiment, folder: Path | None = None, profile: int = 0) -> None:
    """Train an experiment in a new run folder; some of the steps are profiled if asked."""
    start(experiment, folder).train(profile)


def train_study(experiments: dict[str, Experiment], folder: Path | None = None) -> None:
    """Train variants of an experiment, by name, in a new folder, and compare them."""
    from tlite.recipes import study_training  # SciPy is slow to import

    study_training.train_study(experiments, folder)


def resume(options: Resume) -> None:
    """Go on with a study or a run that was cut short, or with one member of it in a new folder."""
    if (options.resume / STUDY).is_file():
        for name in ("member", "steps", "profile"):
            if getattr(options, name) != getattr(Resume, name):  # its default
                raise UserError(f"there is no option --{name} for a study, but for a run in it")
        from tlite.recipes import study_training

        study_training.resume_study(options.resume)
        return
    if is_pretrained(options.resume):
        advice = "an experiment starts from it, make finetune-trec say"
        raise UserError(f"{options.resume} is no run: {advice}")
    recipe = open_recipe(options.resume, options.steps)
    if options.member is not None:
        recipe = take_member(recipe, options.member)
    recipe.train(options.profile)


def evaluate(options: Evaluate) -> None:
    """Print how a run's models do on a part of its data, or a model of others on a text."""
    if is_pretrained(options.run):
        finetuning.evaluate_text(options.run, options.path)
    else:
        open_recipe(options.run).evaluate(options)


def export(options: Export) -> None:
    """Write the model of a run for transformers."""
    to = options.to
    settings = {"checkpoint": options.checkpoint, "member": options.member}
    family = finetuning.export(options.run, to, family=options.family, **settings)
    print(f"saved in {to} as a {family} model: AutoModel*.from_pretrained({str(to)!r}) opens it")
