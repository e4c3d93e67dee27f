"""Failed logins by address: in a time that the tests tell, and in bounded memory."""

from functools import partial
from hashlib import sha256

import pytest

from meup_agent.gateway import auth
from meup_agent.gateway.admission import NotAdmitted, identify
from meup_agent.gateway.auth import (
    AuthThrottle,
    AuthThrottled,
    Identity,
    Tokens,
    network_of,
)

ANN = Identity("demo", "ann")
SECOND = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.at = 0

    def __call__(self) -> int:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def throttle(clock: Clock) -> AuthThrottle:
    return AuthThrottle(Tokens([("right", ANN)]), 2, 10.0, clock)


def test_right_tokens_are_not_looked_at_after_too_many_wrong_ones(
    throttle: AuthThrottle, clock: Clock
) -> None:
    assert throttle.identify("right", "10.0.0.1") == ANN
    assert [throttle.identify("wrong", "10.0.0.1") for _ in range(2)] == [None, None]
    with pytest.raises(AuthThrottled) as refused:
        throttle.identify("right", "10.0.0.1")
    assert refused.value.retry_after == 10
    assert throttle.identify("right", "10.0.0.2") == ANN
    clock.at = 10 * SECOND
    assert throttle.identify("right", "10.0.0.1") == ANN


def test_refused_attempts_do_not_prolong_the_refusal(throttle: AuthThrottle, clock: Clock) -> None:
    for _ in range(2):
        throttle.identify("wrong", "10.0.0.1")
    for clock.at in range(0, 10 * SECOND, SECOND):
        with pytest.raises(AuthThrottled):
            throttle.identify("wrong", "10.0.0.1")
    clock.at = 10 * SECOND
    assert throttle.identify("wrong", "10.0.0.1") is None


def test_a_refusal_says_when_to_try_again(throttle: AuthThrottle) -> None:
    look_up = partial(throttle.identify, address="10.0.0.1")
    for _ in range(2):
        with pytest.raises(NotAdmitted):
            identify("wrong", look_up)
    with pytest.raises(NotAdmitted) as refused:
        identify("right", look_up)
    assert (refused.value.status, refused.value.close_code) == (429, 1013)
    assert refused.value.headers == {"Retry-After": "10"}


def test_addresses_are_forgotten(throttle: AuthThrottle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MAX_ADDRESSES", 3)
    for number in range(10):
        throttle.identify("wrong", f"10.0.0.{number}")
    assert len(throttle) == 3
    throttle.identify("wrong", "10.0.0.9")
    with pytest.raises(AuthThrottled):
        throttle.identify("right", "10.0.0.9")


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
    digits = sha256(b"invited").hexdigest()
    tokens.add(digits, ANN)
    assert tokens.identify("invited") == ANN
    tokens.forget(digits)
    assert tokens.identify("invited") is None
