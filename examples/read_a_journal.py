"""Prints what became of each proposal, read from a gateway's journal.

Its arguments: the journal's file, and a space.
"""

import sys
from pathlib import Path

from meup_agent.gateway.journal.archive import Archive
from meup_agent.protocol.audit import Audit


def read(path: Path, space: str) -> Audit:
    archive, audit, seen = Archive(path), Audit(), 0
    until = archive.latest(space)
    while page := archive.read(space, after=seen, until=until, limit=500):
        for entry in page:
            audit.add(entry)
        seen = page[-1].seq
    archive.close()
    return audit


if __name__ == "__main__":
    if len(sys.argv) != 3 or not Path(sys.argv[1]).is_file():
        sys.exit("pass a journal's file, and a space")
    for proposal in read(Path(sys.argv[1]), sys.argv[2]).proposals:
        decided_by = (
            "nobody yet" if proposal.decision is None else proposal.decision.by
        )
        print(proposal.id, proposal.proposer, proposal.state, decided_by)
