"""The streams of one space at an existing `mew/v0.4` gateway: who opened them, who may write."""

from dataclasses import dataclass, field

from tests.conformance.matcher import Json


@dataclass
class Streams:
    """Counts on over the life of the space; what a departed participant opened stays open.

    Attributes:
        active: by stream id, what the welcome tells of it.
    """

    active: dict[str, Json] = field(default_factory=dict)
    _opened: int = 0

    def open(self, owner: str | None, request: Json, created: str) -> Json:
        """Opens what a `stream/request` with this payload asks for, and says what it became."""
        self._opened += 1
        stream_id = f"stream-{self._opened}"
        given = {"stream_id": stream_id, "owner": owner, "authorized_writers": [owner]}
        self.active[stream_id] = request | given | {"created": created}
        return {"stream_id": stream_id, "encoding": "text"} | {
            key: given[key] for key in ("owner", "authorized_writers")
        }

    def close(self, stream_id: object) -> None:
        if isinstance(stream_id, str):
            self.active.pop(stream_id, None)

    def refusal(self, frame: str, writer: str | None) -> Json | None:
        """The refusal of a `#stream#data` frame for its writer; None: it is relayed."""
        stream_id = frame[1 : frame.index("#", 1)]
        if stream_id in self.active and writer in self.active[stream_id]["authorized_writers"]:
            return None
        message = f"You are not authorized to write to stream {stream_id}"
        return {"error": "unauthorized_stream_write", "stream_id": stream_id, "message": message}


def is_stream_frame(text: str) -> bool:
    return text.startswith("#") and "#" in text[1:]
