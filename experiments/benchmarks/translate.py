"""How fast a translator decodes, with its caches and without.

command   .venv/bin/python -m experiments.benchmarks.translate RUN

All are the beam search of `tlite.decoding`, on the same sentences of the test part, in turn.
Without caches the search calls the model's forward pass on the source and all that is written
(rounded up to eight tokens) at every step for every beam; "decoder only" is a less plain one that
keeps the encoder's output and computes the logits of the last token alone.
"""

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path

from tlite.distributed.devices import prepare_devices

prepare_devices()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from flax import nnx  # noqa: E402

from tlite import functional as F  # noqa: E402
from tlite.decoding.translate import translate  # noqa: E402
from tlite.errors import UserError  # noqa: E402
from tlite.experiment import TranslatorExperiment  # noqa: E402
from tlite.models.inputs import causal_inputs  # noqa: E402
from tlite.models.transformer import run_blocks  # noqa: E402
from tlite.runs.models import load_run  # noqa: E402
from tlite.runs.translator import encode_sources  # noqa: E402
from tlite.training.run_dir import open_run  # noqa: E402

ROUND = 8


class Uncached(nnx.Module):
    """A model whose "cache" is the tokens that all beams have written, (B, L K, 1)."""

    def __init__(self, model, decoder_only: bool):
        self.model, self.config, self.decoder_only = model, model.config, decoder_only

    def memories(self, source):
        memory, mask = self.model.encode(source)
        return (memory, mask) if self.decoder_only else source, mask

    def empty_caches(self, *batch, capacity):
        return [F.KeyValues(*[jnp.zeros((*batch, capacity, 1), jnp.int32)] * 2)]

    def extend(self, tokens, caches, memory, memory_mask, start, *, positions, mask, **_):
        (size, beams), index = tokens.shape, positions[0, 0]
        written = jax.lax.dynamic_update_slice(caches[0].key, tokens[..., None], (0, start, 0))
        capacity = written.shape[1] // beams
        # At each step one of the K tokens is a beam's own, or none is yet.
        own = mask.reshape(size, beams, capacity, beams)
        targets = jnp.where(own, written.reshape(size, 1, capacity, beams), 0).max(-1)
        memory = jax.tree.map(lambda a: jnp.repeat(a[:, None], beams, axis=1), memory)

        def forward(length):
            def run():
                target = targets[..., :length]
                if not self.decoder_only:
                    logits = self.model(memory, target)
                    return jax.lax.dynamic_slice_in_dim(logits, index, 1, axis=-2)
                vectors, seen = memory
                inputs = causal_inputs(target.shape[-1])
                inputs = replace(inputs, memory=vectors, memory_mask=seen)
                x = self.model.embed_target(target)
                x = run_blocks(self.model.decoder, x, inputs)[0]
                return self.model.logits(jax.lax.dynamic_slice_in_dim(x, index, 1, axis=-2))

            return run

        lengths = [min(length, capacity) for length in range(ROUND, capacity + ROUND, ROUND)]
        logits = jax.lax.switch(index // ROUND, [forward(length) for length in lengths])
        return logits[..., 0, :], [F.KeyValues(written, written)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--uncached", type=int, default=200, help="sentences without caches")
    options = parser.parse_args()
    if options.beam < 2:
        parser.error("a beam of at least 2: greedy search is not timed")
    try:
        run = open_run(options.run, TranslatorExperiment)
        texts = [pair.source for pair in run.experiment.data.pairs("test")]
        model, tokenizer = load_run(run, "last")
        sources = encode_sources(run.experiment, tokenizer, texts)
    except UserError as error:
        parser.error(str(error))
    few = sources[:: max(len(sources) // options.uncached, 1)]
    works = {
        f"{len(few):,} sentences": (model, few),
        f"{len(few):,} sentences, without caches": (Uncached(model, False), few),
        f"{len(few):,} sentences, without caches, decoder only": (Uncached(model, True), few),
        f"{len(sources):,} sentences": (model, sources),  # the first again, if that is all
    }
    rates: dict[str, list[float]] = {name: [] for name in works}
    found = {}
    for round_number in range(options.rounds + 1):
        for name, (searched, chosen) in works.items():
            began = time.perf_counter()
            found[name] = translate(searched, chosen, beam=options.beam)
            if round_number:  # the first compiles
                rates[name].append(len(chosen) / (time.perf_counter() - began))
    for name, values in rates.items():
        spread = f"{min(values):.1f} to {max(values):.1f}"
        print(f"{name}: {statistics.median(values):.1f} sentences/s ({spread})")
    cached, *uncached = list(rates)[:3]
    for name in uncached:
        ratios = [a / b for a, b in zip(rates[cached], rates[name], strict=True)]
        spread = f"{min(ratios):.1f} to {max(ratios):.1f}"
        pairs = zip(found[cached], found[name], strict=True)
        same = sum((a[0][0] == b[0][0]).all() for a, b in pairs)
        print(f"{statistics.median(ratios):.1f} x ({spread}) as fast as {name}, {same} the same")


if __name__ == "__main__":
    main()
