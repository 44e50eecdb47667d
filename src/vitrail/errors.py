"""The one kind of error that a user is meant to read."""

import difflib
from collections.abc import Iterable
from typing import Any


class VitrailError(Exception):
    """One sentence for a person: what was found, what was expected, what to do. For a program a short `code`, where one
    has to tell such errors apart, and `fields` with the values. The command line prints the sentence and exits with 2.
    """

    def __init__(self, sentence: str = "", code: str = "", **fields: Any):
        super().__init__(sentence)
        self.code, self.fields = code, fields


def extra(name: str) -> str:
    """How to get what an optional part needs."""
    return f"pip install 'vitrail[{name}]' (in a clone: .venv/bin/python -m pip install -e '.[{name}]')"


def nearest(word: str, choices: Iterable[str]) -> str:
    """' Did you mean "x"?' to end an error about an unknown word, or '' when no choice is close enough to help."""
    found = closest(word, choices)
    return f' Did you mean "{found}"?' if found else ""


def closest(word: str, choices: Iterable[str]) -> str:
    """The choice that is most like the word, or '' when none is close enough.

    Case is ignored, because "ViT_B16" for "vit_b16" is the commonest slip and counts for much in the likeness.
    """
    by_lower_case = {choice.lower(): choice for choice in choices}
    matches = difflib.get_close_matches(word.lower(), by_lower_case, n=1)
    return by_lower_case[matches[0]] if matches else ""
