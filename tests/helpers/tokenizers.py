"""A tokenizer of bytes as others make it."""

TEXT = "hello wörld 漢字 🎉🎉 hello"


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
