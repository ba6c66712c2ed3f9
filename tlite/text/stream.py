"""Text of tokens as they come."""

from collections.abc import Callable

import numpy as np

BROKEN = "\N{REPLACEMENT CHARACTER}"  # what part of a character is decoded to


class Stream:
    """Ids one after another as text, of which no piece ends within a character.

    Args:
        decode: the text of ids.
        prompt: the ids before the first: what follows may begin with a space because of them.
    """

    def __init__(self, decode: Callable[[list[int]], str], prompt=()):
        self._decode = decode
        self._ids: list[int] = []
        self._told = 0  # of these ids: they are decoded with those that follow, as a whole text is
        self.push(prompt)

    def push(self, tokens) -> str:
        """The text that is certain now; what is missing comes with later ids."""
        return "".join(map(self._step, np.asarray(tokens).reshape(-1).tolist()))

    def _step(self, token: int) -> str:
        self._ids.append(int(token))
        text = self.finish()
        if not text or text.endswith(BROKEN):
            return ""
        self._ids = self._ids[self._told :]
        self._told = len(self._ids)
        return text

    def finish(self) -> str:
        """What is left once no id follows."""
        return self._decode(self._ids)[len(self._decode(self._ids[: self._told])) :]
