"""Frames and envelopes that the tests of the dialects read and write."""

import json
from typing import Any

import pytest
from hypothesis import strategies as st

from meup_agent import Envelope
from meup_agent.errors import InvalidEnvelope
from tests.wire import decode, draft, kinds

V01 = "meup/v0.1"
TEXT = st.text()
NAME = st.text(min_size=1)
DOTTED = {kinds.dotted(kind) for kind in kinds.KINDS} - kinds.KINDS.keys()
KIND = st.sampled_from(sorted(kinds.KINDS)) | NAME.filter(lambda kind: kind not in DOTTED)
PAYLOADS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=10,
)


def frame(**fields: Any) -> bytes:
    """A frame that lacks nothing, with some fields changed; those that are `...` are left out."""
    whole = {"protocol": V01, "id": "e1", "from": "a", "kind": "chat", "payload": {}, **fields}
    return json.dumps({name: value for name, value in whole.items() if value is not ...}).encode()


def frame_by(sender: str, kind: str, payload: object = None, **header: Any) -> bytes:
    """A frame of a participant."""
    said = {} if payload is None else payload
    return frame(**{**header, "from": sender, "kind": kind, "payload": said})


def refused(raw: bytes | str, dialect: str | None = None) -> InvalidEnvelope:
    with pytest.raises(InvalidEnvelope) as caught:
        decode(raw, dialect)
    return caught.value


def of_our_own(envelope: Envelope) -> Envelope:
    """The envelope without what only one that was received has."""
    return envelope.replace(protocol="")


@st.composite
def envelopes(draw: st.DrawFn) -> Envelope:
    return draft(
        draw(KIND),
        draw(PAYLOADS),
        id=draw(NAME),
        sender=draw(NAME),
        to=tuple(draw(st.lists(NAME))),
        correlation=tuple(draw(st.lists(NAME, max_size=1))),
        context=draw(st.none() | TEXT),
        ts=draw(st.none() | TEXT),
    )
