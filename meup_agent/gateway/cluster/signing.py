"""Signatures of what gateways say of themselves, so that nobody else can name gateways.

A message is signed with the cluster's token, and numbered: a receiver that knows the last number of
its sender takes none of before again. An answer is signed with its question, so that one to a
question which nobody asked before is of now. Without a token a signature proves nothing.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from itertools import count
from typing import Final, NamedTuple

SIGNATURE_BYTES: Final = 32

NUMBER_BYTES: Final = 8

LABEL: Final = b"meup gateway"
"""Signed with each message: the token also proves who forwards connections."""


class SignedMessage(NamedTuple):
    """A message as it came."""

    is_genuine: bool
    number: int
    body: bytes


class Signer:
    """Signs the messages of one sender, and checks those of others; from any thread.

    Args:
        token: The cluster's token; empty: there is none.
    """

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._numbers = count(1)

    def sign(self, body: bytes, question: bytes = b"") -> bytes:
        """The message with a body, whose number is above that of all before."""
        numbered = next(self._numbers).to_bytes(NUMBER_BYTES) + body
        return self._signature(numbered, question) + numbered

    def read(self, message: bytes, question: bytes = b"") -> SignedMessage:
        """The content of a message, genuine or not; of an answer, to that question."""
        signature, numbered = message[:SIGNATURE_BYTES], message[SIGNATURE_BYTES:]
        is_genuine = hmac.compare_digest(signature, self._signature(numbered, question))
        number, body = numbered[:NUMBER_BYTES], numbered[NUMBER_BYTES:]
        return SignedMessage(is_genuine, int.from_bytes(number), body)

    def _signature(self, numbered: bytes, question: bytes) -> bytes:
        # Its digest, whose length is known: nobody asks for the beginning of another message.
        return hmac.digest(self._token, LABEL + sha256(question).digest() + numbered, sha256)
