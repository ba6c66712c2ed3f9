"""Text from a model of GPT-2's shape, by tlite and by Hugging Face: each job imports its own side.

So a process' memory is what one of them needs. The weights are random, in float32.
"""

import time
from collections.abc import Callable

from experiments.benchmarks.worker import peak_mb, serve, work

SHAPE = {"vocabulary_size": 50257, "context": 1024, "width": 768, "num_heads": 12, "num_blocks": 12}
WORK = {  # samples, tokens of the prompt, new tokens
    "batch 1": (1, 32, 200),
    "batch 8": (8, 32, 200),
    "prefill of 512": (1, 512, 1),
}


def config():
    """GPT-2's architecture (Radford et al. 2019)."""
    from tlite.models import Attention, FeedForward, GeneratorConfig, LMHead

    return GeneratorConfig(
        **SHAPE,
        dropout=0.0,
        block="pre_norm",
        attention=Attention(qkv_bias=True),
        feed_forward=FeedForward(activation="gelu"),
        head=LMHead(tied=True),
    )


def tlite(options: dict) -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np

    from tlite import functional as F
    from tlite.decoding import generate
    from tlite.distributed.devices import prepare_devices
    from tlite.models import CausalLM

    prepare_devices()
    jax.config.update("jax_enable_compilation_cache", False)
    shapes = jax.eval_shape(lambda: CausalLM(config(), rng=jax.random.key(0)))
    leaves, tree = jax.tree.flatten(shapes)
    numbers = np.random.default_rng(0)

    def draw(place: int) -> jax.Array:
        array = numbers.standard_normal(leaves[place].shape, np.float32)
        array *= 0.02
        return jnp.array(array).block_until_ready()

    # The largest first: for a moment each array is there twice.
    places = sorted(range(len(leaves)), key=lambda place: -leaves[place].size)
    arrays = {place: draw(place) for place in places}
    model = jax.tree.unflatten(tree, [arrays.pop(place) for place in range(len(leaves))])
    samples, length, new_tokens = WORK[options["work"]]
    prompt = jnp.tile(jnp.arange(length), (samples, 1))
    settings = {"num_tokens": new_tokens, "rng": jax.random.key(0), "sampler": F.greedy}
    time_calls(
        sum(array.size for array in jax.tree.leaves(model)),
        lambda: generate(model, prompt, **settings).block_until_ready(),
    )


def hugging_face(options: dict) -> None:
    """`generate` with its cache; or one call that gives the logits of the last position."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    marks = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**marks, attn_implementation=options["attention"])).eval()
    samples, length, new_tokens = WORK[options["work"]]
    prompt = torch.arange(length).repeat(samples, 1)
    settings = {"min_new_tokens": new_tokens, "max_new_tokens": new_tokens, "do_sample": False}

    @torch.inference_mode()
    def texts() -> None:
        if new_tokens == 1:
            model(prompt, use_cache=True, logits_to_keep=1)
        else:
            model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)

    time_calls(model.num_parameters(), texts)


def time_calls(num_parameters: int, texts: Callable[[], object]) -> None:
    """The first call, in which whatever has to be is compiled, and then one a round."""
    began = time.perf_counter()
    texts()
    first = {"compile_seconds": time.perf_counter() - began, "first_peak_mb": peak_mb()}

    def one_round() -> dict:
        texts()
        return {"peak_mb": peak_mb()}

    serve({"parameters": num_parameters, **first}, one_round)


if __name__ == "__main__":
    work({"tlite": tlite, "hugging-face": hugging_face})
