"""Subwords by byte-pair encoding (`tokenizers`), tokenizers of sentence pairs, and BLEU."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from tlite.errors import needs_extra
from tlite.text.tokenizer import Tokenizer, pad

CHUNK_SIZE = 2**20  # characters
LINE_END = re.compile(r"(?<=\S)\n")
SPECIALS = ("[PAD]", "[UNK]", "[START]", "[END]")  # of pairs
PAD_ID, UNKNOWN_ID, START_ID, END_ID = range(4)


class SubwordTokenizer(Tokenizer):
    """Text to subwords and back; create it by `train` or `load`."""

    kind, file_name = "subwords", "subwords.json"

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        tokenizer.encode_special_tokens = True  # "[UNK]" typed in a text is ordinary text
        self.unknown_id = tokenizer.token_to_id("[UNK]")

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocabulary_size: int = 8000,
        *,
        lowercase: bool = True,
        specials: tuple[str, ...] = ("[UNK]",),
    ) -> "SubwordTokenizer":
        """Learn byte-pair merges (Sennrich et al. 2016), with "\u2581" where a word begins.

        Args:
            texts: texts of the training split.
            vocabulary_size: number of subwords, all characters and special tokens included; the
                vocabulary is larger if there are more characters.
            specials: special tokens, which get the first ids in this order; one is "[UNK]".
        """
        with needs_extra("text"):
            from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
            from tokenizers.trainers import BpeTrainer
        tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
        splits = [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
        tokenizer.decoder = decoders.Metaspace()
        steps = [normalizers.NFC()] + [normalizers.Lowercase()] * lowercase
        tokenizer.normalizer = normalizers.Sequence(steps)
        settings = {"special_tokens": list(specials), "show_progress": False}
        tokenizer.train_from_iterator(texts, BpeTrainer(vocab_size=vocabulary_size, **settings))
        return cls(tokenizer)

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def id_to_token(self, index: int | np.integer) -> str:
        return (self._tokenizer.id_to_token(int(index)) if index >= 0 else None) or ""

    def encode(self, text: str) -> np.ndarray:
        """Return the ids (T,) of the subwords of a text."""
        return np.array(self._tokenizer.encode(text).ids, np.int32)

    def encode_ids(self, texts: Iterable[str]) -> list[list[int]]:
        """Return the ids of the subwords of each text."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]

    def decode(self, tokens) -> str:
        """Return the text of the ids (T,), without special tokens, padding and leading spaces."""
        ids = [t for t in np.asarray(tokens).tolist() if t >= 0]
        return self._tokenizer.decode(ids).lstrip(" ")  # the library strips one space only

    def to_dict(self) -> dict[str, Any]:
        return json.loads(self._tokenizer.to_str())

    def to_hugging_face(self) -> tuple[Any, ...]:
        content = type(self._tokenizer).from_str(self._tokenizer.to_str())
        return content, {"unk": "[UNK]", "pad": "[UNK]"}

    @classmethod
    def from_dict(cls, content: Any) -> "SubwordTokenizer":
        with needs_extra("text"):
            from tokenizers import Tokenizer
        try:
            return cls(Tokenizer.from_str(json.dumps(content)))
        except Exception as error:  # the library raises plain Exception
            raise ValueError(str(error)) from error


def byte_pairs(**model_settings: Any):
    """Return GPT-2's byte-level byte-pair encoding, a `tokenizers.Tokenizer`.

    Args:
        model_settings: arguments of `tokenizers.models.BPE`, such as vocab and merges; none if they
            will be learned.
    """
    with needs_extra("text"):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    content = Tokenizer(models.BPE(**model_settings))
    content.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    content.decoder = decoders.ByteLevel()
    return content


def split_long_text(text: str, size: int = CHUNK_SIZE) -> Iterator[str]:
    """Split a text into chunks of about `size` characters that have the same subwords as the text.

    GPT-2's pre-tokenizer always splits before a line end that follows a visible character.
    """
    begin = 0
    while end := LINE_END.search(text, begin + size):
        yield text[begin : end.start()]
        begin = end.start()
    yield text[begin:]


# Sentences and their translations


class PairTokenizer(Tokenizer):
    """A tokenizer of source sentences and one of targets, which may be the same."""

    kind, file_name = "pairs", "subwords.json"
    unknown_id = UNKNOWN_ID

    def __init__(self, source: SubwordTokenizer, target: SubwordTokenizer):
        self.source, self.target = source, target

    @classmethod
    def train(
        cls,
        sources: Sequence[str],
        targets: Sequence[str],
        num_subwords: int,
        *,
        joint: bool = True,
        lowercase: bool = False,
    ) -> "PairTokenizer":
        """Learn byte-pair merges (Sennrich et al. 2016) from the training split.

        Args:
            num_subwords: size of the vocabulary, for both languages together if `joint`, else for
                each.
        """
        texts = [[*sources, *targets]] if joint else [sources, targets]
        sides = [
            SubwordTokenizer.train(side, num_subwords, lowercase=lowercase, specials=SPECIALS)
            for side in texts
        ]
        return cls(sides[0], sides[-1])

    @property
    def joint(self) -> bool:
        return self.source is self.target

    def __len__(self) -> int:
        return len(self.target)

    def encode(self, text: str) -> np.ndarray:
        """Return the ids (T,) of a source and [END]."""
        return self.encode_sources([text])[0]

    def encode_sources(self, texts: Iterable[str]) -> list[np.ndarray]:
        """Return the ids of each source and [END]."""
        return [np.r_[ids, END_ID].astype(np.int32) for ids in self.source.encode_ids(texts)]

    encode_ids = encode_sources

    def encode_targets(self, texts: Iterable[str]) -> list[np.ndarray]:
        """Return [START], the ids of each target and [END]."""
        rows = self.target.encode_ids(texts)
        return [np.r_[START_ID, ids, END_ID].astype(np.int32) for ids in rows]

    def decode(self, tokens) -> str:
        """Return the target sentence of ids (T,) up to [END], without special tokens."""
        ids = np.asarray(tokens)
        ends = np.flatnonzero(ids == END_ID)
        return self.target.decode(ids[: ends[0]] if len(ends) else ids)

    def id_to_token(self, index: int | np.integer) -> str:
        """Return the subword of a target's id."""
        return self.target.id_to_token(index)

    def tokenize(self, text: str, max_length: int | None = None) -> list[str]:
        return self.source.tokenize(text, max_length)

    def to_hugging_face(self) -> tuple[Any, ...]:
        if not self.joint:
            return super().to_hugging_face()
        with needs_extra("text"):
            from tokenizers.processors import TemplateProcessing
        content, _ = self.source.to_hugging_face()
        end = [("[END]", END_ID)]
        content.post_processor = TemplateProcessing(single="$A [END]", special_tokens=end)
        return content, dict(zip(("pad", "unk", "bos", "eos"), SPECIALS, strict=True))

    def to_dict(self) -> dict[str, Any]:
        sides = {"source": self.source.to_dict()}
        return sides if self.joint else sides | {"target": self.target.to_dict()}

    @classmethod
    def from_dict(cls, content: Any) -> "PairTokenizer":
        source = SubwordTokenizer.from_dict(content["source"])
        joint = "target" not in content
        return cls(source, source if joint else SubwordTokenizer.from_dict(content["target"]))


def pad_tokens(rows: Sequence[np.ndarray], length: int | None = None) -> np.ndarray:
    """Return the rows padded with [PAD], int32 (B, T)."""
    return pad(rows, length, PAD_ID)


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> tuple[float, str]:
    """Return corpus BLEU (0 to 100) of untokenised sentences, and sacrebleu's signature.

    sacrebleu tokenises both sides (13a). With `lowercase` the score is what papers on Multi30k
    call lower-cased and tokenised.
    """
    with needs_extra("text"):
        from sacrebleu.metrics import BLEU
    metric = BLEU(lowercase=lowercase, tokenize="13a")
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return score, str(metric.get_signature())


def bleu_statistics(
    hypotheses: Sequence[str], references: Sequence[str]
) -> Float[np.ndarray, "N 10"]:
    """Return what BLEU sums over sentences: numbers of words, n-gram matches and n-grams."""
    with needs_extra("text"):
        from sacrebleu.metrics import BLEU
    metric, pairs = BLEU(tokenize="13a"), zip(hypotheses, references, strict=True)
    scores = (metric.corpus_score([hypothesis], [[reference]]) for hypothesis, reference in pairs)
    return np.array([[s.sys_len, s.ref_len, *s.counts, *s.totals] for s in scores], float)


def bleu_by_sentence(statistics: Float[np.ndarray, "N 10"]) -> Float[np.ndarray, "N"]:
    """Return linearised scores of sentences, whose mean is corpus BLEU B (0 to 100).

        d_n = B + N B (sum_k (m_kn / M_k - t_kn / T_k) / 4 + [C < R] (R c_n / C - r_n) / C)

    Sentence n has c_n words, its reference r_n, and m_kn of its t_kn k-grams match; capitals are
    sums. The variance of the mean of d_n is that of B over new sentences (Efron 1982, "The
    jackknife, the bootstrap and other resampling plans": the infinitesimal jackknife).
    """
    with needs_extra("text"):
        from sacrebleu.metrics import BLEU
    sums = statistics.sum(0)
    (length, reference_length), matches, totals = np.split(sums, [2, 6])
    whole = [[*map(int, counts)] for counts in (matches, totals)]
    score = BLEU.compute_bleu(*whole, int(length), int(reference_length), "exp").score
    changes = statistics / np.maximum(sums, 1)
    slopes = np.where(matches > 0, changes[:, 2:6] - changes[:, 6:], 0.0).mean(1)
    if length < reference_length:
        slopes += reference_length / max(length, 1) * (changes[:, 0] - changes[:, 1])
    return score + score * len(statistics) * slopes


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return the share of the hypotheses that equal their reference."""
    pairs = list(zip(hypotheses, references, strict=True))
    return sum(hypothesis == reference for hypothesis, reference in pairs) / len(pairs)
