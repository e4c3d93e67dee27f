import pytest

from tests.protocol.exchange.peer import Peer


@pytest.fixture
def me() -> Peer:
    """A participant with handlers for requests and proposals, in a space with a few others."""
    peer = Peer.among("alice", "bob", "tool")
    peer.effects.clear()
    return peer
