"""tlite: transformers as short pure functions, with what it takes to train and study them."""
