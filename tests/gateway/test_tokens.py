"""Tokens: the participants that they name, and the header that carries them."""

import pytest

from meup_agent.gateway.edge.handshake import bearer
from tests.gateways import Identity, NotAdmitted, Tokens, digest_of_token, new_token


@pytest.mark.parametrize("token", ["", "c", "A", "a ", "é", "\ud800", "a" * 100_000])
def test_other_tokens_tell_nothing(token: str) -> None:
    known = Tokens([(digest_of_token("a"), Identity("demo", "alice"))])
    assert known.identify(token) is None


def test_tokens_are_not_kept() -> None:
    tokens = Tokens([(digest_of_token("very-secret"), Identity("demo", "alice"))])
    assert "very-secret" not in repr(vars(tokens))


def test_new_tokens_differ_and_fit_in_a_header() -> None:
    first, second = new_token(), new_token()
    assert first != second
    assert len(first) >= 43
    assert bearer(f"bearer  {first} ") == first


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic abc", "abc"])
def test_other_authorization_is_refused(header: str) -> None:
    with pytest.raises(NotAdmitted) as refused:
        bearer(header)
    assert refused.value.status == 401
    assert "abc" not in str(refused.value)
