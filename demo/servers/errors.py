"""The one error of this package."""

from __future__ import annotations


class ServerUnavailable(Exception):
    """A server could not be had; the text is one sentence, followed by the end of its log if there is one."""

    def __init__(self, sentence: str, *, log_tail: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.log_tail = log_tail

    def __str__(self) -> str:
        if not self.log_tail:
            return self.sentence
        return f"{self.sentence}\nThe end of its log:\n{self.log_tail}"
