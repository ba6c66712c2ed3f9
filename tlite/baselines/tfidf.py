"""TF-IDF and logistic regression by scikit-learn: the baseline of every classifier."""

from collections.abc import Sequence

import numpy as np

from tlite.errors import needs_extra

REGULARIZATION = 0.3, 1.0, 3.0, 10.0, 30.0


def tfidf_logistic_regression(texts: Sequence[str], labels: Sequence[int]):
    """A pipeline fitted to texts and labels; its `predict` takes texts.

    Words and pairs of neighbouring words that occur in two texts or more, weighted
    (1 + log count) * log(N / document frequency) and scaled to length 1. C, the inverse strength of
    the L2 penalty, is the best of `REGULARIZATION` by the accuracy on a stratified fifth of the
    texts, which the final fit uses too; 3 where there are too few texts for that.

    Raises:
        ValueError: no word is in two texts.
    """
    with needs_extra("text"):
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GridSearchCV, StratifiedShuffleSplit
        from sklearn.pipeline import make_pipeline
        from threadpoolctl import threadpool_limits
    vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=2, ngram_range=(1, 2))
    classifier = LogisticRegression(C=3, max_iter=1000)
    features, labels = vectorizer.fit_transform(list(texts)), np.asarray(labels)
    _, counts = np.unique(labels, return_counts=True)
    fifth = len(labels) // 5
    with threadpool_limits(1):  # threads that wait for each other cost 20 times the time
        if counts.min() >= 2 and fifth >= len(counts):
            split = StratifiedShuffleSplit(1, test_size=fifth, random_state=0)
            search = GridSearchCV(classifier, {"C": REGULARIZATION}, cv=split, refit=False)
            classifier.set_params(**search.fit(features, labels).best_params_)
        return make_pipeline(vectorizer, classifier.fit(features, labels))
