"""Decider: an agent's handler of proposals, which asks a policy and does what it says."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

import anyio
import msgspec

from meup_agent.approval.policy.argument_schema import ArgumentSchema, UnknownDefaults
from meup_agent.approval.policy.near_misses import KnownNames, find_near_miss, known_names_of
from meup_agent.approval.policy.rule_set import (
    History,
    LimitCount,
    PassedHistory,
    PolicyDecision,
    RuleSet,
    deny,
)
from meup_agent.approval.policy.rules import (
    AllowRule,
    AskRule,
    PolicyRule,
    QuorumRule,
    Verdict,
)
from meup_agent.approval.yeses.verbs import list_yeses
from meup_agent.causes import Reason
from meup_agent.client.proposal import Proposal
from meup_agent.client.schema_check import ArgumentChecker, objects_of
from meup_agent.client.space import Space, allowed_words
from meup_agent.client.tool_changes import digest_of_form, read_mark
from meup_agent.errors import ConfigurationError, MeupError, Refused, printable
from meup_agent.protocol.capability.patterns import descendants
from meup_agent.protocol.capability.reading import Exhausted, WorkBudget
from meup_agent.protocol.proposals.lifecycle import ProposalState
from meup_agent.protocol.wire.envelope import encode_leniently
from meup_agent.protocol.wire.payloads import (
    TOOL_CALL,
    Call,
    as_object,
    edit_call,
    is_refusal,
    read_proposal,
)

if TYPE_CHECKING:
    from meup_agent.agent.agent import Agent
    from meup_agent.protocol.wire.scoped_yes import KeptYes


# --- decider ---

log = logging.getLogger("meup_agent.approval")

LIST_SECONDS: Final = 5.0
"""Wait for the tools of an executor: without its schema nothing is allowed, and people decide."""

MAX_SCHEMAS: Final = 256
"""Schemas that are kept ready: compiling one takes as long as a hundred decisions."""

MAX_YESES_TRIED: Final = 8
"""Scoped yeses that are tried for one proposal, where each is used up by others just before."""

SCHEMA: Final = "schema"
"""Name of the rule that rejects what does not fit the schema of its tool."""

Held = Callable[[Proposal, Space, PolicyDecision], None]
"""Told of each proposal that is left to people, at once."""


class Shown(NamedTuple):
    """A call as its policy may see it."""

    call: Call
    problem: str = ""  # for which it is rejected, before any rule
    doubt: str = ""  # for which it is not allowed without people
    around: KnownNames = KnownNames()
    form: str = ""  # digest of its tool's form; empty: not known
    is_marked: bool = False  # …which nobody has accepted


class _ReadSchema(NamedTuple):
    """The schema of one tool, ready to be used, and the digest of its form."""

    written: bytes
    form: str
    checker: ArgumentChecker
    arguments: ArgumentSchema


class Decider:
    """Decides proposals by a policy, with the history of each space.

    Args:
        policy: Gives the policy of the moment.
        held: Told of the proposals that are left to people.
        own_files: Names of the files by which it decides: no rule allows a call that names one.
        doubt: Gives the reason for which no rule of the moment allows anything; empty: there is
            none.
    """

    def __init__(
        self,
        policy: Callable[[], RuleSet],
        *,
        held: Held = lambda proposal, space, decision: None,
        own_files: Collection[str] = (),
        doubt: Callable[[], str] = str,
    ) -> None:
        self._policy = policy
        self._doubt = doubt
        self._held = held
        self._own_files = tuple(own_files)
        self._histories: WeakKeyDictionary[Space, History] = WeakKeyDictionary()
        self._schemas: OrderedDict[tuple[str, str], _ReadSchema] = OrderedDict()
        self._holding: dict[str, RuleSet | None] = {}

    def install(self, agent: Agent) -> None:
        """Register it as the agent's handler of proposals of every method."""
        agent.on_proposal(method="**")(self.handle)
        agent.judge_edits(self.judge_edit)

    async def handle(self, proposal: Proposal, space: Space) -> None:
        """Decide one proposal, and do what was decided."""
        asked = await self.decide(proposal, space)
        decision = asked
        if asked.verdict is Verdict.ASK:
            decision = await self.find_yes(proposal, space, asked) or asked
        log.info(
            "proposal %s of %r: %s by %s%s",
            *(proposal.id, proposal.proposer, decision.verdict, printable(decision.rule)),
            f" ({printable(decision.why)})" if decision.why else "",
        )
        if decision.yes:
            if not await self.use_yes(proposal, space, decision):
                again = await self.decide(proposal, space, again=True)
                if again.verdict in (Verdict.ASK, Verdict.QUORUM):
                    self._held(proposal, space, again)
            return
        # It is decided elsewhere, or stays pending: people can still decide it.
        with failure_logged(proposal):
            if decision.verdict is Verdict.ALLOW:
                done = await proposal.fulfill(rule=decision.told)
                if is_refusal({"error": done.error}) and proposal.state is ProposalState.PENDING:
                    # Its executor has refused it for what its tool is by now.
                    again = await self.decide(proposal, space, again=True)
                    if again.is_marked and again.verdict is not Verdict.DENY:
                        self._held(proposal, space, again)
            elif decision.verdict is Verdict.DENY:
                explain = decision.explain or f"The rule {decision.rule} denies this call."
                words = allowed_words(proposal, space, explain)
                await proposal.reject(decision.reason, explain=words, rule=decision.told)
            else:
                self._held(proposal, space, decision)

    async def judge_edit(
        self, space: Space, proposal: Proposal, call: Call, rule: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        """Judge an edited call as the call that it now is; the rule to be told.

        A person, or a program of its own, that edits is asked by that, and may do what is left to
        people. A rule that let the proposal pass may not.

        Raises:
            Refused: The policy does not let it pass.
        """
        proposed = read_proposal(proposal.envelope.payload)
        decision = await self._decide(call, proposal.proposer, space, self._history(space))
        asked = decision.verdict is Verdict.ASK and rule is None
        if decision.verdict is not Verdict.ALLOW and not asked:
            what = printable((proposed.name or proposed.method)[:64])
            raise Refused(
                "policy",
                f"proposal {proposal.id} was not fulfilled: as it was edited, the call of {what!r}"
                f" is not let pass by the rule {decision.rule}",
            )
        return decision.told

    async def decide(
        self, proposal: Proposal, space: Space, *, again: bool = False
    ) -> PolicyDecision:
        """Decide one proposal, and count it; ``again``: without its limits, which it has passed."""
        call = read_proposal(proposal.envelope.payload)
        history = History() if again else self._history(space)
        return await self._decide(call, proposal.proposer, space, history)

    async def find_yes(
        self,
        proposal: Proposal,
        space: Space,
        asked: PolicyDecision,
        kept: list[KeptYes] | None = None,
    ) -> PolicyDecision | None:
        """The decision by a scoped yes that covers a proposal which rules leave to people.

        A yes stands behind all rules that deny, count votes or limit, wherever they are, and in
        place of those that ask; a doubt about an allow is one about it (PROTOCOL 5). Of those that
        are ``kept`` the gateway is asked, where they are not given.
        """
        call = read_proposal(proposal.envelope.payload)
        proposer, target = proposal.proposer, call.target
        permit = call.permit_form(proposer)
        has_form = bool(permit or asked.form) and not asked.is_marked
        if call.method != TOOL_CALL or target is None or not has_form:
            return None
        if kept is None:
            try:
                kept = await list_yeses(space, proposer=proposer, tool=call.name)
            except MeupError as error:
                log.warning("proposal %s: no yes is used: %s", printable(proposal.id), error)
                return None
        covering = [
            each.yes
            for each in kept
            if each.is_active and each.yes.proposal != proposal.id
            if each.yes.covers(call, proposer)
        ]
        policy = self._behind()
        if not covering or policy is None:
            return None
        shown = await self._show(call, proposer, space)
        # From here on nothing waits.
        history = PassedHistory(self._history(space), asked.counted)
        decision = self._decide_shown(shown, call, proposer, history, policy)
        if decision.verdict is not Verdict.ALLOW:
            return None
        for yes in covering:
            if yes.form == (permit or shown.form) and yes.covers(shown.call, proposer):
                counted = [each for each in decision.counted if each not in asked.counted]
                more = msgspec.structs.replace(decision, counted=tuple(counted))
                self._history(space).record(more, anyio.current_time())
                why = f"{yes.used} of {yes.most} calls were let through before it"
                return msgspec.structs.replace(
                    asked,
                    verdict=Verdict.ALLOW,
                    rule=yes.name,
                    why=why,
                    yes=yes.id,
                    number=None,
                    policy="",
                    counted=(*asked.counted, *counted),
                )
        return None

    def _behind(self) -> RuleSet | None:
        """The rules that no yes beats, and behind them one that allows every tool's call.

        ``None`` where they are no rule set: a policy is full, or has names as rules without one.
        """
        policy = self._policy()
        if policy.digest not in self._holding:
            holding = [each for each in policy.rules if _stands_before_a_yes(each)]
            try:
                self._holding = {policy.digest: RuleSet([*holding, AllowRule("*")])}
            except ConfigurationError as error:
                log.warning("no yes is used beside this policy: %s", printable(str(error)))
                self._holding = {policy.digest: None}
        return self._holding[policy.digest]

    async def use_yes(self, proposal: Proposal, space: Space, decision: PolicyDecision) -> bool:
        """Carry a proposal out by a scoped yes; ``False``: people decide it.

        Where others have used up its last call meanwhile, or it was ended, the next one is used.
        """
        is_refused = False
        with failure_logged(proposal):
            for _ in range(MAX_YESES_TRIED):
                try:
                    done = await proposal.fulfill(rule=decision.told, yes=decision.yes)
                except Refused as error:
                    holds_no_more = error.details.get("state") in ("unknown", "expired", "used_up")
                    if error.error != "invalid_yes" or not holds_no_more:
                        raise
                    found = await self.find_yes(proposal, space, decision)
                    if found is None:
                        raise
                    decision = found
                    continue
                # Its executor may have refused it for what its tool is by now.
                is_refused = is_refusal({"error": done.error})
                break
        return not is_refused and proposal.state is not ProposalState.PENDING

    async def judge(
        self, call: Call, proposer: str, space: Space, passed: Iterable[LimitCount] = ()
    ) -> PolicyDecision:
        """Judge a call that a person would make of a proposal; no limit counts it.

        One that is full stops it, but for those that the proposal itself has passed.
        """
        history = PassedHistory(self._history(space), passed)
        return await self._decide(call, proposer, space, history)

    def _history(self, space: Space) -> History:
        return self._histories.setdefault(space, History())

    async def _decide(
        self, call: Call, proposer: str, space: Space, history: History
    ) -> PolicyDecision:
        shown = await self._show(call, proposer, space)
        # From here on nothing waits: what is decided is counted before the next one is.
        decision = self._decide_shown(shown, call, proposer, history)
        return msgspec.structs.replace(decision, form=shown.form, is_marked=shown.is_marked)

    def _decide_shown(
        self,
        shown: Shown,
        call: Call,
        proposer: str,
        history: History,
        policy: RuleSet | None = None,
    ) -> PolicyDecision:
        policy, at = policy or self._policy(), anyio.current_time()
        if shown.problem:
            asked = PolicyDecision(Verdict.ASK, SCHEMA, policy=policy.digest)
            return deny(asked, Reason.INVALID, shown.problem, shown.problem)
        decision = policy.decide(shown.call, proposer, history, at)
        history.record(decision, at)
        if decision.verdict is Verdict.ALLOW:
            doubt = shown.doubt or self._doubt() or find_own_file(shown.call, self._own_files)
            if not doubt and decision.number is not None:
                before = decision.number
                doubt = find_near_miss(policy, before, shown.call, proposer, shown.around)
            if doubt:
                return msgspec.structs.replace(decision, verdict=Verdict.ASK, why=doubt)
        if decision.verdict is Verdict.QUORUM and call.target is None:
            why = "it does not say who should carry it out, and votes are about one executor"
            return deny(decision, Reason.INVALID, why)
        return decision

    async def _show(self, call: Call, proposer: str, space: Space) -> Shown:
        """Shown part of a call, on which rules decide, with the defaults of its schema."""
        if call.method != TOOL_CALL:
            return Shown(call)
        given = call.params.get("arguments", {})
        if not call.name or not isinstance(given, dict):
            return Shown(call, problem="The call has no tool, or its arguments are not an object.")
        others = sorted(call.beside)
        if others:
            return Shown(call, doubt=f"no rule sees its parameter {others[0][:64]!r}")
        target = call.target
        if target is None:
            # A person may let it pass, and it goes to the only owner: who is denied is denied here.
            owners = set[str]()
            with suppress(MeupError):
                found = await space.offers.find(call.name, timeout=LIST_SECONDS)
                owners = {each.participant for each in found} - {proposer}
            if len(owners) == 1:
                call = edit_call(call, call.arguments, owners.pop())
            return Shown(call, doubt="it does not say who should carry it out")
        if call.asks_permit(proposer):
            # Its proposer runs it itself, and no list has it: all of its input is in the call.
            return Shown(call)
        present = {each.id for each in space.participants} | {space.me}
        if target not in present:
            return Shown(call, doubt="the participant that should carry it out is not present")
        try:
            tools = await space.offers.tools(target, timeout=LIST_SECONDS)
        except MeupError as error:
            return Shown(call, doubt=f"the schema of its tool could not be had: {error}")
        described = [each for each in tools if each.get("name") == call.name]
        if not described:
            return Shown(call, problem=f"{target!r} has no tool {call.name[:64]!r}.")
        if len(described) > 1:
            return Shown(call, doubt="several tools have its name")
        names = frozenset(str(each.get("name")) for each in tools)
        read = self._read_schema(target, described[0])
        around = known_names_of(read.arguments, names, frozenset(present))
        shown = _check_arguments(call, read, around)
        mark = read_mark(described[0])
        if mark is None or not mark.form:
            return shown._replace(form=read.form)
        difference = "; ".join(mark.difference)
        doubt = f"{target} does not offer this tool as it was accepted: {difference}"
        return shown._replace(doubt=shown.doubt or doubt, form=mark.form, is_marked=True)

    def _read_schema(self, target: str, tool: Mapping[str, Any]) -> _ReadSchema:
        name, schema = str(tool["name"]), tool.get("inputSchema")
        key = (target, name)
        known = self._schemas.get(key)
        # Not the tool itself: to Python 1 and true are equal.
        written = encode_leniently(tool)
        if known is None or known.written != written:
            whose = f"{name[:64]!r} of {target!r}"
            checker = ArgumentChecker(schema, whose, exact=True)
            form = digest_of_form(tool)
            known = _ReadSchema(written, form, checker, ArgumentSchema(as_object(schema)))
            self._schemas[key] = known
            if len(self._schemas) > MAX_SCHEMAS:
                self._schemas.popitem(last=False)
        return known


def _stands_before_a_yes(rule: PolicyRule) -> bool:
    """True for a rule that no yes in advance beats."""
    if isinstance(rule, AskRule):
        return rule.confirm is not None
    return not isinstance(rule, AllowRule)


@contextmanager
def failure_logged(proposal: Proposal) -> Generator[None]:
    """Log why something about a proposal could not be done, and go on."""
    try:
        yield
    except MeupError as error:
        log.warning("proposal %s: %s", printable(proposal.id), printable(str(error)))


def _check_arguments(call: Call, read: _ReadSchema, around: KnownNames) -> Shown:
    """The call as rules see it, with the arguments that its tool takes where none are given."""
    problems = read.checker.problems(call.arguments)
    if problems is None:
        return Shown(call, doubt="the schema of its tool cannot be checked")
    if problems:
        said = "; ".join(map(str, problems))
        return Shown(call, problem=f"The tool does not take these arguments: {said}.")
    try:
        if doubt := _doubt_names(call.arguments, around.arguments, WorkBudget(call.arguments)):
            return Shown(call, doubt=doubt)
        arguments, unsure = read.arguments.fill(call.arguments)
    except Exhausted:
        return Shown(call, doubt="comparing the names of its arguments takes too much work")
    except UnknownDefaults:
        return Shown(call, doubt="the defaults in the schema of its tool cannot be told")
    if arguments is not call.arguments:
        params = {**call.params, "arguments": arguments}
        call = msgspec.structs.replace(call, params=params)
    return Shown(call, around=around._replace(unsure=unsure))


def _doubt_names(arguments: dict[str, Any], known: Mapping[str, Any], work: WorkBudget) -> str:
    """The doubt about names that are nearly others; empty: there is none."""
    known_plain = {work.plain_forms(name)[0] for name in known}
    for name in arguments.keys() - known.keys():
        if work.plain_forms(name)[0] in known_plain:
            # Some servers take it for the one that they have, and no rule about that would see it.
            return f"its argument {name[:64]!r} is nearly one that its tool has"
    for members in objects_of(arguments):
        seen: set[str] = set()
        for name in members if len(members) > 1 else ():
            plain = work.plain_forms(name)[0]
            if plain in seen:
                return f"two names in its arguments are nearly {name[:64]!r}"
            seen.add(plain)
    return ""


def find_own_file(call: Call, names: Collection[str]) -> str:
    """The doubt about a call whose arguments name a file by which it is decided; empty: none.

    Its tool may write there, and then the next call is allowed by the proposer of this one. A text
    says nothing of links and patterns, so this is not a lock.
    """
    for each in [call.arguments, *descendants(call.arguments)] if names else ():
        for text in cast("dict[str, object]", each) if isinstance(each, dict) else [each]:
            words = text.casefold() if isinstance(text, str) else ""
            found = next((name for name in names if name.casefold() in words), None)
            if found is not None:
                return f"its arguments name {found}, by which calls are decided"
    return ""


def refuse_quorum(policy: RuleSet) -> None:
    """Raise ConfigurationError for a policy with a quorum: its votes would never be counted."""
    for rule, name in zip(policy.rules, policy.names, strict=True):
        if isinstance(rule, QuorumRule):
            raise ConfigurationError(
                f"{name}: it is a quorum, and no votes are counted here, so no call of it could be"
                " carried out; run meup reviewer, or write ask instead"
            )


# --- policy ---
# A rule set by which an agent decides.


class Policy(RuleSet):
    """Rules that decide calls.

    ``agent.use(policy)`` lets an agent decide by them: what is allowed is fulfilled, what is denied
    rejected, and the rest left to people.

    Args:
        rules: The rules, in the order in which they are asked.

    Attributes:
        rules: The same.
        names: Their names.
        digest: First 16 hexadecimal digits of the SHA-256 of what the rules say.

    Raises:
        ConfigurationError: A pattern does not compile, or a name is given twice.
    """

    def install(self, agent: Agent) -> None:
        """Let an agent decide by it; ``agent.use(policy)`` calls this.

        Raises:
            ConfigurationError: A rule counts votes, for which the agent has no tools.
        """
        refuse_quorum(self)
        Decider(lambda: self).install(agent)
