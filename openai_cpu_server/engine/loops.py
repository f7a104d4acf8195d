"""Detection of outputs that repeat themselves without an end, as small models write them."""

from __future__ import annotations

from collections import deque

LOOP_TOKENS = 1024
"""Repeated tokens that count as a loop. Real repetition is shorter. In SmolLM2's vocabulary 1,000 blanks are
17 tokens, 1,000 line ends 250, 4 KiB of zeros in base64 685, a sentence 100 times 800, and 64 equal rows of
a table 896."""
LONGEST_PERIOD = 256
"""Tokens of the longest repeated passage, which then stands there five times."""
_INTERVAL = 64
"""Tokens between two looks, which make the cost of a token constant and small."""


class LoopDetector:
    """Detector of a loop, which depends on the tokens alone. No schedule, draft or crash moves the end."""

    def __init__(self) -> None:
        self._recent: deque[str] = deque(maxlen=LOOP_TOKENS + LONGEST_PERIOD)
        self._num_tokens = 0

    def read(self, token: int) -> bool:
        """Read the next token, as a character because texts are searched fast; return True in a loop."""
        self._recent.append(chr(token))
        self._num_tokens += 1
        if self._num_tokens % _INTERVAL or self._num_tokens <= LOOP_TOKENS:
            return False
        recent = "".join(self._recent)
        return recent[-LOOP_TOKENS:] in recent[:-1]
