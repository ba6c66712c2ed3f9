"""A masked diffusion language model (Sahoo et al. 2024, arXiv 2406.07524; Shi et al. 2024).

At time t ~ U(0, 1) each of T tokens is masked with probability t. If CE is the summed cross-entropy
of the n masked tokens, -log p(x) <= E_t[CE / t] = E_n[T / n CE], n ~ U{1, ..., T}, as
P(n) = int C(T, n) t^n (1 - t)^(T - n) dt = 1 / (T + 1) and E[1 / t | n] = (T + 1) / n.

command   make masked-diffusion
time      7 min 51 s, beside other work
result    at most 2.2885 nats per character of the validation split (perplexity 9.860), and the
          sample is hardly English; a generator of 0.8M, experiments/tiny_shakespeare.py: 1.8161
"""

import math
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp

from experiments import masked_language_model
from tlite import functional as F
from tlite.data import TinyShakespeare
from tlite.errors import show
from tlite.experiment import GeneratorExperiment
from tlite.models import MaskedConfig, MaskedLM
from tlite.training import Task, scores, text_task, token_losses


@dataclass(frozen=True)
class DiffusionExperiment(GeneratorExperiment, sizes="sampling_steps"):
    """Train a `MaskedLM` to predict the masked tokens of a text at every rate of masking."""

    model: MaskedConfig = field(default_factory=MaskedConfig)
    """The sizes and components of the model."""
    sampling_steps: int = 64
    """Steps in which the tokens of the report's sample are unmasked."""


class DiffusionRun(masked_language_model.MaskedRun):
    """A masked diffusion model and its text; the loss is the bound in nats per token."""

    kind = "diffusion"
    experiment_type = DiffusionExperiment

    def make_task(self) -> Task:
        config, mask_id = self.experiment.model, self.experiment.model.vocabulary_size - 1

        def loss(model, batch, keys, token_loss):
            tokens, _ = batch
            ratios = jax.vmap(draw_ratios)(keys, tokens)
            logits, aux = model.logits_and_aux(jnp.where(ratios > 0, mask_id, tokens), rng=keys)
            return token_losses(token_loss, logits[..., :-1], tokens, ratios, aux)

        def evaluate(model, batch):
            ratios, tokens, weights = batch
            logits = model(jnp.where(ratios > 0, mask_id, tokens))[..., :-1]
            return scores(logits, tokens, weights * ratios) | {"count": weights}

        return text_task(config, loss, evaluate)

    def validation(self, split="validation"):
        _, tokens, weights = super().validation(split)
        keys = jax.random.split(jax.random.key(0), tokens.shape[:2])
        return jax.vmap(jax.vmap(draw_ratios))(keys, tokens), tokens, weights

    def print_report(self, means, parameters, step):
        super().print_report(means, parameters, step)
        bits = means["loss"].mean() / math.log(2)
        print(f"at most {bits:.4f} bits per {self.tokenizer.unit}; a sample:")
        model = self.trainer.models(parameters)[0]
        masks = jnp.full(model.config.context, model.config.vocabulary_size - 1)
        tokens = sample(model, masks, self.experiment.sampling_steps, jax.random.key(0))
        show(text := self.tokenizer.decode(tokens))
        self.save_sample(step, text)


def draw_ratios(key, tokens):
    """Return T/n for n ~ U{1, ..., T} random tokens of (T,), which are masked, and 0 for others."""
    size_rng, rank_rng = jax.random.split(F.fold_in(key, 2**31 - 1))  # dropout uses smaller numbers
    size = jax.random.randint(size_rng, (), 1, tokens.size + 1)
    return (jax.random.permutation(rank_rng, tokens.size) < size) * tokens.size / size


def sample(model: MaskedLM, tokens, steps: int, rng):
    """Return tokens (T,) with the masked ones drawn, T/steps at a time, in a random order."""
    order_rng, token_rng = jax.random.split(rng)
    turns = jax.random.permutation(order_rng, tokens.size) * steps // tokens.size

    def unmask(step, tokens):
        drawn = jax.random.categorical(F.fold_in(token_rng, step), model(tokens)[:, :-1])
        is_masked = tokens == model.config.vocabulary_size - 1
        return jnp.where(is_masked & (turns == step), drawn, tokens)

    return jax.lax.fori_loop(0, steps, unmask, tokens)


experiment = DiffusionExperiment(
    name="masked_diffusion",
    data=TinyShakespeare(),
    model=replace(masked_language_model.experiment.model, dropout=0.0),
    training=masked_language_model.experiment.training,
)
