"""Tests of generation: sliding windows, keys, compilations, samplers and taps."""

import itertools
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.models import LeakySum, Shifted
from tlite import functional as F
from tlite.decoding import generate, stream
from tlite.decoding.generate import PADDING
from tlite.inspection import run
from tlite.models import Attention, Block, CausalLM, FeedForward, GeneratorConfig, Loop

CONTEXT, V = 6, 11
PROMPT = np.array([3, 1, 4, 1])
TOKEN = 5


def make_model(positions="learned", context=CONTEXT, **fields):
    """Return a model with large weights: its most probable token depends on the whole window."""
    fields |= {"width": 8, "num_heads": 2, "num_blocks": 1, "block": Block(pre_norm=True)}
    config = GeneratorConfig(V, context, positions=positions, **fields)

    @jax.jit
    def drawn(rng):
        return jax.tree.map(lambda a: 6 * a, CausalLM(config, rng=rng))

    return drawn(jax.random.key(2))


@pytest.fixture(scope="module")
def model():
    return make_model()


def draw(model, prompt=PROMPT, num_tokens=16, seed=0, lengths=None, **settings):
    settings |= {"num_tokens": num_tokens, "rng": jax.random.key(seed)}
    settings["lengths"] = None if lengths is None else jnp.asarray(lengths)
    return jax.device_get(generate(model, jnp.asarray(prompt), **settings))


def test_tokens_depend_on_model_prompt_and_key_alone(model):
    """A shorter text is a prefix of a longer one; scanned blocks generate the same tokens."""
    expected, scanned = draw(model), make_model(loop=Loop(scan=True))
    for same in (draw(model), draw(scanned), draw(model, PROMPT[None], lengths=np.array([4]))[0]):
        np.testing.assert_array_equal(same, expected)
    for axes in (None, (None, None)):
        tokens = draw(model, PROMPT[axes], num_tokens=5)
        np.testing.assert_array_equal(tokens, expected[:5][axes])
    assert (expected != draw(model, seed=1)).any()


def test_padding_of_prompts_may_exceed_the_first_cache():
    model = make_model(context=256)
    prompts = np.zeros((2, 200), int)
    prompts[:, :4] = PROMPT
    expected, padded = (
        draw(model, p, 3, lengths=np.array([4, 3])) for p in (prompts[:, :4], prompts)
    )
    np.testing.assert_array_equal(padded, expected)


@pytest.mark.parametrize("size", [5, 20])
def test_a_stream_yields_the_tokens_of_generate_in_chunks(model, size):
    options = {"num_tokens": 16, "rng": jax.random.key(0), "chunk_size": size}
    expected, chunks = draw(model), list(stream(model, PROMPT, **options))
    np.testing.assert_array_equal(np.concatenate(chunks), expected)
    assert all(len(chunk) == size for chunk in chunks[:-1])
    stop = int(expected[9])
    chunks = list(stream(model, PROMPT, stop=stop, **options))
    tokens = np.concatenate(chunks)
    assert tokens[tokens >= 0].tolist() == before_stop(expected, [stop])
    assert len(chunks) == (tokens >= 0).sum() // size + 1


BATCH = np.array([[3, 1, 4, 1], [5, 9, 2, 0], [1, 0, 0, 0]])


def before_stop(row, stop):
    return list(itertools.takewhile(lambda token: token not in stop, row.tolist()))


@pytest.mark.parametrize("slide", [1, 3])
def test_tokens_before_a_stop_token_do_not_depend_on_it(model, slide):
    """Rows end soon, late or never, before and after the window is full."""
    settings = {"lengths": np.array([4, 3, 1]), "slide": slide, "num_tokens": 30}
    unlimited = draw(model, BATCH, **settings)
    ways = set()
    for stop in (*range(V), [2, 7], []):
        tokens = draw(model, BATCH, stop=stop, **settings)
        ends = np.atleast_1d(stop).tolist()
        for row, expected in zip(tokens, unlimited, strict=True):
            text = before_stop(expected, ends)
            assert row.tolist() == text + [PADDING] * (30 - len(text))
            ways.add("never" if len(text) == 30 else "soon" if len(text) < 3 else "late")
    assert ways == {"soon", "late", "never"}


def watched(model, calls):
    """Return the model; append (tokens, capacity) to `calls` when it is compiled.

    Append (tokens, None) when it is run.
    """

    class Watched(CausalLM):
        def extend(self, tokens, caches, start, **settings):
            calls.append((tokens.shape[-1], caches[0]["attention"].key.shape[-2]))
            jax.debug.callback(lambda: calls.append((tokens.shape[-1], None)))
            return super().extend(tokens, caches, start, **settings)

    model = jax.tree.map(lambda a: a, model)
    model.__class__ = Watched
    return model


def test_nothing_is_computed_when_all_rows_have_ended():
    calls = []
    model = watched(make_model(context=64), calls)
    expected = draw(model, BATCH, num_tokens=60, sampler=F.greedy)
    jax.effects_barrier()
    assert calls.count((1, None)) == 60
    calls.clear()
    tokens = draw(model, BATCH, num_tokens=60, sampler=F.greedy, stop=expected[:, 5].tolist())
    jax.effects_barrier()
    assert calls.count((1, None)) == (tokens >= 0).sum(-1).max() + 1 <= 6


@jax.jit
def most_probable(model, tokens, length):
    return model(tokens)[length - 1].argmax()


def uncached(model, prompt, num_tokens, slide):
    """Return the most probable tokens, each computed by a call on the full window."""
    context = model.config.context
    window, chosen = prompt.tolist()[-context:], []
    for _ in range(num_tokens):
        padded = np.array(window + [0] * (context - len(window)))
        chosen.append(int(most_probable(model, padded, len(window))))
        window = (window[slide:] if len(window) == context else window) + chosen[-1:]
    return chosen


GROUPED_WINDOW = Attention(num_kv_heads=1, windows=(9, 0))


@pytest.mark.parametrize(
    "fields",
    [
        {"positions": "rotary", "attention": GROUPED_WINDOW, "feed_forward": Shifted()},
        {"feed_forward": LeakySum()},
        {"attention": LeakySum()},
    ],
)
def test_chunked_prefill_and_growing_caches_change_nothing(monkeypatch, fields):
    monkeypatch.setattr(sys.modules["tlite.decoding.generate"], "PREFILL_CHUNK", 48)
    model = make_model(context=150, **fields)
    prompts = [np.arange(n) ** 2 % V for n in (41, 3, 100)]
    padded = np.stack([np.pad(p, (0, 100 - len(p))) for p in prompts])
    lengths = np.array([len(p) for p in prompts])
    settings = {"lengths": lengths, "num_tokens": 70, "sampler": F.greedy, "slide": 40}
    expected = [uncached(model, p, 70, slide=40) for p in prompts]
    for _ in range(2):  # the caller's arrays were not donated
        np.testing.assert_array_equal(draw(model, padded, **settings), expected)


def test_a_prompt_of_small_integers_has_int32_tokens(model):
    for dtype in (np.uint8, np.uint16):
        assert (draw(model, PROMPT.astype(dtype), 4, stop=[*range(V)]) == -1).all()


@pytest.mark.parametrize("context", [17, 62])
def test_a_prompt_is_read_in_chunks_that_do_not_divide_the_cache(context):
    model, prompt = make_model(context=context), np.arange(9) ** 2 % V
    tokens = draw(model, prompt, 4, sampler=F.greedy)
    np.testing.assert_array_equal(tokens, uncached(model, prompt, 4, slide=1))


def test_cache_capacity_follows_the_text_not_the_context():
    calls = []
    model = watched(make_model(context=32_768, positions="rotary"), calls)
    draw(model, np.arange(40) % V, num_tokens=30)
    assert {call for call in calls if call[1]} == {(64, 64), (1, 64), (1, 128)}


def test_one_capacity_serves_small_caches_of_large_models():
    calls = []
    model = watched(make_model(context=150, feed_forward=FeedForward(10_000), norm="rms"), calls)
    draw(model, num_tokens=140)
    assert len({capacity for _, capacity in calls if capacity}) == 1


@pytest.mark.parametrize(("positions", "slide"), [("learned", 1), ("rotary", 1), ("learned", 3)])
def test_each_row_of_a_batch_is_generated_as_if_alone(positions, slide):
    """The expected tokens come from calls without caches; one prompt is longer than the context."""
    model, prompts = make_model(positions), [PROMPT, PROMPT[:1], np.arange(CONTEXT + 2)]
    lengths = np.array([len(prompt) for prompt in prompts])
    expected = [uncached(model, prompt, 16, slide) for prompt in prompts]
    for filling in (9, -1):
        pad = lambda p: np.pad(p, (0, CONTEXT + 2 - len(p)), constant_values=filling)  # noqa: B023, E731
        padded = np.stack([*map(pad, prompts)])
        tokens = draw(model, padded, lengths=lengths, sampler=F.greedy, slide=slide)
        np.testing.assert_array_equal(tokens, expected)
    assert len({*expected[0]}) > 1


def test_one_compilation_serves_all_temperatures(model):
    calls, prompts, compiled = [], [PROMPT, PROMPT + 1, PROMPT[:1], np.arange(V)], 0
    watching = watched(model, calls)
    for (seed, prompt), temperature in itertools.product(enumerate(prompts), [0.5, 1.0]):
        sampler = partial(F.sample, temperature=temperature, top_k=3, top_p=0.9)
        draw(watching, prompt, seed=seed, sampler=sampler)
        compiled = compiled or calls.count((1, CONTEXT))
    assert calls.count((1, CONTEXT)) == compiled > 0


def test_a_sampler_and_a_tap_read_the_present_values_of_variables(model, monkeypatch):
    strength = np.float32(0)

    def constant(rng, logits):
        return jnp.full(logits.shape[:-1], TOKEN)

    def steer(name, value, positions):
        return value + strength * jax.nn.one_hot(7, V) if name == "logits" else value

    first = draw(model, sampler=F.greedy, tap=steer)
    assert (draw(model, sampler=constant) == 5).all()
    strength = np.float32(1e6)
    monkeypatch.setitem(globals(), "TOKEN", 2)
    assert (first != 7).any()
    assert (draw(model, sampler=F.greedy, tap=steer) == 7).all()
    assert (draw(model, sampler=constant) == 2).all()


def test_a_tap_that_counts_its_calls_is_compiled_once(model):
    calls = 0

    def tap(name, value, positions):
        nonlocal calls
        calls += 1
        return value

    draw(model, tap=tap)
    compiled = calls
    draw(model, tap=tap)
    assert calls == compiled > 0


def test_a_sampler_may_take_the_tokens_of_the_window(model):
    def different(rng, logits, tokens, penalty):
        return F.greedy(rng, F.repetition_penalty(logits, tokens, penalty))

    lengths = np.array([4, 3, 1])
    rows = draw(model, BATCH, 2, sampler=partial(different, penalty=jnp.inf), lengths=lengths)
    for prompt, length, new in zip(BATCH, lengths, rows, strict=True):
        assert len({*prompt[:length], *new}) == len({*prompt[:length]}) + 2


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"prompt": PROMPT[:0]}, "prompt is empty"),
        ({"lengths": np.int32(0)}, "prompt is empty"),
        ({"slide": 0}, "1 to 6"),
        ({"slide": CONTEXT + 1}, "1 to 6"),
        ({"num_tokens": 0}, "at least 1, not 0"),
        ({"sampler": partial(F.sample, temperature=-1.0)}, "temperature .* positive"),
        ({"sampler": partial(F.sample, top_k=0)}, "top-k"),
        ({"sampler": lambda rng, logits: logits}, r"float32\[11\], not integers of shape \[\]"),
        ({"prompt": np.array([1, V])}, f"token {V}"),
        ({"prompt": np.array([-1, 1])}, "token -1"),
        ({"lengths": np.int32(len(PROMPT) + 1)}, "lengths has 5"),
        ({"stop": V}, f"token {V}"),
        ({"sampler": lambda rng, logits: None}, "returns NoneType"),
    ],
)
def test_bad_options_of_generate_are_named(model, wrong, named):
    with pytest.raises(ValueError, match=named):
        draw(model, **wrong)


@pytest.mark.parametrize("capacity", [CONTEXT, CONTEXT + 2, 3])
def test_extend_refuses_tokens_beyond_context_or_capacity(model, capacity):
    caches, most = model.empty_caches(capacity=capacity), min(capacity, CONTEXT)
    tokens = jnp.asarray(PROMPT[:2])
    model.extend(tokens, caches, jnp.array(most - 2))
    with pytest.raises(ValueError, match=f"{most + 1} .* {most}"):
        model.extend(tokens, caches, jnp.array(most - 1))


VECTOR = jnp.linspace(-1, 1, 8)


def steer(name, value, positions, vector):
    """Add the vector to the embedding of position 3, in the prompt, and of all from 7 on."""
    steered = (positions == 3) | (positions >= 7)
    return value + steered[..., None] * vector if name == "embedding" else value


@jax.jit
def steered_logits(model, window, first):
    """Return the logits after a window, whose first token has the position `first`."""
    positions = first + jnp.arange(len(window))
    edit = {"embedding": lambda x: steer("embedding", x, positions, VECTOR)}
    return run(model, window, edit=edit)[0][-1]


@pytest.mark.parametrize("slide", [1, 3])
def test_steering_while_generating_equals_editing_a_pass(model, slide):
    prompts, lengths = np.pad(PROMPT, (0, 4))[None].repeat(2, 0), np.array([4, 2])
    options = {"sampler": F.greedy, "tap": partial(steer, vector=VECTOR), "slide": slide}
    rows = draw(model, prompts, num_tokens=8, lengths=lengths, **options)
    for prompt, length, row in zip(prompts, lengths, rows, strict=True):
        text, first = prompt[:length].tolist(), 0
        for token in row:
            assert token == steered_logits(model, jnp.asarray(text[first:]), first).argmax()
            text.append(token)
            first += slide if len(text) - first > CONTEXT else 0
    plain = draw(model, prompts, num_tokens=8, lengths=lengths, sampler=F.greedy)
    assert (rows != plain).any(-1).all()
