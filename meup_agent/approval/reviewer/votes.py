"""Votes that have not decided yet: kept over a restart, gone with the right to vote.

Their approval would otherwise count for what others decide later. What an absent participant
may send is not announced, so any revocation from it takes its votes back.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from meup_agent.approval.policy.rule_set import MAX_EXPLANATION, Vote, VoteCount, VoteOutcome
from meup_agent.approval.reviewer.methods import VOTE, VoteParams
from meup_agent.client.messages import write_params
from meup_agent.client.proposal_feed import ProposalFeed
from meup_agent.errors import (
    ConfigurationError,
    VoteRefused,
    explain_os_error,
    printable,
    system_reason,
)
from meup_agent.protocol.roster import (
    UPDATE,
    read_participant,
)
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.management_payloads import KICK, REVOKE

if TYPE_CHECKING:
    from meup_agent.approval.reviewer.methods import HeldProposal, HeldProposals
    from meup_agent.client.space import Space
    from meup_agent.protocol.wire.envelope import Envelope


# --- vote file ---
# The votes that have not decided yet, kept over a restart.
#
# A vote counts once its line is on the disk. The vote that decides is one line with the end of its
# count: after a crash it is either not there, and was not counted, or the votes are spent, and
# none of them counts again. So a crash can lose an approval, and never makes one.

log = logging.getLogger("meup_agent.approval")

MAX_FILE_BYTES: Final = 32 << 20
"""Bytes of a file of votes; beyond them no vote counts until it is written anew."""

MAX_VOTE_SECONDS: Final = 30 * 86_400.0
"""Age of a vote that a restart still knows: people forget what they voted upon longer ago."""


class VoteLine(msgspec.Struct, omit_defaults=True):
    """A line of the file: a vote, one that is taken back (``None``), or the end of a count."""

    key: str
    at: float
    voter: str = ""
    vote: Vote | None = None
    explanation: str = ""
    ends: bool = False


def vote_key(space: str, reviewer: str, envelope: Envelope, count: VoteCount, form: str) -> str:
    """The name of one count: a proposal as it came, the rule about its votes, and its tool's form.

    A proposal that differs in one byte, a rule with other voters, or a tool of another form finds
    no votes of before.
    """
    rule = [count.of, sorted(count.among)]
    said = json.dumps([space, reviewer, envelope.sender, envelope.id, envelope.ts, rule, form])
    return hashlib.sha256(said.encode() + bytes(envelope.raw_payload)).hexdigest()


class VoteFile:
    """An open file of votes, which no other process has open.

    Args:
        path: The file; it is made where there is none.

    Raises:
        ConfigurationError: It cannot be opened, or another reviewer has it open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._counts: dict[str, dict[str, VoteLine]] = {}
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        with explain_os_error(f"{path} cannot be opened for votes"):
            self._file = os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            _lock(self._file, path)
            for line in self._read():
                self._apply(line)
            self._rewrite()
        except OSError as error:
            os.close(self._file)
            why = system_reason(error)
            raise ConfigurationError(f"{path} cannot be used for votes ({why})") from None
        except BaseException:
            os.close(self._file)
            raise

    def close(self) -> None:
        """Close it, and let another process open it."""
        os.close(self._file)

    def restore(self, key: str, count: VoteCount) -> VoteCount:
        """A count with the votes that the file has of it."""
        lines = self._counts.get(key, {}).values()
        votes = {each.voter: each.vote for each in lines if each.vote is not None}
        said = {each.voter: each.explanation for each in lines if each.explanation}
        restored = msgspec.structs.replace(count, votes=votes, explanations=said)
        # Votes that decide are spent with the last of them: these are none of this file's.
        return restored if restored.outcome is VoteOutcome.OPEN else count

    def record(
        self, key: str, voter: str, vote: Vote, explanation: str = "", *, ends: bool = False
    ) -> None:
        """Keep a vote; with the one that ends a count, forget its others.

        Raises:
            VoteRefused: It could not be written, so that it does not count.
        """
        line = VoteLine(key, time.time(), voter, vote, explanation[:MAX_EXPLANATION], ends)
        if why := self._append(line, "a vote could not be written"):
            raise VoteRefused(f"it could not be kept ({why}), and what is not kept does not count")
        self._apply(line)

    def take_back(self, key: str, voter: str) -> None:
        if self._counts.get(key, {}).pop(voter, None) is not None:
            # It may count again after a restart, for which people are told to look.
            self._append(VoteLine(key, time.time(), voter), "a vote could not be taken back")

    def forget(self, key: str) -> None:
        if self._counts.pop(key, None) is not None:
            # What is decided is not asked again; a vote too many in the file does no harm.
            self._append(VoteLine(key, time.time(), ends=True), "votes could not be forgotten")

    def _apply(self, line: VoteLine) -> None:
        if line.ends:
            self._counts.pop(line.key, None)
        elif line.voter and line.vote is not None and time.time() - line.at <= MAX_VOTE_SECONDS:
            self._counts.setdefault(line.key, {})[line.voter] = line
        elif line.key in self._counts:
            # Taken back, or too old: what it replaced is older still.
            self._counts[line.key].pop(line.voter, None)

    def _append(self, line: VoteLine, failure: str) -> str:
        """Write a line; the reason for which that failed, or nothing."""
        try:
            if os.fstat(self._file).st_size > MAX_FILE_BYTES:
                self._rewrite()
            _write(self._file, _encode(line))
        except OSError as error:
            why = system_reason(error)
            log.error("%s: %s (%s)", self.path, failure, why)
            return why
        return ""

    def _rewrite(self) -> None:
        """Leave only the votes that count: cut short by a crash, there are fewer, and none else."""
        os.ftruncate(self._file, 0)
        live = [line for lines in self._counts.values() for line in lines.values()]
        _write(self._file, b"".join(map(_encode, live)))

    def _read(self) -> list[VoteLine]:
        raw = b""
        while chunk := os.pread(self._file, 1 << 20, len(raw)):
            raw += chunk
            if len(raw) > 2 * MAX_FILE_BYTES:
                return self._refused("it is too large")
        if not raw.endswith(b"\n") and raw:
            return self._refused("its last line is not whole")
        try:
            return msgspec.json.decode(
                b"[" + b",".join(raw.splitlines()) + b"]", type=list[VoteLine]
            )
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return self._refused(str(error))

    def _refused(self, why: str) -> list[VoteLine]:
        # The line that is broken may be one by which an approval was taken back.
        log.error(
            "%s: %s; no vote of it counts, so let people vote anew", self.path, printable(why)
        )
        return []


def _encode(line: VoteLine) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _write(file: int, raw: bytes) -> None:
    """Write it whole, and wait until the disk has it."""
    size = os.fstat(file).st_size
    try:
        written = os.write(file, raw)
        if written != len(raw):
            raise OSError(28, "No space left on device")
        os.fsync(file)
    except OSError:
        # Half a line would make the whole file worthless to the next start.
        os.ftruncate(file, size)
        raise


def _lock(file: int, path: Path) -> None:
    try:
        import fcntl  # not on every system
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigurationError(
            f"{path} has the votes of another reviewer that runs; give this one a file of its own"
            " by --votes"
        ) from None


# --- voter watch ---


class VoterWatch:
    """Follows a space, and takes votes back.

    Args:
        space: The space.
        held: The proposals whose votes are counted.
        take_back: Takes back the vote of a participant about one.
    """

    def __init__(
        self, space: Space, held: HeldProposals, take_back: Callable[[HeldProposal, str], None]
    ) -> None:
        self._feed = ProposalFeed(space)
        self._space = space
        self._held = held
        self._take_back = take_back

    def put(self, envelope: Envelope) -> None:
        """Look at what an envelope takes from those who have voted."""
        payload = envelope.payload_object
        if envelope.kind == KICK:
            removed = payload.get("participant_id")
            self._take_back_if(lambda voter, held: voter == removed)
        elif envelope.kind == REVOKE:
            here = {each.id for each in self._space.participants}
            # Of those who are here an update tells what is left to them.
            self._take_back_if(
                lambda voter, held: voter not in here and payload.get("recipient") in (None, voter)
            )
        elif envelope.kind == kinds.SYSTEM_PRESENCE and payload.get("event") == UPDATE:
            changed = read_participant(payload.get("participant"))
            if changed is not None:
                self._take_back_if(
                    lambda voter, held: voter == changed.id and not self._may_vote(voter, held)
                )

    def _take_back_if(self, is_over: Callable[[str, HeldProposal], bool]) -> None:
        for held in [*self._held.values()]:
            for voter in () if held.count is None else held.count.votes:
                if is_over(voter, held):
                    self._take_back(held, voter)

    def _may_vote(self, voter: str, held: HeldProposal) -> bool:
        proposal = held.proposal
        params = VoteParams(proposal=proposal.id, proposer=proposal.proposer, vote=Vote.APPROVE)
        return self._feed.may_request_of_us(voter, VOTE, write_params(params))
