"""Several processes as one run: their places, how they agree and are started; and devices."""
