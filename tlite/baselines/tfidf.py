"""TF-IDF and logistic regression by scikit-learn: the baseline of every classifier."""

from collections.abc import Sequence

import numpy as np

from tlite.errors import needs_extra

C_VALUES = 0.3, 1.0, 3.0, 10.0, 30.0


def tfidf_logistic_regression(texts: Sequence[str], labels: Sequence[int]):
    """Return a scikit-learn pipeline fitted to texts and labels.

    Features are words and bigrams that occur in at least two texts, weighted by
    (1 + log count) * (1 + log((1 + N) / (1 + document frequency))) and scaled to length 1. C, the
    inverse strength of the L2 penalty, is the value in `C_VALUES` with the best accuracy on a
    stratified fifth of the texts, on which the final fit is trained too; 3 if a class has fewer
    than two texts, or the fifth fewer texts than classes.

    Raises:
        ValueError: no word occurs in two texts.
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
    test_size = len(labels) // 5
    with threadpool_limits(1):  # more threads are 20 times slower on small problems
        if counts.min() >= 2 and test_size >= len(counts):
            split = StratifiedShuffleSplit(1, test_size=test_size, random_state=0)
            search = GridSearchCV(classifier, {"C": C_VALUES}, cv=split, refit=False)
            classifier.set_params(**search.fit(features, labels).best_params_)
        return make_pipeline(vectorizer, classifier.fit(features, labels))
