"""Generate text greedily from a model of GPT-2's architecture, by tlite or by Hugging Face.

Each job imports its own library only. The weights are random, in float32.
"""

from collections.abc import Callable

from experiments.benchmarks.worker import run_job, serve, timed

SMALL = {"vocabulary_size": 66, "context": 512, "width": 128, "num_heads": 4, "num_blocks": 4}
GPT2 = {"vocabulary_size": 50257, "context": 1024, "width": 768, "num_heads": 12, "num_blocks": 12}
WORK = {  # by part of the benchmark: shape, samples, tokens of the prompt, new tokens
    "generation": {
        "generation, 0.8M, context 512": (SMALL, 1, 1, 500),
        "generation, 0.8M, context 512, batch 16": (SMALL, 16, 1, 500),
    },
    "gpt2": {
        "GPT-2's shape, batch 1": (GPT2, 1, 32, 200),
        "GPT-2's shape, batch 8": (GPT2, 8, 32, 200),
        "GPT-2's shape, prefill of 512": (GPT2, 1, 512, 1),
    },
}


def tlite(options: dict) -> None:
    import jax
    import jax.numpy as jnp

    from tlite import functional as F
    from tlite.decoding import generate
    from tlite.decoding.generate import _cache_budget, plan_chunks
    from tlite.distributed.devices import prepare_devices
    from tlite.models import (
        Attention,
        CausalLM,
        FeedForward,
        GeneratorConfig,
        LMHead,
        count_parameters,
    )

    prepare_devices()
    jax.config.update("jax_enable_compilation_cache", False)
    shape, samples, length, new_tokens = options["work"]
    config = GeneratorConfig(
        **shape,
        dropout=0.0,
        block="pre_norm",
        attention=Attention(qkv_bias=True),
        feed_forward=FeedForward(activation="gelu"),
        head=LMHead(tied=True),
    )
    model = CausalLM(config, rng=jax.random.key(0))
    prompt = jnp.tile(jnp.arange(length), (samples, 1))
    settings = {"num_tokens": new_tokens, "rng": jax.random.key(0), "sampler": F.greedy}
    weights, token = (
        sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
        for tree in (model, jax.eval_shape(lambda: model.empty_caches(samples, capacity=1)))
    )
    budget = _cache_budget(model, (samples,))
    chunks = plan_chunks(length, new_tokens, config.context, budget=budget)
    cached_tokens = sum(chunk.count * chunk.capacity for chunk in chunks)
    time_calls(
        count_parameters(model),
        lambda: generate(model, prompt, **settings).block_until_ready(),
        bytes_read=new_tokens * weights + cached_tokens * token,
    )


def hugging_face(options: dict) -> None:
    """Time `generate` with its cache; or one call that returns the logits of the last position."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    shape, samples, length, new_tokens = options["work"]
    config = GPT2Config(
        vocab_size=shape["vocabulary_size"],
        n_positions=shape["context"],
        n_embd=shape["width"],
        n_layer=shape["num_blocks"],
        n_head=shape["num_heads"],
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
        attn_implementation=options["attention"],
    )
    model = GPT2LMHeadModel(config).eval()
    prompt = torch.arange(length).repeat(samples, 1)
    settings = {"min_new_tokens": new_tokens, "max_new_tokens": new_tokens, "do_sample": False}

    @torch.inference_mode()
    def generate() -> None:
        if new_tokens == 1:
            model(prompt, use_cache=True, logits_to_keep=1).logits.cpu()
        else:
            model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings).cpu()

    time_calls(model.num_parameters(), generate)


def time_calls(num_parameters: int, call: Callable[[], object], bytes_read: int = 0) -> None:
    """Time the first call, and then one in each round."""

    def run_round() -> dict:
        call()
        return {}

    _, seconds = timed(call)
    ready = {"parameters": num_parameters, "first_seconds": seconds, "bytes_read": bytes_read}
    serve(ready, run_round)


if __name__ == "__main__":
    run_job({"tlite": tlite, "hugging-face": hugging_face})
