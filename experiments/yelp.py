"""The stars of Yelp's reviews, from 1 to 5, with the settings of `reviews`.

The 650,000 reviews are read from the Hugging Face hub; a hundredth of them is held out.

command   tlite train yelp
          tlite train yelp --labels 0 negative 1 negative 2 "" 3 positive 4 positive
result    not measured: the hub was out of reach
"""

from experiments.reviews import STARS
from experiments.reviews import experiment as reviews
from tlite import override
from tlite.data import LabelledText

data = LabelledText(
    hub="Yelp/yelp_review_full",
    training=("train",),
    test=("test",),
    validation_fraction=0.01,
    split_by="row",
    text_column="text",
    label_column="label",
    labels={str(index): name for index, name in enumerate(STARS)},
)
experiment = override(reviews, {"name": "yelp", "data": data})
