import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import host_copy
from tests.helpers.complaints import complaint
from tlite import functional as F
from tlite.decoding.generate import _init_state
from tlite.inspection import run
from tlite.models import (
    Attention,
    Block,
    CausalLM,
    ClassifierConfig,
    GeneratorConfig,
    LMHead,
    LogisticConfig,
    Seq2Seq,
    Seq2SeqConfig,
    TranslatorHead,
)
from tlite.training import Trainer, TrainingConfig, generator_task, precision

MODEL = GeneratorConfig(
    vocabulary_size=11, context=8, width=16, num_heads=2, num_blocks=1, dropout=0.0
)
TRAINING = TrainingConfig(batch_size=8, learning_rate=1e-2)
TEXT = jnp.asarray(np.tile(np.arange(5), 100))


def make_trainer(**changes):
    training, devices = dataclasses.replace(TRAINING, **changes), jax.local_devices()[:1]
    return Trainer(generator_task(MODEL), training, TEXT, devices)


def test_mixed_precision_learns_and_keeps_float32_parameters():
    trainers = [make_trainer(precision=name) for name in ("mixed", "float32")]
    start = host_copy(trainers[0].init())
    (replicas, mixed), (_, plain) = (one.train(one.place(start), 0, 40) for one in trainers)
    dtypes = {str(a.dtype) for a in jax.tree.leaves((replicas.optimizer, replicas.parameters))}
    assert dtypes == {"float32", "int32"}
    assert (mixed["loss"] != plain["loss"]).any()
    np.testing.assert_allclose(mixed["loss"], plain["loss"], atol=0.0075)


@pytest.mark.parametrize("chosen", ["float32", "mixed"])
def test_float32_products_are_float32_on_every_device(chosen):
    """The programs of training and generation do not use TF32, a GPU's default."""
    trainer = make_trainer(precision=chosen)
    model = jax.eval_shape(lambda: CausalLM(MODEL, rng=jax.random.key(0)))
    tokens = jax.ShapeDtypeStruct((2, 4), jnp.int32)
    lengths = jax.ShapeDtypeStruct((2,), jnp.int32)
    start = _init_state.lower(model, tokens, lengths, lengths, capacity=8, prefill_size=4)
    for program, is_exact in ((trainer.lower(), chosen == "float32"), (start, True)):
        products = re.findall("dot_general .*", program.as_text())
        float32 = [line for line in products if "bf16" not in line]
        assert float32
        assert all(("HIGHEST" in line) == is_exact for line in float32)


@pytest.mark.parametrize(
    ("cpu_info", "platform", "hardware"),
    [
        ("flags\t\t: fpu avx512_bf16 sse2", "cpu", "avx512_bf16"),
        ("flags\t\t: amx_bf16 avx512_bf16 amx_tile", "cpu", "amx_bf16 and avx512_bf16"),
        ("Features\t: fp asimd i8mm bf16 dgh", "cpu", "bf16"),
        ("flags\t\t: fpu avx512f avx512_fp16 amx_tile", "cpu", ""),
        (None, "cpu", ""),  # macOS, Windows
        ("flags\t\t: fpu sse2", "gpu", "a GPU"),
        (None, "tpu", "a TPU"),
    ],
)
def test_auto_precision_depends_on_the_hardware(
    monkeypatch, tmp_path, cpu_info, platform, hardware
):
    """A CPU's is read from /proc/cpuinfo; where XLA rejects bfloat16, "auto" is float32."""
    if cpu_info is not None:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{cpu_info}\nbugs\t\t: amx_bf16\n")
    monkeypatch.setattr(precision, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setattr(precision, "attention_error", lambda _: None)
    assert precision.bfloat16_hardware() == hardware
    chosen = [precision.choose_precision(name) for name in ("auto", "mixed", "float32")]
    assert chosen == ["mixed" if hardware else "float32", "mixed", "float32"]
    monkeypatch.setattr(precision, "attention_error", lambda _: RuntimeError("Unsupported type"))
    assert precision.choose_precision("auto") == "float32"
    assert "RuntimeError" in complaint(precision.choose_precision, "mixed")


@dataclasses.dataclass(frozen=True)
class Custom:
    """A user's attention layer."""

    function: str = "auto"

    def init(self, rng, config):
        return {}

    def __call__(self, params, x, inputs):
        return x


def model(context=1024, attention="auto"):
    return GeneratorConfig(context=context, attention=attention)


CHUNKED = functools.partial(Attention, query_chunk_size=64)
AUTO = [
    ("float32", model(511), Attention("exact")),
    ("float32", model(512), CHUNKED("exact")),
    ("mixed", model(127), Attention("exact")),
    ("mixed", model(128), Attention("mixed")),
    ("mixed", model(512), CHUNKED("mixed")),
    # Chunks are for causal attention.
    ("mixed", ClassifierConfig(context=512), Attention("mixed")),
    ("float32", model(64, CHUNKED("auto")), CHUNKED("exact")),
    # No mixed or fused kernel supports a soft cap.
    ("mixed", model(attention=Attention("auto", softcap=5.0)), CHUNKED("exact", softcap=5.0)),
    # A function that is named is never replaced.
    *[("mixed", model(attention=name), Attention(name)) for name in ("exact", "mixed")],
    ("mixed", model(attention=F.scaled_dot_product_attention), None),
    ("mixed", model(attention=Custom()), Custom()),
]


@pytest.mark.parametrize(("chosen", "config", "attention"), AUTO)
def test_auto_products_depend_on_precision_and_context(chosen, config, attention):
    decided = precision.choose_products(config, chosen)
    assert decided.attention == (attention or config.attention)
    pattern = Block(attention=config.attention), Block()
    decided_pattern = precision.choose_products(dataclasses.replace(config, block=pattern), chosen)
    assert decided_pattern.block[0].attention == decided.attention
    if isinstance(config, GeneratorConfig):
        product = "mixed" if chosen == "mixed" else "exact"
        assert decided.head == dataclasses.replace(config.head, product=product)
    assert precision.choose_products(decided, chosen) == decided
    assert precision.choose_products(LogisticConfig(), chosen) == LogisticConfig()


@pytest.mark.parametrize("product", ["exact", "auto"])
@pytest.mark.parametrize("make", [CausalLM, Seq2Seq])
def test_a_tied_head_multiplies_in_the_precision_of_its_config(make, product):
    if make is CausalLM:
        name, num_inputs, head = "final", 1, LMHead(product=product, tied=True)
        config = dataclasses.replace(MODEL, head=head)
    else:
        name, num_inputs, head = "decoder.final", 2, TranslatorHead(product=product)
        config = Seq2SeqConfig(11, 8, 16, 2, 1, source_vocabulary_size=11, head=head)
    decided = precision.choose_products(config, "mixed")
    model = jax.jit(lambda: make(decided, rng=jax.random.key(0)))()
    inputs = [jnp.arange(8)] * num_inputs
    logits, captured = jax.jit(lambda *x: run(model, *x, capture=name))(*inputs)
    stack = model if make is CausalLM else model.encoder
    x, table = captured[name], stack.embedding.table[...]
    if product == "auto":
        x, table = (a.astype(jnp.bfloat16).astype(jnp.float32) for a in (x, table))
    np.testing.assert_allclose(logits, x @ table.T, rtol=0, atol=1e-6)
