"""The strength of a token: one that cannot be guessed needs no throttle (PROTOCOL 3)."""

from __future__ import annotations

from itertools import pairwise
from string import ascii_lowercase, ascii_uppercase, digits, hexdigits
from typing import Final

STRONG_TOKEN_BITS: Final = 128
"""Bits from which on a token cannot be guessed, however often it is tried."""

_READ_CHARS: Final = 64
"""The last characters, which are read: a prefix or a header says nothing of what follows."""


def is_guessable(token: str) -> bool:
    """True if a token has fewer than 128 bits, as far as its characters tell.

    Random characters have as many bits as their alphabet. Letters of one case without a digit are
    taken for words, and what repeats itself has next to none.
    """
    read = token[-_READ_CHARS:]
    repeats = 2 * len(set(pairwise(read))) < len(read) - 1
    return repeats or len(read) * _bits_per_char(set(read)) < STRONG_TOKEN_BITS


def _bits_per_char(chars: set[str]) -> float:
    if chars <= {*digits}:
        return 3.3
    if not (chars.isdisjoint(ascii_lowercase) or chars.isdisjoint(ascii_uppercase)):
        return 6
    if chars.isdisjoint(digits):
        return 2
    return 4 if chars <= {*hexdigits} else 5
