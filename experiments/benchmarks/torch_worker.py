"""PyTorch's side of the benchmark: training steps of an idiomatic GPT."""

import math
import time

import torch
from torch import nn
from torch.nn import functional as F

from experiments.benchmarks.settings import TRAINING, Setting
from experiments.benchmarks.worker import run_job, serve
from tlite.data import BuiltinText
from tlite.text import CharTokenizer


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
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.attention = Attention(setting)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False),
            nn.GELU(),
            nn.Linear(4 * width, width, bias=False),
            nn.Dropout(setting.dropout),
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


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
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                residual = name.endswith(("output.weight", "feed_forward.2.weight"))
                std = 0.02 / math.sqrt(2 * setting.num_blocks) if residual else 0.02
                nn.init.normal_(parameter, std=std)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.embedding(tokens) + self.positions(positions))
        return self.head(self.norm(self.blocks(x)))


def train(options: dict) -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    setting = next(s for s in TRAINING if s.name == options["setting"])
    text = BuiltinText().load()
    tokens = torch.from_numpy(CharTokenizer(text).encode(text) % setting.vocabulary_size).long()
    tokens = tokens.to(device)
    model = GPT(setting).to(device)
    forward = torch.compile(model) if options["compile"] else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    offsets = torch.arange(setting.context + 1, device=device)

    def step():
        starts = torch.randint(
            len(tokens) - setting.context, (setting.batch_size, 1), device=device
        )
        windows = tokens[starts + offsets]
        with torch.autocast(device, torch.bfloat16, enabled=options["bf16"]):
            logits = forward(windows[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def run_steps() -> dict:
        return {"loss": torch.stack([step() for _ in range(setting.steps)]).mean().item()}

    began = time.perf_counter()
    step()
    compile_seconds = time.perf_counter() - began
    for _ in range(setting.steps - 1):
        step()
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    serve({"parameters": num_parameters, "compile_seconds": compile_seconds}, run_steps)


if __name__ == "__main__":
    run_job({"train": train})
