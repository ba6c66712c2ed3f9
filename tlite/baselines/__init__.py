"""Baselines that a transformer has to beat: logistic regression, naive Bayes, TF-IDF."""

from tlite.models.logistic import (
    LogisticConfig,
    LogisticRegression,
    bag_of_words,
    binary_cross_entropy,
    gradient_descent,
    log_count_ratios,
    logistic_regression,
    parabolic_average,
    with_bigrams,
)

__all__ = [
    "LogisticConfig", "LogisticRegression", "bag_of_words", "binary_cross_entropy",
    "gradient_descent", "log_count_ratios", "logistic_regression", "parabolic_average",
    "with_bigrams",
]  # fmt: skip
