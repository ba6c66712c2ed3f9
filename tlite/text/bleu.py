"""BLEU by sacrebleu, which names in its signature how it was computed."""

from collections.abc import Sequence

from tlite.errors import needs_extra


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> tuple[float, str]:
    """Corpus BLEU (0 to 100) of whole, untokenised sentences, and sacrebleu's signature.

    sacrebleu tokenises both sides itself (13a). With `lowercase` it is the figure that papers on
    Multi30k call lower-cased and tokenised.
    """
    with needs_extra("text"):
        from sacrebleu.metrics import BLEU
    metric = BLEU(lowercase=lowercase, tokenize="13a")
    return metric.corpus_score(list(hypotheses), [list(references)]).score, str(
        metric.get_signature()
    )


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Share of the hypotheses that are the reference, to the letter."""
    pairs = list(zip(hypotheses, references, strict=True))
    return sum(hypothesis == reference for hypothesis, reference in pairs) / len(pairs)
