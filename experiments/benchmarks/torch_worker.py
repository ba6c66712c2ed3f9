"""PyTorch's side of the benchmark: training steps of an idiomatic GPT."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"  # JAX only makes the initial parameters and batches here
import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from experiments.benchmarks.settings import Setting
from experiments.benchmarks.worker import run_job, serve_training
from tlite.training import Trainer
from tlite.training.step import BATCH


class Attention(nn.Module):
    def __init__(self, setting: Setting):
        super().__init__()
        self.project = nn.Linear(setting.width, 3 * setting.width, bias=False)
        self.output = nn.Linear(setting.width, setting.width, bias=False)
        self.num_heads, self.dropout = setting.num_heads, nn.Dropout(setting.dropout)

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.project(x).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        output = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.dropout(self.output(output.transpose(1, 2).reshape(batch, length, width)))


class Block(nn.Module):
    def __init__(self, setting: Setting):
        super().__init__()
        width = setting.width
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.feed_forward_norm = nn.LayerNorm(width, bias=False)
        self.attention = Attention(setting)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * width, width, bias=False),
            nn.Dropout(setting.dropout),
        )

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class GPT(nn.Module):
    def __init__(self, setting: Setting):
        super().__init__()
        self.embedding = nn.Embedding(setting.vocabulary_size, setting.width)
        self.positions = nn.Embedding(setting.context, setting.width)
        self.dropout = nn.Dropout(setting.dropout)
        self.blocks = nn.Sequential(*(Block(setting) for _ in range(setting.num_blocks)))
        self.norm = nn.LayerNorm(setting.width, bias=False)
        self.head = nn.Linear(setting.width, setting.vocabulary_size, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.embedding(tokens) + self.positions(positions))
        return self.head(self.norm(self.blocks(x)))


def load_parameters(model: GPT, trainer: Trainer) -> None:
    """Start the model from the initial parameters of tlite's first seed."""
    arrays = {n: np.asarray(a[0]) for n, a in trainer.init().parameters.items()}
    state = {
        "embedding.weight": arrays["embedding.table"],
        "head.weight": arrays["embedding.table"],
        "positions.weight": arrays["positions.table"],
        "norm.weight": arrays["norm.scale"],
    }
    for i in range(len(model.blocks)):
        block = f"blocks.{i}."
        projections = [arrays[f"{block}attention.{n}.kernel"] for n in ("query", "key", "value")]
        state |= {
            f"{block}attention_norm.weight": arrays[f"{block}attention_norm.scale"],
            f"{block}attention.project.weight": np.concatenate(projections, axis=1).T,
            f"{block}attention.output.weight": arrays[f"{block}attention.output.kernel"].T,
            f"{block}feed_forward_norm.weight": arrays[f"{block}feed_forward_norm.scale"],
            f"{block}feed_forward.0.weight": arrays[f"{block}feed_forward.hidden.kernel"].T,
            f"{block}feed_forward.2.weight": arrays[f"{block}feed_forward.output.kernel"].T,
        }
    model.load_state_dict({name: torch.tensor(array) for name, array in state.items()})


def window_starts(trainer: Trainer, number: int) -> torch.Tensor:
    """Return the start of each window (N, B) of tlite's first batches, drawn from positions."""
    config, positions = trainer.config, jnp.arange(trainer.loader.arrays.size)
    key = jax.random.fold_in(jax.random.key(config.seed), BATCH)
    draw = lambda step: trainer.task.draw(positions, key, step, config.batch_size)[0][:, 0]  # noqa: E731
    return torch.tensor(np.asarray(jax.lax.map(draw, jnp.arange(number))))


def train(options: dict) -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    setting = Setting(**options["setting"])
    tokens = torch.from_numpy(setting.load_tokens()).long().to(device)
    trainer, model = setting.make_trainer(), GPT(setting)
    load_parameters(model, trainer)
    # One untimed round precedes the timed ones.
    starts = window_starts(trainer, setting.steps * (1 + options["rounds"]))
    starts, rate = iter(starts[..., None].to(device)), trainer.config.learning_rate
    del trainer
    model.to(device)
    forward = torch.compile(model) if options["compile"] else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0, fused=True)
    offsets = torch.arange(setting.context + 1, device=device)

    def step():
        windows = tokens[next(starts) + offsets]
        with torch.autocast(device, torch.bfloat16, enabled=options["bf16"]):
            logits = forward(windows[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def train_steps(num_steps: int) -> list[float]:
        return torch.stack([step() for _ in range(num_steps)]).tolist()

    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    serve_training(train_steps, setting.steps, num_parameters)


if __name__ == "__main__":
    run_job({"train": train})
