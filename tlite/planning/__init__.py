"""Plan a training step on devices that do not exist."""
