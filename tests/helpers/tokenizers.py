"""Tokenizers of the tokenizers library: words, bytes, and Llama's with a leading space."""

from tlite.pretrained import PretrainedTokenizer

TEXT = "hello wörld 漢字 🎉🎉 hello"


def words(vocabulary, unknown="[UNK]", around=(), **marks):
    """Return a tokenizer of words, with the tokens `around` at both ends of a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    content = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    content.pre_tokenizer = pre_tokenizers.Whitespace()
    if around:
        content.post_processor = processors.TemplateProcessing(
            single=f"{around[0]} $A {around[1]}",
            special_tokens=[(m, vocabulary[m]) for m in around],
        )
    content.add_special_tokens(list(marks.values()))
    return PretrainedTokenizer(content, marks)


def byte_level(trained=TEXT):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=290, initial_alphabet=alphabet, show_progress=False,
        special_tokens=["<s>", "</s>", "<pad>"],
    )  # fmt: skip
    tokenizer.train_from_iterator([trained], trainer)
    return tokenizer


def beginning_with_a_space(trained: str = TEXT):
    """Return an older Llama tokenizer: "▁" is put before a text and replaces each space."""
    import json

    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    marks = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=marks, show_progress=False)
    tokenizer.train_from_iterator(trained.split("\n"), trainer)
    content = json.loads(tokenizer.to_str()) | {"pre_tokenizer": None}
    return Tokenizer.from_str(json.dumps(content))
