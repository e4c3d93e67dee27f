"""Prints rules that would have decided as people did, from a journal.

Its arguments: the journal's file, a space, and the least number of decisions.
"""

import sys
from pathlib import Path

from meup_agent.approval import DecisionLog, suggest_rules
from meup_agent.gateway.journal.archive import Archive


def read(path: Path, space: str) -> DecisionLog:
    archive, decisions, seen = Archive(path), DecisionLog(), 0
    until = archive.latest(space)
    while page := archive.read(space, after=seen, until=until, limit=500):
        for entry in page:
            decisions.add(entry.envelope)
        seen = page[-1].seq
    archive.close()
    return decisions


if __name__ == "__main__":
    if len(sys.argv) != 4 or not Path(sys.argv[1]).is_file():
        sys.exit("pass a journal's file, a space, and a number of decisions")
    decided = read(Path(sys.argv[1]), sys.argv[2]).decided()
    for found in suggest_rules(decided, least=int(sys.argv[3])):
        rule = found.rule
        print(rule.verdict, rule.tool, rule.arguments or "any arguments")
        print(f"  {len(found.covered)} decisions, {len(found.changed)} changed")
        print(f"  at least {found.bound:.0%} of such calls are decided so")
