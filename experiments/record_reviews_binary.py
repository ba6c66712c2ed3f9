"""Whether a review is negative or positive: `record_reviews` of two classes.

command   make record-reviews-binary   (five seeds)
"""

import dataclasses

from experiments.record_reviews import experiment as record
from experiments.reviews_binary import experiment as binary

experiment = dataclasses.replace(record, name="record_reviews_binary", data=binary.data)
