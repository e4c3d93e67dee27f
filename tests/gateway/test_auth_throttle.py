"""Failed logins by address: in a time that the tests tell, and in bounded memory."""

import pytest

from meup_agent.gateway import GatewayLimits, auth
from meup_agent.gateway.auth import TOO_MANY, UNAUTHORIZED, AuthThrottle
from meup_agent.protocol.space.allowance import network_of
from tests.gateway.conftest import Clock
from tests.gateways import Identity, NotAdmitted, Tokens, digest_of_token, new_token

ANN = Identity("demo", "ann")
BOB = Identity("demo", "bob")
LONG = new_token()
SECOND = 1_000_000


@pytest.fixture
def throttle(clock: Clock) -> AuthThrottle:
    limits = GatewayLimits(failed_tokens=2, failed_token_seconds=10.0)
    return AuthThrottle(
        Tokens([(digest_of_token("right"), ANN), (digest_of_token(LONG), BOB)]), limits, clock
    )


def refuse(throttle: AuthThrottle, token: str, address: str) -> NotAdmitted:
    """The refusal of a token that came from an address."""
    with pytest.raises(NotAdmitted) as refused:
        throttle.identify(token, address)
    return refused.value


@pytest.mark.limit("failed_tokens", "failed_token_seconds")
def test_short_tokens_wait_after_too_many_wrong_ones(throttle: AuthThrottle, clock: Clock) -> None:
    # The right one is never counted.
    assert [throttle.identify("right", "10.0.0.1") for _ in range(5)] == [ANN] * 5
    wrong = [refuse(throttle, "wrong", "10.0.0.1") for _ in range(2)]
    assert [each.status for each in wrong] == [UNAUTHORIZED, UNAUTHORIZED]
    refused = refuse(throttle, "right", "10.0.0.1")
    assert (refused.status, refused.retry_after) == (429, 10)
    assert (refused.close_code, refused.headers) == (1013, {"Retry-After": "10"})
    assert throttle.identify("right", "10.0.0.2") == ANN
    clock.at = 10 * SECOND
    assert throttle.identify("right", "10.0.0.1") == ANN


@pytest.mark.rule("3.guesses.long")
def test_a_token_that_cannot_be_guessed_is_only_looked_up(throttle: AuthThrottle) -> None:
    for _ in range(3):
        refuse(throttle, "wrong", "10.0.0.1")
    assert throttle.identify(LONG, "10.0.0.1") == BOB
    wrong = [refuse(throttle, new_token(), "10.0.0.1").status for _ in range(10)]
    assert wrong == [UNAUTHORIZED] * 10
    assert [refuse(throttle, new_token(), "10.0.0.2").status for _ in range(10)] == wrong
    assert throttle.identify("right", "10.0.0.2") == ANN


def test_refused_attempts_do_not_prolong_the_refusal(throttle: AuthThrottle, clock: Clock) -> None:
    for _ in range(2):
        refuse(throttle, "wrong", "10.0.0.1")
    for clock.at in range(0, 10 * SECOND, SECOND):
        assert refuse(throttle, "wrong", "10.0.0.1").status == TOO_MANY
    clock.at = 10 * SECOND
    assert refuse(throttle, "wrong", "10.0.0.1").status == UNAUTHORIZED


def test_addresses_are_forgotten(throttle: AuthThrottle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MAX_REMEMBERED", 3)
    for number in (0, 1, 2, 3, 3, 0):
        refuse(throttle, "wrong", f"10.0.0.{number}")
    assert throttle.identify("right", "10.0.0.0") == ANN
    assert refuse(throttle, "right", "10.0.0.3").status == TOO_MANY


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("", ""),
        ("/run/gateway.sock", "/run/gateway.sock"),
    ],
)
def test_a_network_stands_for_its_addresses(address: str, network: str) -> None:
    assert network_of(address) == network


def test_tokens_come_and_go() -> None:
    tokens = Tokens()
    digest = digest_of_token("invited")
    tokens.add(digest, ANN)
    assert tokens.identify("invited") == ANN
    tokens.forget(digest)
    assert tokens.identify("invited") is None
