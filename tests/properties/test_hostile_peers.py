"""Raw, hostile peers at one executor: what is decided never starts a handler (PROTOCOL 4.4).

Nobody here is correct: ids are copied, requests come before their proposals, without `to`, to many,
with several correlation ids, in any dialect, twice, while the connection is down, between floods.
What must hold is judged by a model that looks at the order of what was said, and at nothing else.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from meup_agent import Envelope, Limits
from meup_agent.protocol.wire.envelope import TRANSIT_SECONDS
from tests.effort import run_machine
from tests.properties.proposed_calls import Proposed, call_of, mark
from tests.tables import (
    Cancel,
    Effect,
    ExchangeTable,
    Key,
    Priority,
    ProposalKey,
    ProposalStore,
    Role,
    Send,
    Start,
    Tombstones,
)
from tests.wire import OURS, decode, draft, encode, kinds, payloads, said_by

ME = "executor"
PROPOSERS = ("alice", "mallory")
REVIEWERS = ("bob", "carol", "mallory")
IDS = ("p1", "p2")
PATHS = ("a", "b")
DIALECTS = ("meup/v0.1", "meup/v0.2", "mew/v0.4", "mcpx/v0.1")
REMEMBERED = 20
"""Proposals that this executor remembers in all, so that a flood is soon one."""

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class HostilePeers(RuleBasedStateMachine):
    """One executor, and everything that peers can say to it."""

    @initialize(handlers=st.sampled_from([1, 64]), resumes=st.booleans(), reviews=st.booleans())
    def begin(self, handlers: int, resumes: bool, reviews: bool) -> None:
        self.now, self.seq, self.counter = 1000.0, 0, 0
        self.resumes, self.reviews = resumes, reviews
        self.table = ExchangeTable(
            new_id=self.new_id,
            find_handler=self.wants,
            limits=Limits(handlers=handlers),
            wall_clock=lambda: BEGIN + timedelta(seconds=self.now),
            proposal_store=ProposalStore(count=REMEMBERED),
        )
        self.proposed: dict[ProposalKey, list[Proposed]] = {}
        self.bound: dict[str, Proposed | None] = {}
        self.ordered_at: dict[str, float] = {}
        self.early: list[Envelope] = []
        self.early_runs: list[Envelope] = []
        self.cancelled: set[Key] = set()
        self.withdrawn_early: dict[ProposalKey, float] = {}
        self.said: list[Envelope] = []
        self.running: dict[Key, Envelope] = {}
        self.queued: list[Envelope] = []
        self.online = False
        self.missed: list[Envelope] = []
        self.connect()

    def new_id(self) -> str:
        self.counter += 1
        return f"n{self.counter}"

    def wants(self, role: Role, *_: object) -> bool:
        return role is Role.REQUEST or (role is Role.PROPOSAL and self.reviews)

    # --- the connection ---

    def connect(self) -> None:
        missed, self.missed = self.missed, []
        body: dict[str, Any] = {
            "you": {"id": ME, "capabilities": [{"kind": "*"}]},
            "participants": [
                {"id": name, "capabilities": [{"kind": "*"}]}
                for name in (*PROPOSERS, *REVIEWERS, "other")
            ],
            **said_by(OURS),
        }
        before = self.seq
        if self.resumes:
            back = self.table.seq is not None
            body |= {"resumed": back, "until": before + len(missed), "gap": False}
        welcome = draft(
            kinds.SYSTEM_WELCOME, body, id=self.new_id(), sender=kinds.GATEWAY, to=(ME,)
        )
        self.online = True
        seq = before if self.resumes else None
        self.apply(self.table.receive(welcome, self.now, seq))
        for envelope in missed if self.resumes else ():
            self.deliver(envelope)

    def gateway(self, envelope: Envelope, dialect: str = "meup/v0.1") -> None:
        """The gateway orders something: everybody hears it, or misses it."""
        ordered = decode(encode(envelope, dialect))
        self.said.append(ordered)
        self.ordered_at.setdefault(mark(ordered), self.now)
        if self.online:
            self.deliver(ordered)
        elif self.resumes:
            self.missed.append(ordered)

    def deliver(self, envelope: Envelope) -> None:
        self.heard(envelope)
        if self.resumes:
            self.seq += 1
        self.apply(self.table.receive(envelope, self.now, self.seq if self.resumes else None))

    def apply(self, effects: list[Effect]) -> None:
        back: list[Envelope] = []
        for effect in effects:
            match effect:
                case Start():
                    self.running[effect.key] = effect.work.envelope
                    if effect.work.role is Role.REQUEST:
                        self.check_start(effect.work.envelope)
                    else:
                        self.check_review(effect.work.envelope)
                case Cancel():
                    self.cancelled.add(effect.key)
                case Send() if effect.priority is not Priority.OPEN:
                    back.append(effect.draft)
                case _:
                    pass
        for said in back:
            if said.kind == kinds.MCP_REJECT:
                self.rejected_here(said)
            if self.online:
                self.gateway(said)

    # --- the model ---

    def heard(self, envelope: Envelope) -> None:
        """The order in which the executor has heard it decides."""
        if envelope.kind == kinds.MCP_PROPOSAL and envelope.id in IDS:
            self.heard_proposal(envelope)
        elif envelope.kind == kinds.MCP_WITHDRAW:
            for name in envelope.correlation:
                key = ProposalKey(envelope.sender, name)
                for each in self.proposed.get(key, []):
                    each.over = each.over or "withdrawn"
                if key not in self.proposed:
                    self.withdrawn_early[key] = self.now
        elif envelope.kind == kinds.MCP_REQUEST and envelope.correlation:
            named = self.named_by(envelope)
            if named:
                self.bound.setdefault(mark(envelope), self.meant(envelope, named))
            else:
                self.early.append(envelope)

    def heard_proposal(self, envelope: Envelope) -> None:
        key = ProposalKey(envelope.sender, envelope.id)
        call = payloads.read_proposal(envelope.payload)
        known = self.proposed.setdefault(key, [])
        at = float("inf")
        if call.expires_at is not None:
            at = (call.expires_at - BEGIN).total_seconds() + 60 + TRANSIT_SECONDS
        if any(key.id in run.correlation for run in self.early_runs):
            at = float("inf")  # what is in progress does not expire
        if known and not known[-1].over and known[-1].path == call.arguments["path"]:
            # The same call made anew under its id: an approval of it is another one (PROTOCOL 6).
            known[-1].expires = max(known[-1].expires, at)
            known[-1].used += known[-1].runs
            known[-1].runs = []
            return
        for older in known:
            older.over = older.over or "replaced"
        new = Proposed(call.arguments["path"], at)
        if self.is_withdrawn_early(key):
            new.over = "withdrawn"
        known.append(new)
        for request in self.early:
            said = payloads.read_call(request.payload).meta.get(payloads.PROPOSER)
            names = key.id in request.correlation and len(request.correlation) <= 64
            free = mark(request) not in self.bound and request.sender != key.proposer
            if names and free and said in (None, key.proposer):
                self.bound[mark(request)] = new
                if request in self.early_runs:
                    new.runs.append(request)

    def is_withdrawn_early(self, key: ProposalKey) -> bool:
        at = self.withdrawn_early.get(key)
        return at is not None and self.now - at < Tombstones.SECONDS

    def rejected_here(self, reject: Envelope) -> None:
        if reject.payload_object.get("reason") == "incapable":
            return
        for each in self.proposed.get(ProposalKey(reject.to[0], reject.correlation[0]), [])[-1:]:
            each.over = each.over or "rejected here"

    def named_by(self, request: Envelope) -> list[tuple[ProposalKey, Proposed]]:
        names = set(request.correlation)
        return [
            (key, each) for key, all in self.proposed.items() if key.id in names for each in all
        ]

    def check_start(self, request: Envelope) -> None:
        """A request was started: it must be for one proposal that may still run, or for none."""
        assert len(set(request.correlation)) <= 64, "a request with very many ids was started"
        named = self.named_by(request)
        if not named:
            said = payloads.read_call(request.payload).meta.get(payloads.PROPOSER)
            for key in self.withdrawn_early:
                if key.id in request.correlation and said in (None, key.proposer):
                    assert not self.is_withdrawn_early(key), "it was withdrawn before it came"
            self.early_runs.append(request)
            return
        meant = self.bound.get(mark(request))  # as it was when it came
        if meant is None:
            assert len({key.id for key, _ in named}) == 1, "a request was started for two proposals"
            meant = self.meant(request, named)
        assert meant is not None, "a request was started that does not tell which it means"
        (key,) = [key for key, each in named if each is meant]
        assert not meant.over, f"what is {meant.over} was started"
        ordered_at = self.ordered_at[mark(request)]  # what is in progress then does not expire
        assert ordered_at <= meant.expires, "what is expired was started"
        assert not meant.runs, "it was started a second time"
        assert request not in meant.used, "an approval was used a second time"
        assert key.proposer != request.sender, "somebody fulfilled their own"
        meant.runs.append(request)
        meant.expires = float("inf")  # what is in progress does not expire

    def ended(self, key: Key, request: Envelope) -> None:
        """A handler has ended; what was cancelled before it answered may run again."""
        if key in self.cancelled:
            for all in self.proposed.values():
                for each in all:
                    each.runs = [run for run in each.runs if run is not request]
                    each.used = [run for run in each.used if run is not request]
            self.early_runs = [run for run in self.early_runs if run is not request]

    def meant(
        self, request: Envelope, named: list[tuple[ProposalKey, Proposed]]
    ) -> Proposed | None:
        """The proposal that a request means, judged by what its sender can have read."""
        # The same call made anew under its id is not another one.
        latest = {(key, each.path): each for key, each in named}
        named = [(key, each) for (key, _), each in latest.items()]
        if len(named) == 1:
            return named[0][1]
        call = payloads.read_call(request.payload)
        path, said = call.arguments.get("path"), call.meta.get(payloads.PROPOSER)
        digest = call.meta.get(payloads.DIGEST)
        same = [
            (key, each)
            for key, each in named
            if each.path == path
            and digest in (None, payloads.digest("tools/call", call_of(each.path), None))
        ]
        theirs = [(key, each) for key, each in named if key.proposer == said]
        if fitting := [each for key, each in same if key.proposer == said]:
            return fitting[-1]
        if theirs and call.meta.get(payloads.EDITED) is True:
            return theirs[0][1] if len(theirs) == 1 else None
        return same[-1][1] if len({key for key, _ in same}) == 1 else None

    def check_review(self, proposal: Envelope) -> None:
        """A proposal's handler was started: it is pending, in time, and first under its id."""
        key = ProposalKey(proposal.sender, proposal.id)
        if key.id not in IDS:
            return
        latest = self.proposed[key][-1]
        assert not latest.over, f"a handler saw what is {latest.over}"
        assert self.now <= latest.expires, "a handler saw what is expired"
        first = next(each for each in self.proposed if each.id == key.id)
        assert key == first, "a handler saw a copy"

    # --- what peers say ---

    @rule(
        by=st.sampled_from(PROPOSERS),
        id=st.sampled_from(IDS),
        path=st.sampled_from(PATHS),
        ttl=st.sampled_from([None, 10.0, -61.0]),
        to=st.sampled_from([(), (ME,), ("bob",)]),
        claims=st.booleans(),
        dialect=st.sampled_from(DIALECTS),
    )
    def propose(
        self,
        by: str,
        id: str,
        path: str,
        ttl: float | None,
        to: tuple[str, ...],
        claims: bool,
        dialect: str,
    ) -> None:
        meta: dict[str, Any] = {}
        if ttl is not None:
            at = BEGIN + timedelta(seconds=self.now + ttl)
            meta[payloads.EXPIRES_AT] = at.isoformat()
        if claims:
            meta |= {payloads.PROPOSER: "alice", payloads.EDITED: True}
        self.counter += 1
        body = payloads.proposal(
            "tools/call", {**call_of(path), **({"_meta": meta} if meta else {})}
        )
        self.gateway(
            draft(
                kinds.MCP_PROPOSAL,
                body,
                id=id,
                sender=by,
                to=to,
                ts=f"2026-01-01T00:00:00.{self.counter:03}Z",
            ),
            dialect,
        )

    @rule(by=st.sampled_from((*PROPOSERS, "bob")), id=st.sampled_from(IDS))
    def withdraw(self, by: str, id: str) -> None:
        self.gateway(
            draft(
                kinds.MCP_WITHDRAW,
                {"reason": "other"},
                id=self.new_id(),
                sender=by,
                correlation=(id,),
            )
        )

    @rule(by=st.sampled_from(REVIEWERS), id=st.sampled_from(IDS), to=st.sampled_from(PROPOSERS))
    def reject(self, by: str, id: str, to: str) -> None:
        self.gateway(
            draft(
                kinds.MCP_REJECT,
                {"reason": "unsafe"},
                id=self.new_id(),
                sender=by,
                to=(to,),
                correlation=(id,),
            )
        )

    @rule(
        by=st.sampled_from(REVIEWERS),
        request=st.sampled_from(["r1", "r2", "r3", ""]),
        names=st.sampled_from([("p1",), ("p2",), ("p1", "p2"), ("x", "p1"), ("p1", "p1"), "many"]),
        path=st.sampled_from(PATHS),
        to=st.sampled_from([(ME,), (), (ME, "other")]),
        whose=st.sampled_from([None, None, *PROPOSERS, "ghost"]),
        digest=st.sampled_from([None, *PATHS]),
        edited=st.booleans(),
        rpc_id=st.sampled_from([None, 1]),
        dialect=st.sampled_from(DIALECTS),
    )
    def request(
        self,
        by: str,
        request: str,
        names: tuple[str, ...] | str,
        path: str,
        to: tuple[str, ...],
        whose: str | None,
        digest: str | None,
        edited: bool,
        rpc_id: int | None,
        dialect: str,
    ) -> None:
        meta: dict[str, Any] = {}
        if whose is not None:
            meta[payloads.PROPOSER] = whose
        if digest is not None:
            meta[payloads.DIGEST] = payloads.digest("tools/call", call_of(digest), None)
        if edited:
            meta[payloads.EDITED] = True
        name = request or self.new_id()
        params = {**call_of(path), **({"_meta": meta} if meta else {})}
        body: dict[str, Any] = payloads.request("tools/call", params, name)
        if rpc_id is not None:
            body["id"] = rpc_id
        self.counter += 1
        many = tuple(f"x{number}" for number in range(64))
        self.gateway(
            draft(
                kinds.MCP_REQUEST,
                body,
                id=name,
                sender=by,
                to=to,
                correlation=(*many, "p1") if isinstance(names, str) else names,
                ts=f"2026-01-01T00:00:00.{self.counter:03}Z",
            ),
            dialect,
        )

    @rule(back=st.integers(0, 20))
    def repeat(self, back: int) -> None:
        """Send again, exactly, what was said."""
        others = [each for each in self.said if each.sender != ME]
        if others:
            again = others[-1 - back % len(others)]
            if again.kind != kinds.MCP_PROPOSAL:
                self.gateway(again, again.protocol)

    @rule(by=st.sampled_from(REVIEWERS), request=st.sampled_from(["r1", "r2", 1]))
    def cancel(self, by: str, request: str | int) -> None:
        body = payloads.notification(kinds.CANCELLED, {"requestId": request})
        self.gateway(draft(kinds.MCP_REQUEST, body, id=self.new_id(), sender=by, to=(ME,)))

    @rule(by=st.sampled_from(("other", "bob")), request=st.sampled_from(["r1", "r2"]))
    def respond(self, by: str, request: str) -> None:
        """Another answers a request: refused, so that it would be free again."""
        error = {"code": -32000, "message": "refused", "data": {"reason": "refused"}}
        body = {"jsonrpc": "2.0", "id": request, "error": error}
        self.gateway(
            draft(kinds.MCP_RESPONSE, body, id=self.new_id(), sender=by, correlation=(request,))
        )

    @rule(by=st.sampled_from(("dora", "other")))
    def flood(self, by: str) -> None:
        for _ in range(2 * REMEMBERED):
            self.gateway(
                draft(
                    kinds.MCP_PROPOSAL,
                    payloads.proposal("tools/call", call_of("c")),
                    id=self.new_id(),
                    sender=by,
                    to=("nobody",),
                )
            )

    # --- what happens here ---

    @rule(seconds=st.sampled_from([1.0, 15.0, 75.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.apply(self.table.tick(self.now))

    @rule(which=st.integers(0, 5), fails=st.booleans())
    def finish(self, which: int, fails: bool) -> None:
        if not self.running:
            return
        key = list(self.running)[which % len(self.running)]
        self.ended(key, self.running.pop(key))
        if fails or key in self.cancelled:
            self.apply(self.table.raised(key, -32603, "failed", None, self.now))
        else:
            self.apply(self.table.returned(key, {"content": []}, self.now))

    @rule(which=st.integers(0, 5))
    def reject_here(self, which: int) -> None:
        records = self.table.proposal_store.records(self.now)
        if records and self.reviews:
            key = records[which % len(records)].key
            if key.proposer in PROPOSERS and key.id in IDS:
                _, effects = self.table.reject(key, "unsafe", self.now)
                self.apply(effects)

    @rule()
    def lose_connection(self) -> None:
        if self.online:
            self.online = False
            self.apply(self.table.connection_lost(self.now))

    @rule()
    def come_back(self) -> None:
        if not self.online:
            self.connect()


@pytest.mark.rule(
    "4.4.executor_refuses", "4.4.ambiguous", "4.4.one_proposal", "4.4.early", "4.4.at_its_start"
)
def test_what_is_decided_never_starts_a_handler() -> None:
    run_machine(HostilePeers, 150, steps=40)
