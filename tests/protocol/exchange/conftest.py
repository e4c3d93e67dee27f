import pytest

from tests.protocol.exchange.peer import Peer


@pytest.fixture
def me() -> Peer:
    peer = Peer.among("alice", "bob", "tool")
    peer.effects.clear()
    return peer
