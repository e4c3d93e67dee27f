"""One message: kinds, payloads, dialects, patterns, and what becomes of it.

Tests reach the inside of the package through this module: a name that moves is changed here.
"""

from __future__ import annotations

from meup_agent.causes import MAX_CHAIN, REASONS_TO_REJECT
from meup_agent.client.tool_changes import ACCEPT_CALL, CHANGED, TOOL_CHANGES
from meup_agent.protocol import exchange
from meup_agent.protocol.capability import (
    compile_announced,
    compile_capabilities,
    compile_kind,
    compile_pattern,
)
from meup_agent.protocol.capability.compiled_capabilities import MAX_CAPABILITIES
from meup_agent.protocol.capability.patterns import (
    ArgumentCompiler,
    DefaultedObject,
    Reading,
    WorkBudget,
)
from meup_agent.protocol.dialects import DEFAULT_DIALECT, DIALECTS, as_broadcast, decode, encode
from meup_agent.protocol.exchange.effects import INBOUND, InboundState
from meup_agent.protocol.proposals import PROPOSAL, last_moment
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import (
    MAX_FRAME_BYTES,
    Envelope,
    draft,
    encode_json,
    moment_of,
    rfc3339,
)
from meup_agent.protocol.wire.kinds import ACCEPT_TOOLS
from meup_agent.protocol.wire.membership import (
    ARRIVED,
    OURS,
    numbered,
    read_guarantees,
    read_seq,
    said_by,
)
from meup_agent.protocol.wire.membership import ASIDE as ASIDE
from meup_agent.protocol.wire.outcomes import (
    Ending,
    GatewayRefused,
    LostRace,
    Responded,
    Unknown,
    Unsent,
    raise_for,
)
from meup_agent.protocol.wire.payloads import (
    META,
    TARGET,
    WRAPPED,
    Call,
    JsonObject,
    build_proposal,
    read_call,
    read_proposal,
)
from meup_agent.protocol.wire.streams import (
    StreamFrame,
    StreamInfo,
    build_close,
    build_open,
    read_frame,
    write_frame,
)
