"""Models and tokenizers of Hugging Face folders: load and save."""

from tlite.pretrained.folders import Pretrained, is_pretrained, load_pretrained, local_folder
from tlite.pretrained.saving import save_pretrained
from tlite.pretrained.tokenizers import PretrainedTokenizer, learn_bpe

__all__ = [
    "Pretrained", "PretrainedTokenizer", "is_pretrained", "learn_bpe", "load_pretrained",
    "local_folder", "save_pretrained",
]  # fmt: skip
