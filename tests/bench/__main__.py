"""Every figure: `python -m tests.bench`, or only those named: `python -m tests.bench calls`.

`python -m tests.bench compare COMMIT` measures this tree and a commit by turns.
"""

import sys
from importlib import import_module

from tests.bench import compare, gateway_fanout
from tests.bench.figures import Program, main

# In the order of docs/benchmarks.md.
BEFORE = (
    *("calls", "mcp_calls", "withdraw", "request", "middleware", "decoding", "patterns", "policy"),
    *("gateway_crowd", "gateway_fanout"),
)
AFTER = (
    *(
        "gateway_inbound",
        "gateway_setup",
        "gateway_forwarding",
        "gateway_faults",
        "gateway_stalled",
        "gateway_streams",
    ),
    *("journal", "decided", "audit", "suggest", "inbox", "console", "memory", "imports"),
    *("meup_up", "one_door", "hooks"),
)


def programs(names: tuple[str, ...]) -> tuple[Program, ...]:
    return tuple(import_module(f"tests.bench.{name}").PROGRAM for name in names)


PROGRAMS = (*programs(BEFORE), gateway_fanout.CROWD_PROGRAM, *programs(AFTER))

if __name__ == "__main__":
    if sys.argv[1:2] == ["compare"]:
        compare.main(sys.argv[2:])
    else:
        main(PROGRAMS, sys.argv[1:])
