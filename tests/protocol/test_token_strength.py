"""Tokens that could be guessed, and those that are random and long."""

import random
import secrets
import string
import uuid

import pytest

from meup_agent.protocol.wire.membership import is_guessable
from tests.gateways import new_token

SEEDS = range(500)

OURS = string.ascii_letters + string.digits + "-_"


@pytest.mark.parametrize(
    ("alphabet", "length"),
    [(OURS, 43), (OURS, 22), (string.hexdigits[:16], 32), (string.digits, 45)],
    ids=["ours", "16 bytes", "openssl rand -hex 16", "digits"],
)
def test_random_tokens_of_128_bits_are_not_guessable(alphabet: str, length: int) -> None:
    for seed in SEEDS:
        chosen = random.Random(seed)
        token = "".join(chosen.choice(alphabet) for _ in range(length))
        assert not is_guessable(token), token


def test_what_programs_make_is_not_guessable() -> None:
    made = (new_token(), secrets.token_hex(32), str(uuid.uuid4()), f"prefix.of.all.{new_token()}")
    assert [is_guessable(each) for each in made] == [False] * 4


@pytest.mark.parametrize(
    "token",
    [
        "",
        "x",
        "secret",
        "alice-token",
        "4711",
        "correct-horse-battery-staple",
        "CorrectHorseBattery",
        "the-very-long-token-of-alice-in-demo",
        "a" * 1_000,
        "abc123" * 100,
        "01" * 64,
        "".join(random.Random(0).choice(OURS) for _ in range(20)),
        "".join(random.Random(0).choice("0123456789abcdef") for _ in range(30)),
        "".join(random.Random(0).choice(string.digits) for _ in range(37)),
        f"{new_token()}:{'0' * 100}",
    ],
)
def test_short_tokens_words_and_repetitions_are_guessable(token: str) -> None:
    assert is_guessable(token)
