"""Generate text from a model of GPT-2's shape, by tlite or by Hugging Face.

Each job imports its own library only. The weights are random, in float32.
"""

import time
from collections.abc import Callable

from experiments.benchmarks.worker import run_job, serve

SHAPE = {"vocabulary_size": 50257, "context": 1024, "width": 768, "num_heads": 12, "num_blocks": 12}
WORK = {  # samples, tokens of the prompt, new tokens
    "batch 1": (1, 32, 200),
    "batch 8": (8, 32, 200),
    "prefill of 512": (1, 512, 1),
}


def config():
    """Return GPT-2's architecture (Radford et al. 2019)."""
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

    from tlite import functional as F
    from tlite.decoding import generate
    from tlite.distributed.devices import prepare_devices
    from tlite.models import CausalLM, count_parameters

    prepare_devices()
    jax.config.update("jax_enable_compilation_cache", False)
    model = CausalLM(config(), rng=jax.random.key(0))
    samples, length, new_tokens = WORK[options["work"]]
    prompt = jnp.tile(jnp.arange(length), (samples, 1))
    settings = {"num_tokens": new_tokens, "rng": jax.random.key(0), "sampler": F.greedy}
    time_calls(
        count_parameters(model),
        lambda: generate(model, prompt, **settings).block_until_ready(),
    )


def hugging_face(options: dict) -> None:
    """Time `generate` with its cache; or one call that returns the logits of the last position."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    special = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**special, attn_implementation=options["attention"])).eval()
    samples, length, new_tokens = WORK[options["work"]]
    prompt = torch.arange(length).repeat(samples, 1)
    settings = {"min_new_tokens": new_tokens, "max_new_tokens": new_tokens, "do_sample": False}

    @torch.inference_mode()
    def generate() -> None:
        if new_tokens == 1:
            model(prompt, use_cache=True, logits_to_keep=1)
        else:
            model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)

    time_calls(model.num_parameters(), generate)


def time_calls(num_parameters: int, call: Callable[[], object]) -> None:
    """Time the first call, which compiles, and then one a round."""

    def run_round() -> dict:
        call()
        return {}

    began = time.perf_counter()
    call()
    compile_seconds = time.perf_counter() - began
    serve({"parameters": num_parameters, "compile_seconds": compile_seconds}, run_round)


if __name__ == "__main__":
    run_job({"tlite": tlite, "hugging-face": hugging_face})
