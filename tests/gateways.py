"""A gateway without its command, and the connections to it.

Tests reach the inside of the package through this module: a name that moves is changed here.
"""

from __future__ import annotations

from meup_agent.gateway.auth import (
    Identity,
    JoinThrottle,
    NotAdmitted,
    Tokens,
    digest_of_token,
    hash_token,
    new_token,
)
from meup_agent.gateway.config import (
    PARTICIPANTS,
    ROLES,
    ConfigChange,
    NotifyTarget,
    first_token,
    one_space_config,
    participant,
)
from meup_agent.gateway.config_file import variable_of
from meup_agent.gateway.edge.http.api import OPERATIONS, document
from meup_agent.gateway.edge.listener import WebSocketConnection
from meup_agent.gateway.frame_queue import Backlog, Backlogs, GatewayMember
from meup_agent.gateway.journal import sqlite
from meup_agent.gateway.journal.archive import Archive
from meup_agent.gateway.journal.decisions import SEGMENT_ENTRIES, DecisionQuery
from meup_agent.gateway.journal.engines import ENGINES
from meup_agent.gateway.journal.rows import checked_row, checksum, rows_query
from meup_agent.gateway.journal.sqlite import Database, SqliteJournal
from meup_agent.gateway.limits import LIMIT_ROWS
from meup_agent.gateway.reach.bursts import BurstTracker, InboxNotice, plain_name
from meup_agent.gateway.reach.notices import make_services
from meup_agent.gateway.reach.services import NotDelivered, PushSubscriptions, find_addresses
from meup_agent.gateway.runtime import ForwardClock, GatewayRuntime
from meup_agent.gateway.server import RunningGateway, serve
from meup_agent.transport.base import (
    BESIDE_HEADER,
    LAST_SEEN_HEADER,
    OBSERVE_HEADER,
    RESUME_HEADER,
    TOO_BIG,
    CloseInfo,
    Connector,
    Transport,
    runs_on_asyncio,
)
from meup_agent.transport.connect_failure import cannot_connect
from meup_agent.transport.http import open_client
from meup_agent.transport.listener_owner import ForeignListener, check_listener
from meup_agent.transport.memory import MemoryTransport, memory_connector, memory_pair
from meup_agent.transport.urls import short_path, socket_path, socket_url
from meup_agent.transport.websocket import websocket_connector
