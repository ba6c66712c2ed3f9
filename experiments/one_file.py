"""A generator of text in one file, from `tlite.functional` and optax: copy it and change it.

Model and hyperparameters are the demo's, in float32: pre-norm blocks with rotary positions, GELU
and a tied output layer, trained by AdamW on Python's help topics (`pydoc_data.topics`). Seeds are
trained side by side. `tlite compare` compares the folder that it writes with runs on the same text:

    python experiments/one_file.py runs/one_file --steps 4000 --seeds 3
    tlite compare runs/one_file runs/demo/TIME

Nothing is saved before the end, and a run can't be resumed: `tlite train` is for that.
"""

import argparse
import datetime
import hashlib
import json
import math
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tlite import functional as F
from tlite.data import BuiltinText

CONTEXT, WIDTH, HEADS, BLOCKS = 64, 64, 4, 3
BATCH, LEARNING_RATE, WARMUP = 32, 3e-3, 100
STEPS_PER_CALL, SAMPLE_LENGTH = 50, 300
INITIAL_VALUES, BATCHES, SAMPLES = range(3)  # purposes of random numbers
TEXT = BuiltinText()


# Model


class Block(NamedTuple):
    attention_norm: F.NormParameters
    attention: F.AttentionParameters
    feed_forward_norm: F.NormParameters
    feed_forward: F.FeedForwardParameters


class Model(NamedTuple):
    table: jax.Array  # (V, D), shared by the embedding and the output layer
    blocks: tuple[Block, ...]
    norm: F.NormParameters


def init_linear(rng, fan_in: int, fan_out: int, bias: bool = True) -> F.LinearParameters:
    """Glorot and Bengio 2010, eq. 16."""
    kernel = jax.nn.initializers.glorot_uniform()(rng, (fan_in, fan_out))
    return F.LinearParameters(kernel, jnp.zeros(fan_out) if bias else None)


def init_norm() -> F.NormParameters:
    return F.NormParameters(jnp.ones(WIDTH), jnp.zeros(WIDTH))


def init_block(rng) -> Block:
    keys = jax.random.split(rng, 6)
    projections = (init_linear(key, WIDTH, WIDTH, bias=False) for key in keys[:3])
    attention = F.AttentionParameters(*projections, init_linear(keys[3], WIDTH, WIDTH))
    hidden = init_linear(keys[4], WIDTH, 4 * WIDTH)
    output = init_linear(keys[5], 4 * WIDTH, WIDTH)
    return Block(init_norm(), attention, init_norm(), F.FeedForwardParameters(hidden, output))


def init_model(rng, vocabulary_size: int) -> Model:
    first, *keys = jax.random.split(rng, 1 + BLOCKS)
    table = 0.02 * jax.random.normal(first, (vocabulary_size, WIDTH))
    return Model(table, tuple(map(init_block, keys)), init_norm())


def apply_block(block: Block, x, mask, angles):
    """x + attention(norm(x)), then x + feed_forward(norm(x)); x is (B, T, D)."""
    y = F.layer_norm(block.attention_norm, x)
    y, _ = F.multi_head_attention(block.attention, y, y, y, mask, num_heads=HEADS, angles=angles)
    x = x + y
    y = F.layer_norm(block.feed_forward_norm, x)
    return x + F.feed_forward(block.feed_forward, y, jax.nn.gelu)


def logits_of(model: Model, tokens):
    """Return logits (B, T, V) of the token after each of `tokens` (B, T)."""
    length = tokens.shape[-1]
    mask, angles = F.causal_mask(length), F.rotary_angles(length, WIDTH // HEADS)
    x = F.embed(model.table, tokens)
    for block in model.blocks:
        x = apply_block(block, x, mask, angles)
    return F.unembed(model.table, F.layer_norm(model.norm, x))


# Training


def make_optimizer(steps: int) -> optax.GradientTransformation:
    """AdamW with warm-up and a cosine decay to a tenth; no weight decay of biases and norms."""
    warmup = min(WARMUP, steps // 10)
    schedule = optax.warmup_cosine_decay_schedule(
        LEARNING_RATE / (warmup or 1), LEARNING_RATE, warmup, steps, 0.1 * LEARNING_RATE
    )
    is_matrix = partial(jax.tree.map, lambda array: array.ndim > 1)
    adamw = optax.adamw(schedule, b2=0.99, weight_decay=0.1, mask=is_matrix)
    return optax.chain(optax.clip_by_global_norm(1.0), adamw)


def mean_loss(model: Model, windows):
    """Cross-entropy in nats per token of windows (B, T + 1)."""
    return F.token_cross_entropy(logits_of(model, windows[:, :-1]), windows[:, 1:]).mean()


def purpose_key(seed, purpose: int):
    """Return a key for one purpose: `split` and `fold_in` of the same key give equal keys."""
    return jax.random.fold_in(jax.random.key(seed), purpose)


def train_step(state, step, *, seed, tokens, optimizer):
    """One update on the batch of (seed, step)."""
    model, optimizer_state = state
    rng = jax.random.fold_in(purpose_key(seed, BATCHES), step)
    starts = jax.random.randint(rng, (BATCH,), 0, len(tokens) - CONTEXT)
    windows = tokens[starts[:, None] + jnp.arange(CONTEXT + 1)]
    loss, gradient = jax.value_and_grad(mean_loss)(model, windows)
    update, optimizer_state = optimizer.update(gradient, optimizer_state, model)
    return (optax.apply_updates(model, update), optimizer_state), loss


def train(tokens, vocabulary_size: int, steps: int, seeds: int):
    """Return the models, with a first axis of seeds, and the loss of each step (steps, seeds)."""
    optimizer, seed_numbers = make_optimizer(steps), jnp.arange(seeds)

    @jax.jit
    @jax.vmap
    def init(seed):
        model = init_model(purpose_key(seed, INITIAL_VALUES), vocabulary_size)
        return model, optimizer.init(model)

    @jax.jit
    @partial(jax.vmap, in_axes=(0, 0, None))
    def train_steps(seed, state, steps):
        step = partial(train_step, seed=seed, tokens=tokens, optimizer=optimizer)
        return jax.lax.scan(step, state, steps)

    state, losses = init(seed_numbers), []
    for first in range(0, steps, STEPS_PER_CALL):
        chunk = jnp.arange(first, min(first + STEPS_PER_CALL, steps))
        state, loss = train_steps(seed_numbers, state, chunk)
        losses.extend(np.asarray(loss).T)
        if first % (10 * STEPS_PER_CALL) == 0:
            print(f"step {len(losses):,} of {steps:,}: loss {losses[-1].mean():.4f}", flush=True)
    return state[0], np.array(losses)


# Validation and text


def evaluate(models, tokens) -> dict[str, np.ndarray]:
    """Return the loss (S, N) and the number of targets (N,) of each of N adjacent windows.

    Losses are summed over a window; each token but the first is a target once.
    """
    size = len(tokens) - 1
    padded = np.full(-(-size // CONTEXT) * CONTEXT + 1, -1, np.int32)
    padded[: len(tokens)] = tokens
    inputs = np.maximum(padded[:-1].reshape(-1, CONTEXT), 0)
    targets = padded[1:].reshape(-1, CONTEXT)  # the loss of a target below 0 is 0

    @jax.jit
    @partial(jax.vmap, in_axes=(0, None, None))
    def sums(model, inputs, targets):
        return F.token_cross_entropy(logits_of(model, inputs), targets).sum(-1)

    parts = [
        sums(models, inputs[i : i + 256], targets[i : i + 256]) for i in range(0, len(inputs), 256)
    ]
    return {"loss": np.concatenate(parts, axis=1), "count": (targets >= 0).sum(1).astype(float)}


def generate(model: Model, prompt: list[int], number: int, seed: int = 0) -> list[int]:
    """Return the prompt followed by `number` sampled tokens; a plain loop without a cache."""

    @jax.jit
    def next_token(window, length, step):
        rng = jax.random.fold_in(purpose_key(seed, SAMPLES), step)
        return F.sample(rng, logits_of(model, window[None])[0, length - 1], temperature=0.8)

    tokens = list(prompt)
    for step in range(number):
        window = tokens[-CONTEXT:]
        padded = jnp.array(window + [0] * (CONTEXT - len(window)))
        tokens.append(int(next_token(padded, len(window), step)))
    return tokens


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def save(folder: Path, text: str, characters: str, losses, scores, validation_bytes) -> None:
    """Write config.json, metrics.jsonl and examples.npz, which only `tlite compare` reads."""
    steps, seeds = losses.shape
    source = Path(__file__)
    experiment = {
        "kind": "class",
        "name": "GeneratorExperiment",
        "file": source.name,
        "sha256": {source.name: sha256(source.read_text())},
        "fields": {
            "name": "one_file",
            "data": {"kind": type(TEXT).__name__, "validation_fraction": TEXT.validation_fraction},
            "model": {"kind": "one_file", "context": CONTEXT},
            "training": {
                "kind": "TrainingConfig",
                "steps": steps,
                "seeds": seeds,
                "batch_size": BATCH,
                "evaluate_every": steps,
                "best_metric": "loss",
            },
            "init_from": None,
        },
    }
    config = {
        "experiment": experiment,
        "data": {"characters": len(text), "sha256": sha256(text)},
        "tokenizer": {"file": "", "sha256": sha256(characters)},
        "made_with": {"jax": jax.__version__, "optax": optax.__version__},
        "created": datetime.datetime.now(datetime.UTC).isoformat(),
    }
    by_seed = scores["loss"].sum(1) / scores["count"].sum()
    bits = scores["loss"].sum(1) / validation_bytes.sum() / math.log(2)
    lines = [
        {"step": step, "split": "training", "loss": loss.mean(), "loss_replicas": [*loss]}
        for step, loss in enumerate(losses.astype(float), 1)
    ]
    lines.append({"step": steps, "split": "validation"})
    for name, values in {"loss": by_seed, "bits_per_byte": bits}.items():
        values = values.astype(float)
        lines[-1] |= {name: values.mean(), f"{name}_replicas": [*values]}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sizes = np.broadcast_to(validation_bytes, scores["loss"].shape)
    np.savez(folder / "examples.npz", step=steps, bytes=sizes, **scores)
    print(f"loss {by_seed.mean():.4f}, {bits.mean():.4f} bits per byte, saved in {folder}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a generator of text.")
    parser.add_argument("folder", type=Path, help="folder to create")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    if options.folder.exists():
        parser.error(f"{options.folder} exists already")
    text = TEXT.load()
    characters = "".join(sorted(set(text)))
    ids = {character: i for i, character in enumerate(characters)}
    tokens = np.array([ids[character] for character in text], np.int32)
    split = len(tokens) - round(len(tokens) * TEXT.validation_fraction)
    validation = tokens[split:]
    models, losses = train(
        jnp.asarray(tokens[:split]), len(characters), options.steps, options.seeds
    )
    scores = evaluate(models, validation)
    sizes = np.array([float(len(c.encode())) for c in characters])[validation[1:]]
    sizes = np.pad(sizes, (0, -len(sizes) % CONTEXT)).reshape(-1, CONTEXT).sum(1)
    save(options.folder, text, characters, losses, scores, sizes)
    first = jax.tree.map(lambda array: array[0], models)
    sample = generate(first, validation[:8].tolist(), SAMPLE_LENGTH)
    print("".join(characters[token] for token in sample))


if __name__ == "__main__":
    main()
