"""An experiment: data, model and training in one frozen dataclass, to be varied and saved."""

from dataclasses import dataclass, field

from tlite.data import BuiltinText, TextSource
from tlite.models import GeneratorConfig
from tlite.training.config import TrainingConfig


@dataclass(frozen=True)
class GeneratorExperiment:
    """Train a `TransformerGenerator` to predict the next character of a text."""

    name: str
    """Names the folder of its runs."""
    data: TextSource = field(default_factory=BuiltinText)
    """Where the text comes from."""
    model: GeneratorConfig = field(default_factory=GeneratorConfig)
    """The switches of the model."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """How it is trained."""
    prompt: str = "\n"
    """What the sample at the end of training starts from."""
