"""Models and tokenizers of Hugging Face folders: load and save."""

from tlite.pretrained.folders import Pretrained, is_pretrained, load_pretrained, local_folder
from tlite.pretrained.saving import save_pretrained
from tlite.pretrained.tokenizers import PretrainedTokenizer, learn_bpe

__all__ = [name for name in globals() if name[0] != "_"]  # offered, to type checkers too
