"""TF-IDF and logistic regression, by scikit-learn: the row that every classifier stands beside."""

from collections.abc import Sequence

import numpy as np

from tlite.errors import needs_extra


def tfidf_logistic_regression(texts: Sequence[str], labels: Sequence[int]):
    """A pipeline fitted to texts and labels; its `predict` takes texts.

    Words and pairs of neighbouring words that occur in two texts or more, weighted
    (1 + log count) * log(N / document frequency) and scaled to length 1; C = 3.
    """
    with needs_extra("text"):
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
    return make_pipeline(
        TfidfVectorizer(sublinear_tf=True, min_df=2, ngram_range=(1, 2)),
        LogisticRegression(C=3, max_iter=1000),
    ).fit(list(texts), np.asarray(labels))
