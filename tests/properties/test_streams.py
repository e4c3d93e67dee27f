"""The streams of one participant, whatever others, the gateway and the connection do with them."""

from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from meup_agent.protocol.exchange import OwnStream, StreamBuffer, StreamEnd
from tests.effort import run_machine
from tests.protocol.exchange.peer import ME, Peer, of, said
from tests.tables import MAX_UNREAD_FRAMES, Role, Start
from tests.wire import StreamInfo, build_close, build_open, kinds

OTHERS = ("bob", "carol")
FOR_US = st.sampled_from([(), (ME,), ("bob",), ("carol", ME)])
MANY = MAX_UNREAD_FRAMES + 3


class Reader:
    """A buffer, and the frames that should come out of it."""

    def __init__(self, buffer: StreamBuffer) -> None:
        self.buffer = buffer
        self.expected: list[bytes] = []
        self.lost = 0
        self.end: StreamEnd | None = None
        self.gone = False

    def come(self, frame: bytes) -> None:
        self.expected.append(frame)
        if len(self.expected) > MAX_UNREAD_FRAMES:
            del self.expected[0]
            self.lost += 1


class Streams(RuleBasedStateMachine):
    """A gateway that opens, changes, closes and forgets streams, and a participant in its space.

    The machine's own notes are the gateway's: which streams are open, and who may write them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peer = Peer(roles=[Role.STREAM])
        self.open: dict[str, StreamInfo] = {}
        self.own: dict[str, OwnStream] = {}
        self.asked: list[OwnStream] = []
        self.readers: list[Reader] = []
        self.count = 0
        self.ends: dict[str, str] = {}

    @property
    def streams(self) -> Any:
        return self.peer.table.streams

    def _new(self, owner: str, **more: Any) -> StreamInfo:
        self.count += 1
        targets = more.pop("targets", ())
        fields = {"direction": "upload", "n": self.count, **more.pop("fields", {})}
        fields |= {"target": list(targets)} if targets else {}
        return StreamInfo(
            f"s-{self.count}",
            owner,
            (owner,),
            targets=targets,
            created=f"t{self.count}",
            fields=fields,
        )

    def _note_started(self) -> None:
        """Find the readers of the handlers that were started."""
        known = [each.buffer for each in self.readers]
        started = [each.work.subject for each in of(self.peer.effects, Start)]
        for buffer in started:
            if isinstance(buffer, StreamBuffer) and buffer not in known:
                self.readers.append(Reader(buffer))
        self.peer.effects.clear()

    def _ended(self, stream: str, reason: str) -> None:
        self.open.pop(stream, None)
        self.ends[stream] = reason
        for each in self.readers:
            if each.buffer.stream.id == stream and each.end is None and not each.gone:
                each.end = StreamEnd(reason)
        self.own.pop(stream, None)

    def _welcome(self) -> None:
        payload = {
            "you": {"id": ME, "capabilities": [{"kind": "*"}]},
            "participants": [{"id": each} for each in OTHERS],
            "active_streams": [each.to_wire() for each in self.open.values()],
        }
        self.peer.system(kinds.SYSTEM_WELCOME, payload, to=(ME,))
        self._note_started()

    @initialize(before=st.lists(FOR_US, max_size=3))
    def join(self, before: list[tuple[str, ...]]) -> None:
        for targets in before:
            info = self._new("bob", targets=targets)
            self.open[info.id] = info
        self._welcome()

    # --- streams of others ---

    @rule(whom=FOR_US, told=st.sampled_from(["all", "before", "after"]))
    def another_opens(self, whom: tuple[str, ...], told: str) -> None:
        info = self._new("bob", targets=whom)
        request = f"r-{self.count}"
        self.open[info.id] = info

        def say_request() -> None:
            self.peer.hears(kinds.STREAM_REQUEST, info.fields, sender="bob", id=request)

        if told == "before":
            say_request()
        bare = {key: build_open(info)[key] for key in ("stream_id", "owner", "authorized_writers")}
        bare |= {"created": info.created} | ({"target": list(whom)} if whom else {})
        payload = build_open(info) if told == "all" else bare
        self.peer.system(kinds.STREAM_OPEN, payload, correlation=(request,))
        if told == "after":
            say_request()
        self._note_started()

    @precondition(lambda self: self.open)
    @rule(data=st.data(), by=st.sampled_from([kinds.GATEWAY, "bob"]))
    def is_closed(self, data: st.DataObject, by: str) -> None:
        stream = data.draw(st.sampled_from(sorted(self.open)))
        payload = build_close(stream, "complete")
        self.peer.hears(kinds.STREAM_CLOSE, payload, sender=by, id=f"c-{stream}")
        self._ended(stream, "complete")

    @precondition(lambda self: self.open)
    @rule(data=st.data(), writers=st.sets(st.sampled_from([ME, *OTHERS])))
    def writers_change(self, data: st.DataObject, writers: set[str]) -> None:
        stream = data.draw(st.sampled_from(sorted(self.open)))
        info = self.open[stream]
        names = tuple(sorted({info.owner, *writers}))
        payload = {"stream_id": stream, "participant_id": "bob", "authorized_writers": names}
        self.peer.system(kinds.STREAM_WRITE_GRANTED, payload)
        self.open[stream] = msgspec.structs.replace(info, writers=names)
        own = self.own.get(stream)
        if own is not None and ME not in names:
            del self.own[stream]
            assert own.end is not None
            assert own.end.reason == "revoked"

    @precondition(lambda self: self.open)
    @rule(data=st.data(), new_owner=st.sampled_from([ME, *OTHERS]))
    def owner_changes(self, data: st.DataObject, new_owner: str) -> None:
        stream = data.draw(st.sampled_from(sorted(self.open)))
        info = self.open[stream]
        names = tuple(sorted({*info.writers, new_owner}))
        payload = {
            "stream_id": stream,
            "previous_owner": info.owner,
            "new_owner": new_owner,
            "authorized_writers": names,
        }
        self.peer.system(kinds.STREAM_OWNERSHIP_TRANSFERRED, payload)
        self.open[stream] = msgspec.structs.replace(info, owner=new_owner, writers=names)

    @precondition(lambda self: self.count)
    @rule(data=st.data(), frames=st.sampled_from([1, 2, MANY]))
    def frames_come(self, data: st.DataObject, frames: int) -> None:
        stream = f"s-{data.draw(st.integers(1, self.count))}"  # open, closed or not ours
        for number in range(frames):
            frame = f"{stream} {self.peer.now} {number}".encode()
            self.peer.did(self.peer.table.receive_frame(stream, frame, self.peer.now))
            for each in self.readers:
                if each.buffer.stream.id == stream and each.end is None and not each.gone:
                    each.come(frame)
        self.peer.now += 1
        self._note_started()

    # --- our own ---

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def one_more_reads(self, data: st.DataObject) -> None:
        stream = data.draw(st.sampled_from(sorted(self.open)))
        self.readers.append(Reader(self.streams.read(stream)))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), count=st.integers(0, 5))
    def a_reader_takes(self, data: st.DataObject, count: int) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        buffer = reader.buffer
        for _ in range(count):
            expected = reader.expected.pop(0) if reader.expected else None
            assert buffer.take() == expected

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def a_reader_goes(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        reader.buffer.close()
        reader.gone = True

    @rule()
    def we_ask(self) -> None:
        self.count += 1
        payload = {"direction": "upload", "ours": self.count}
        own, effects = self.peer.table.request_stream(payload, (), self.peer.now)
        self.peer.did(effects)
        self.asked.append(own)

    @precondition(lambda self: self.asked)
    @rule(opens=st.booleans())
    def it_is_answered(self, opens: bool) -> None:
        own = self.asked.pop(0)
        if not opens:
            self.peer.refused(own.request_id)
            assert own.refusal is not None
            assert own.stream is None
            return
        info = self._new(ME, fields=own.payload)
        self.peer.system(kinds.STREAM_OPEN, build_open(info), correlation=(own.request_id,))
        assert own.stream is not None
        origin = own.stream.origin
        assert origin is not None
        assert (origin.by, origin.request) == (ME, own.request_id)
        info = msgspec.structs.replace(info, origin=origin)
        assert own.stream == info
        self.open[info.id] = info
        self.own[info.id] = own

    @precondition(lambda self: self.asked)
    @rule()
    def we_want_it_no_more(self) -> None:
        own = self.asked.pop(0)
        close = self.peer.table.close_stream
        self.peer.did(close(own, "cancelled", "", self.peer.now))
        info = self._new(ME, fields=own.payload)
        self.peer.system(kinds.STREAM_OPEN, build_open(info), correlation=(own.request_id,))
        assert said(self.peer.effects, kinds.STREAM_CLOSE)[-1].payload["stream_id"] == info.id

    @precondition(lambda self: self.own)
    @rule(data=st.data())
    def we_close(self, data: st.DataObject) -> None:
        stream = data.draw(st.sampled_from(sorted(self.own)))
        own = self.own.pop(stream)
        self.peer.did(self.peer.table.close_stream(own, "complete", "", self.peer.now))
        if self.open[stream].owner == ME:
            self._ended(stream, "complete")

    # --- the connection ---

    @rule(data=st.data())
    def connection_is_cut(self, data: st.DataObject) -> None:
        """Some streams are gone when we come back, or are others of the same id."""
        self.peer.did(self.peer.table.connection_lost(self.peer.now))
        for stream in sorted(self.open):
            becomes = data.draw(st.sampled_from(["same", "same", "gone", "another"]))
            if becomes != "same":
                self._ended(stream, "disconnected")
            if becomes == "another":
                other = self._new("carol")
                self.open[stream] = msgspec.structs.replace(other, id=stream)
        self._welcome()

    # --- at any time ---

    @invariant()
    def the_open_streams_are_the_gateways(self) -> None:
        assert {each.id: each.owner for each in self.streams.streams} == {
            name: each.owner for name, each in self.open.items()
        }
        assert {each.id: each.writers for each in self.streams.streams} == {
            name: each.writers for name, each in self.open.items()
        }

    @invariant()
    def no_frame_is_lost_uncounted_and_none_comes_twice(self) -> None:
        for each in self.readers:
            assert (len(each.buffer), each.buffer.lost) == (len(each.expected), each.lost)

    @invariant()
    def every_reader_knows_the_end_of_its_stream(self) -> None:
        for each in self.readers:
            if not each.gone:
                reason = None if each.buffer.end is None else each.buffer.end.reason
                assert reason == (None if each.end is None else each.end.reason)

    @invariant()
    def only_open_streams_have_readers_and_writers(self) -> None:
        waiting = [each for each in self.readers if each.end is None and not each.gone]
        assert len(self.streams.buffers) == len(waiting)
        for stream, own in self.own.items():
            assert own.end is None
            assert ME in self.open[stream].writers
        assert len(self.streams.own_streams()) == len(self.own) + len(self.asked)


@pytest.mark.rule("8.behind", "8.reconnect")
def test_streams_of_a_participant_in_any_order() -> None:
    run_machine(Streams, 200, steps=40)
