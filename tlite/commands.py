"""What the commands of `tlite` do: train, evaluate and generate on run folders."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

from tlite.decoding import stream
from tlite.errors import UserError, disk_errors, program
from tlite.experiment import GeneratorExperiment
from tlite.generator_run import EVALUATION_BATCH, GeneratorRun, restore_checkpoint
from tlite.inspection import plot_curves, plot_loss_by_position, plot_next_token_probabilities
from tlite.modules import summary
from tlite.text import CharTokenizer
from tlite.training import Trainer, language_task, sampled_batches
from tlite.training.checkpoints import Checkpoints
from tlite.training.loop import fit, host_copy, validate
from tlite.training.metrics import read_metrics, split_member, summarise
from tlite.training.named import to_named
from tlite.training.runs import create_run, new_folder, open_run


def train(experiment: GeneratorExperiment, folder: Path | None = None) -> None:
    """Train an experiment in a new run folder."""
    check_prompt(experiment.prompt)
    _fit(GeneratorRun.start(experiment, folder))


def resume(folder: Path, member: int | None = None) -> None:
    """Go on with a run that was cut short; or with one member of it, in a folder of its own."""
    run = GeneratorRun.open(folder)
    _fit(run if member is None else take_member(run, member))


def take_member(source: GeneratorRun, member: int) -> GeneratorRun:
    """One of the models of a run as a run of its own, at the last checkpoint."""
    training = source.experiment.training
    check_member(member, len(training.members))
    seed, rate = training.members[member]
    experiment = dataclasses.replace(
        source.experiment,
        training=dataclasses.replace(
            training, seed=seed, seeds=1, learning_rate=rate, learning_rates=()
        ),
    )
    members, step = source.restore("last")
    folder = new_folder(
        experiment.name, source.run.folder.with_name(f"{source.run.folder.name}-{member}")
    )
    run = create_run(folder, experiment, source.run.data, source.tokenizer)
    lines = [split_member(line, member) for line in read_metrics(source.run.metrics)]
    run.metrics.write_text(
        "".join(json.dumps(line) + "\n" for line in lines if line["step"] <= step)
    )
    alone = jax.tree.map(lambda a: a[member : member + 1], host_copy(members))
    new = GeneratorRun.open(folder)
    checkpoints = Checkpoints(run.checkpoints, writing=True)
    losses = [
        line["loss"] for line in lines if line["split"] == "validation" and line["step"] == step
    ]
    checkpoints.save(step, to_named(new.trainer.model, alone), losses[-1])
    checkpoints.wait()
    checkpoints.close()
    return new


def check_member(member: int, number: int) -> None:
    if not 0 <= member < number:
        raise UserError(f"there is no member {member}: the run has {number}, counted from 0")


def _fit(opened: GeneratorRun) -> None:
    run, trainer, config = opened.run, opened.trainer, opened.experiment.training
    print(summary(trainer.model).splitlines()[-1].removeprefix("total: "), end=", ")
    print(
        f"{len(opened.tokenizer)} tokens in the vocabulary, {run.data['characters']:,} characters"
    )
    mesh = trainer.mesh.shape
    print(
        f"{len(config.members)} x {config.steps:,} steps in {config.precision} precision on "
        f"{mesh['member'] * mesh['data']} {jax.default_backend()} device(s), "
        f"run folder {run.folder}"
    )
    batches = opened.validation()
    members = fit(trainer, run.folder, batches, opened.experiment.model.context)
    if members is None:
        return
    report(opened, members, batches)


def report(opened: GeneratorRun, members, batches) -> None:
    """Validation loss, perplexity, a sample, and the pictures, at the end of training."""
    run = opened.run
    members, step = opened.restore("best")
    means = summarise(validate(opened.trainer, members, batches))
    print(f"best checkpoint: step {step:,}")
    print(describe("validation", means))
    model = opened.trainer.models(members.parameters)[0]
    with disk_errors(run.samples):
        run.samples.mkdir(exist_ok=True)
        tokens = encode_prompt(opened.tokenizer, opened.experiment.prompt, unknown=True)
        prompt, key = opened.experiment.prompt, jax.random.key(0)
        text = write_sample(model, opened.tokenizer, tokens, "\n" + prompt, num_tokens=500, key=key)
        (run.samples / f"step-{step}.txt").write_text(prompt + text)
        draw_plots(opened, members, batches, model)
    print(f"\nsaved in {run.folder}; more text: {program()} generate {run.folder}")


def write_sample(
    model, tokenizer: CharTokenizer, tokens: np.ndarray, before: str = "", **settings
) -> str:
    """Print a sample as it is made, after what comes `before`; returns it."""
    text = ""
    for part in stream(model, jnp.asarray(tokens), **settings):
        piece = tokenizer.decode(part)
        print(before + piece, end="", flush=True)
        before = ""
        text += piece
    print()
    return text


def describe(part: str, means: dict) -> str:
    """A line with loss, perplexity and accuracy; over several members mean and spread."""

    def value(name: str, digits: int, scale: float = 1.0) -> str:
        spread = means.get(f"{name}_spread")
        return f"{means[name] * scale:.{digits}f}" + (
            "" if spread is None else f" ± {spread * scale:.{digits}f}"
        )

    return (
        f"{part} loss {value('loss', 4)} nats per character, "
        f"perplexity {value('perplexity', 3)}, accuracy {value('accuracy', 1, 100.0)} %"
    )


def draw_plots(opened: GeneratorRun, members, batches, model) -> None:
    """Loss and accuracy curves, loss by position, next-character probabilities."""
    matplotlib.use("Agg")
    run = opened.run
    run.plots.mkdir(exist_ok=True)
    lines = read_metrics(run.metrics)
    sums = opened.trainer.evaluate(members.parameters, batches)
    opening = opened.validation_tokens[: min(24, opened.experiment.model.context)]
    probabilities = jax.device_get(jax.nn.softmax(model(jnp.asarray(opening)), axis=-1))
    plots = {
        "loss": lambda: plot_curves(lines, "loss"),
        "accuracy": lambda: plot_curves(lines, "accuracy"),
        "loss-by-position": lambda: plot_loss_by_position(sums["loss"] / sums["count"]),
        "next-character": lambda: plot_next_token_probabilities(
            probabilities, list(opened.tokenizer.decode(opening)), list(opened.tokenizer.characters)
        ),
    }
    for name, plot in plots.items():
        figure = plot().figure
        figure.savefig(run.plots / f"{name}.png", dpi=120)
        matplotlib.pyplot.close(figure)


def evaluate(
    folder: Path, checkpoint: str = "best", split: str = "validation", sampled: int = 0
) -> None:
    """Print the loss over every token of a part of the text; and a sampled estimate if asked."""
    if sampled < 0:
        raise UserError(f"--sampled must be at least 1, not {sampled}")
    opened = GeneratorRun.open(folder)
    members, step = opened.restore(checkpoint)
    tokens = opened.training_tokens if split == "training" else opened.validation_tokens
    means = validate(opened.trainer, members, opened.validation(tokens))
    print(
        describe(f"step {step:,}: {split}", summarise(means)) + f", {len(tokens) - 1:,} characters"
    )
    if sampled:
        context, shards = opened.experiment.model.context, opened.trainer.mesh.shape["data"]
        size = EVALUATION_BATCH * shards
        batches = sampled_batches(jax.random.key(0), jnp.asarray(tokens), context, sampled, size)
        means = validate(opened.trainer, members, batches)
        print(describe(f"sampled estimate ({batches[0][..., 0].size} windows):", summarise(means)))


def generate(
    folder: Path,
    prompt: str | None = None,
    *,
    unknown: bool = False,
    checkpoint: str = "best",
    member: int = 0,
    samples: int = 1,
    seed: int = 0,
    **sampling,
) -> None:
    """Print what the model of a run writes after the prompt."""
    if not 0 <= seed < 2**31 - samples:
        raise UserError(f"--seed must be in [0, 2^31), not {seed}")
    if samples < 1:
        raise UserError(f"--samples must be at least 1, not {samples}")
    run = open_run(folder, GeneratorExperiment)
    tokenizer = CharTokenizer.load(run.tokenizer)
    prompt = run.experiment.prompt if prompt is None else prompt
    tokens = encode_prompt(tokenizer, prompt, unknown)
    check_member(member, len(run.experiment.training.members))
    # The text itself is not needed: a model can be sampled from where its data is not.
    trainer = Trainer(
        language_task(run.experiment.model), run.experiment.training, jnp.zeros(0, int)
    )
    members, _ = restore_checkpoint(run, trainer, checkpoint)
    model = trainer.models(members.parameters[member : member + 1])[0]
    for index in range(samples):
        head = f"--- sample {index + 1}\n" if samples > 1 else ""
        key = jax.random.key(seed + index)
        try:
            write_sample(model, tokenizer, tokens, head + prompt, key=key, **sampling)
        except ValueError as error:
            raise UserError(str(error)) from error


def check_prompt(prompt: str) -> None:
    if not prompt:
        raise UserError("the prompt is empty: give at least one character to start from")


def encode_prompt(tokenizer: CharTokenizer, prompt: str, unknown: bool) -> np.ndarray:
    check_prompt(prompt)
    if not unknown and (strange := tokenizer.unknown_in(prompt)):
        raise UserError(
            f"the model does not know {', '.join(map(repr, strange))} in the prompt: "
            f"leave out, or pass --unknown to read as the unknown symbol"
        )
    return tokenizer.encode(prompt)
