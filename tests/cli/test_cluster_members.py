"""The record of a member of `meup cluster demo`, at a gateway that acknowledges what it says."""

import anyio

from meup_agent import Agent
from meup_agent.cli.cluster.members import SETTINGS, ClusterConnector, Record, say
from meup_agent.gateway import Gateway
from meup_agent.protocol.wire import kinds
from tests.patience import PATIENCE


class AwaitedRecord(Record):
    """A record that says when a chat was accepted."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.has_accepted = anyio.Event()

    def accept(self, envelope_id: str) -> None:
        super().accept(envelope_id)
        if self.sent[envelope_id] == kinds.CHAT:
            self.has_accepted.set()


async def test_what_a_member_says_is_taken_down_as_accepted_and_as_read() -> None:
    record, other = AwaitedRecord("alice"), AwaitedRecord("bob")
    chats = {"alice": [{"kind": "chat"}], "bob": [{"kind": "chat"}]}
    with Gateway(participants=chats).in_thread() as gateway, anyio.fail_after(PATIENCE):
        joined = [
            Agent(each.name).join(
                ClusterConnector([gateway.url], 0, each),
                space="demo",
                token=gateway.token(each.name),
                participant=each.name,
                settings=SETTINGS,
            )
            for each in (other, record)
        ]
        async with joined[0] as beside, joined[1] as space:
            await say(space, record, "hi")
            await record.has_accepted.wait()
            # Behind its own acknowledgement, the other has read what came before it.
            await say(beside, other, "hi")
            await other.has_accepted.wait()
    (told,) = record.said
    assert not record.waiting
    (read,) = [each for each in record.heard if each.id == told]
    assert read in other.heard
    assert (read.sender, read.kind) == ("alice", "chat")
