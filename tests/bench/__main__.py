"""Every figure: `python -m tests.bench`, or only those named: `python -m tests.bench calls`."""

import sys

from tests.bench import (
    audit,
    calls,
    console,
    decoding,
    gateway_crowd,
    gateway_fanout,
    gateway_inbound,
    gateway_setup,
    gateway_stalled,
    gateway_streams,
    imports,
    inbox,
    journal,
    mcp_calls,
    memory,
    meup_up,
    middleware,
    one_port,
    patterns,
    policy,
    request,
    suggest,
    withdraw,
)
from tests.bench.figures import main

PROGRAMS = (
    calls.PROGRAM,
    mcp_calls.PROGRAM,
    withdraw.PROGRAM,
    request.PROGRAM,
    middleware.PROGRAM,
    decoding.PROGRAM,
    patterns.PROGRAM,
    policy.PROGRAM,
    gateway_crowd.PROGRAM,
    gateway_fanout.PROGRAM,
    gateway_fanout.CROWD_PROGRAM,
    gateway_inbound.PROGRAM,
    gateway_setup.PROGRAM,
    one_port.PROGRAM,
    gateway_stalled.PROGRAM,
    gateway_streams.PROGRAM,
    journal.PROGRAM,
    audit.PROGRAM,
    suggest.PROGRAM,
    inbox.PROGRAM,
    console.PROGRAM,
    memory.PROGRAM,
    imports.PROGRAM,
    meup_up.PROGRAM,
)

if __name__ == "__main__":
    main(PROGRAMS, sys.argv[1:])
