"""What a step of training would take on devices that are not there."""
