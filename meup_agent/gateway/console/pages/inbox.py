"""The inbox: one decision a screen, the queue beside it; of several together, and in advance."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import anyio
from starlette.responses import JSONResponse, Response

from meup_agent.approval import Inbox, InboxItem
from meup_agent.approval.inbox.item import MAX_TOGETHER, Verb, why_alone
from meup_agent.approval.inbox.preview import MAX_SHOWN, choose_scope, preview_scope
from meup_agent.approval.policy.rules import CONFIRM_WORD
from meup_agent.approval.reviewer.methods import InboxRule
from meup_agent.approval.yeses import YesScope, read_scope, revoke_yes
from meup_agent.causes import Reason
from meup_agent.client.file_difference import read_written_file
from meup_agent.errors import AlreadyDecided, AlreadyInProgress, MeupError, NotOffered, UsageError
from meup_agent.gateway.auth import BAD_REQUEST
from meup_agent.gateway.console.context import CONSOLE_HOME, PageContext, PageFunction, redirect
from meup_agent.gateway.console.event_queue import OutcomeNotice
from meup_agent.gateway.console.presence import QUEUE_ROWS, item_key, row_group
from meup_agent.gateway.console.sign_in import RequestDenied
from meup_agent.gateway.console.templating import (
    Edit,
    can_be_edited,
    editable,
    fields_of,
    is_shown_whole,
    read_edit,
    schema_of,
)
from meup_agent.gateway.console.timeline import words_of_answer
from meup_agent.gateway.edge.http.context import CONFLICT
from meup_agent.protocol.proposals import ProposalState
from meup_agent.protocol.wire.outcomes import Fulfillment
from meup_agent.protocol.wire.payloads import TOOL_CALL, as_object, as_text, digest, without_meta
from meup_agent.protocol.wire.scoped_yes import MAX_YES_BYTES, MAX_YES_USES, ScopedYes
from meup_agent.wording import describe_reason

MORE_THAN_SHOWN: Final = (
    "it is more than this page shows; meup inbox show and approve have all of it"
)
"""Reason for which a call is not approved here: what is cut could hide what it does."""

OUTCOME_SECONDS: Final = 1.5
"""Seconds for which the answer to an approval waits for its result; later it is told by the event
stream."""

MAX_CANONICAL: Final = 256 * 1024
"""Bytes of a call up to which a form has the digest that approvals have, too."""

MAX_SHOWN_ARGUMENTS: Final = 40
"""Arguments that are shown one by one; a call with more is shown as JSON."""

MAX_ANSWER: Final = 200
"""Characters of a result that are told at once; all of it is on the proposal's page."""

OFFERED_REASONS: Final = tuple(
    (code, describe_reason(code))
    for code in (
        Reason.DISAGREE,
        Reason.UNSAFE,
        Reason.INVALID,
        Reason.POLICY,
        Reason.RESOURCE_LIMIT,
    )
)
"""The reasons that a person chooses from, in words: those that judge the call. Who has nothing
against it leaves it to others, or to its deadline."""

ENDED: Final = {
    ProposalState.PERMITTED: "permit",
    ProposalState.FULFILLED: "fulfill",
    ProposalState.REJECTED: "reject",
    ProposalState.WITHDRAWN: "withdraw",
    ProposalState.EXPIRED: "expire",
}
"""State in which a proposal has ended → the term that explains it."""


async def show_inbox(context: PageContext) -> Response:
    """The inbox, with the decision whose deadline is next, or the one that was chosen."""
    inbox = context.presence.inbox
    if context.key:
        return inbox_page(context, find_item(inbox, context.key))
    me = context.identity.participant
    # A vote that was given is not asked for again while there are others to give.
    by_turns = sorted(inbox.items, key=lambda item: me in item.votes)
    return inbox_page(context, next(iter(by_turns), None))


async def show_again(context: PageContext) -> Response:
    """Send a browser that loads the answer to a form anew to what the form decides."""
    return redirect(context, f"{CONSOLE_HOME}/{quote(context.key)}")


async def show_file(context: PageContext) -> Response:
    """The difference that a proposal's call would make to the file that it writes, as it is now."""
    item = find_item(context.presence.inbox, context.key)
    if item is None:
        return redirect(context, f"{CONSOLE_HOME}/{quote(context.key)}")
    try:
        async with own_item(context, item) as (inbox, own):
            difference, problem = await inbox.read_file(own), ""
    except (MeupError, UsageError) as error:
        difference, problem = None, str(error)
    return context.page(
        "file.html", item=item, key=context.key, difference=difference, problem=problem
    )


def find_item(inbox: Inbox, key: str) -> InboxItem | None:
    """The proposal with an address, if it waits."""
    return next((each for each in inbox.items if item_key(each) == key), None)


def inbox_page(
    context: PageContext,
    item: InboxItem | None,
    *,
    status: int | None = None,
    problem: str = "",
    edit: Edit | None = None,
) -> Response:
    """The page, with one decision; a problem with it is a bad request, if no status is given."""
    feed = context.presence.feed
    values: dict[str, Any] = {
        "item": item,
        "key": context.key if item is None else item_key(item),
        "queue": feed.rows(),
        "group_of": row_group,
        "more": max(feed.waiting - QUEUE_ROWS, 0),
        "proposed_at": feed.proposed_at,
        "left_out": feed.inbox.left_out,
        "version": feed.version,
        "problem": problem,
        "edit": edit,
        "topics": "inbox",
        "reasons": OFFERED_REASONS,
    }
    if item is not None:
        sent = edit.arguments if edit is not None and edit.is_ready else None
        values |= _card(item, sent, feed.proposed_at(item))
        kept = context.space_server.owner.yeses
        values["yeses"] = [each for each in kept if is_like(each.yes, item)]
        values["form"] = values["fields"] if edit is None else edit.fields
    return context.page("inbox.html", status or (BAD_REQUEST if problem else 200), **values)


def is_like(yes: ScopedYes, item: InboxItem) -> bool:
    """True for a yes to calls of an item's tool by its proposer."""
    return (yes.tool, yes.target, yes.proposer) == (item.tool, item.target, item.proposer)


def _card(
    item: InboxItem, edited: dict[str, Any] | None, proposed_at: float | None
) -> dict[str, Any]:
    """The values of a decision beside the item itself, with the arguments of an edit, if any."""
    left = whole = None
    if item.deadline is not None:
        left = max((item.deadline - datetime.now(UTC)).total_seconds(), 0.0)
        if proposed_at is not None:
            # The length of the bar: the time that it had when it was proposed, whoever looks when.
            whole = max(item.deadline.timestamp() - proposed_at, left, 1.0)
    is_editable = can_be_edited(item)
    arguments = item.arguments if edited is None else edited
    return {
        "whole_call": whole_call(item, edited),
        "digest": shown_digest(item),
        "seconds_left": left,
        "whole": whole,
        "is_editable": is_editable,
        "fields": fields_of(schema_of(item), arguments) if is_editable else [],
        "shown_arguments": shown_arguments(item, arguments),
        "arguments_text": editable(item.arguments) if is_editable else "",
        "ended": ENDED,
        "endings": [ENDED[each] for each in item.record.counts],
        "danger": dangers_of(item, edited),
        "word": CONFIRM_WORD if item.takes_word else "",
        "writes_file": read_written_file(item.call) is not None,
    }


class ShownArgument(NamedTuple):
    """One argument of a call, as a person reads it."""

    name: str
    text: str
    about: str  # in the words of its tool; empty: it has none


def shown_arguments(item: InboxItem, arguments: dict[str, Any]) -> list[ShownArgument]:
    """Every argument of a call; none where they are not all that it has, or they are too many."""
    if item.method != TOOL_CALL or item.call.beside or len(arguments) > MAX_SHOWN_ARGUMENTS:
        return []
    described = as_object(schema_of(item).get("properties"))
    return [
        ShownArgument(
            name, _text_of(value), as_text(as_object(described.get(name)).get("description"))
        )
        for name, value in arguments.items()
    ]


def _text_of(value: object) -> str:
    """A text as it is, unless it could be taken for another value; anything else as JSON."""
    if isinstance(value, str) and value.strip():
        try:
            json.loads(value)
        except (ValueError, RecursionError):
            return value
    return editable(value)


def dangers_of(item: InboxItem, sent: dict[str, Any] | None = None) -> tuple[str, ...]:
    """Reasons to look twice: the proposal's own, and what this page does not show of it."""
    if is_shown_whole(whole_call(item, sent)):
        return item.danger
    return (*item.danger, MORE_THAN_SHOWN)


def whole_call(item: InboxItem, sent: dict[str, Any] | None = None) -> dict[str, Any]:
    """The call as it will run, with the arguments of an edit, if any.

    It is what its digest covers, and nothing else.
    """
    params = dict(without_meta(item.call.params))
    if sent is not None:
        params["arguments"] = sent
    return {"to": item.target, "method": item.method, "params": params}


def digest_of(item: InboxItem) -> str:
    """The digest of what was shown; of a large call, or one that has none, that of its JSON."""
    # The canonical form of some megabytes takes a second or two, each time that it is asked for.
    small = len(item.envelope.raw_payload) <= MAX_CANONICAL
    found = digest(item.method, item.call.params, item.target) if small else None
    if found is not None:
        return found
    return sha256(json.dumps(whole_call(item), sort_keys=True).encode()).hexdigest()


def shown_digest(item: InboxItem) -> str:
    return f"{digest_of(item)}{item.form}"


# --- decisions ---


def _deciding(page: Callable[[PageContext, InboxItem], Awaitable[Response]]) -> PageFunction:
    """A page of a form that decides a proposal, if that still waits as it was shown."""

    async def answer(context: PageContext) -> Response:
        item = find_item(context.presence.inbox, context.key)
        said = item and why_not_as_shown(item, context.form.get("digest", ""))
        if item is None or said:
            return inbox_page(context, item, status=CONFLICT, problem=said or "")
        return await page(context, item)

    return answer


@_deciding
async def approve(context: PageContext, item: InboxItem) -> Response:
    """Approve what was shown."""
    if problem := why_not(context, item):
        return inbox_page(context, item, problem=problem)
    return await carry_out(context, item)


@_deciding
async def approve_edited(context: PageContext, item: InboxItem) -> Response:
    """Show what was changed, and, once that was seen, approve it."""
    form, edit = item.form, await read_edit(item, context.form)
    if not edit.is_ready:
        return inbox_page(context, item, problem=edit.problem, edit=edit)
    # A browser ends the lines of a form of its own accord with both.
    if context.form.get("seen", "").replace("\r\n", "\n") != edit.text:
        return inbox_page(context, item, edit=edit)
    if problem := why_not(context, item, edit.arguments):
        return inbox_page(context, item, problem=problem, edit=edit)
    return await carry_out(context, item, edit, form=form)


async def check_edit(context: PageContext) -> Response:
    item = find_item(context.presence.inbox, context.key)
    problems = {} if item is None else (await read_edit(item, context.form)).problems
    return JSONResponse({"problems": problems})


@_deciding
async def reject(context: PageContext, item: InboxItem) -> Response:
    """Reject what was shown, with a reason and words."""
    reason = context.form.get("reason", "")
    if reason not in dict(OFFERED_REASONS):
        return inbox_page(context, item, problem="Choose a reason to reject.")
    words = context.typed("words") or None
    said = "Rejected, with a vote against it" if Verb.VOTE in item.may else "Rejected"
    return await _decide(context, item, lambda inbox, own: inbox.reject(own, reason, words), said)


@_deciding
async def vote(context: PageContext, item: InboxItem) -> Response:
    """Vote about what was shown."""
    given = context.form.get("vote")
    if given not in ("approve", "reject"):
        return inbox_page(context, item, problem="Vote for it or against it.")
    if given == "approve" and not is_shown_whole(whole_call(item)):
        return inbox_page(context, item, problem=f"Not voted for: {MORE_THAN_SHOWN}.")
    # Of the tool as it was shown: it may have changed once the own session is there.
    words, form = context.typed("words") or None, item.form
    approve = given == "approve"
    try:
        async with own_item(context, item) as (inbox, own):
            rule = await inbox.vote(own, approve=approve, explanation=words, form=form)
    except MeupError as error:
        return _failed(context, item, error)
    said = f"You voted {'for' if approve else 'against'} {_name(item)}: {_state_of_votes(rule)}."
    return context.go_on(CONSOLE_HOME, said, proposal=item_key(item))


def _state_of_votes(rule: InboxRule) -> str:
    """The clause on what comes of the votes so far."""
    if rule.approvals >= rule.of:
        return f"the votes are enough, and {rule.reviewer} runs it now"
    if rule.is_lost:
        return f"it cannot get {rule.of} votes any more, and {rule.reviewer} rejects it now"
    return f"it has {rule.approvals} of the {rule.of} votes that it takes"


def why_not_as_shown(item: InboxItem, shown: str) -> str:
    """The reason for which nothing is done about a call of which a digest was shown; or empty."""
    if item.seconds_left is not None and item.seconds_left < 0:
        return "Nothing was done: its time is over, and its proposer waits no longer."
    if shown != shown_digest(item):
        return (
            "The call, or its tool, is another one than you were shown. Look at it again; nothing"
            " was done."
        )
    return ""


def why_not(context: PageContext, item: InboxItem, sent: dict[str, Any] | None = None) -> str:
    """The reason for which a form approves nothing; empty where it does."""
    if not is_shown_whole(whole_call(item, sent)):
        return f"Not approved: {MORE_THAN_SHOWN}."
    if item.danger and context.form.get("sure") != "yes":
        return "Not approved: this call is marked as dangerous. Look at it, and say that you did."
    if item.takes_word and context.typed("word").lower() != CONFIRM_WORD:
        return f"Not approved: its rule asks you to type “{CONFIRM_WORD}”."
    return ""


async def carry_out(
    context: PageContext,
    item: InboxItem,
    edit: Edit | None = None,
    *,
    form: str | None = None,
    also: str = "",
) -> Response:
    """Approve, and wait a moment for the result; a longer one is told later.

    Args:
        context: The request that approves it.
        item: The proposal.
        edit: What was changed of it.
        form: Of its tool as it was shown; ``None``: nothing was waited for since that was checked.
        also: Said behind it, whatever comes of it.
    """
    arguments = edit.arguments if edit is not None and edit.changes else None
    done = anyio.Event()
    told: list[Outcome] = []

    def tell(outcome: Outcome) -> None:
        told.append(outcome)
        done.set()
        context.presence.notify(outcome.notice)

    start_approval(context, item, tell, arguments, form=form)
    with anyio.move_on_after(OUTCOME_SECONDS):
        await done.wait()
    said, failed = f"Approved: {item.tool or item.method} runs now.", False
    if told:
        (outcome,) = told
        if outcome.error is not None:
            return _failed(context, item, outcome.error, edit, also=also)
        said, failed, *_ = outcome.notice
    if also:
        said = f"{said.removesuffix('.')}. {also}"
    return context.go_on(CONSOLE_HOME, said, failed=failed, proposal=context.key)


class Outcome(NamedTuple):
    """The end of an approval."""

    notice: OutcomeNotice
    error: MeupError | None = None


def start_approval(
    context: PageContext,
    item: InboxItem,
    tell: Callable[[Outcome], None],
    arguments: dict[str, Any] | None = None,
    check: Callable[[InboxItem], str] = lambda item: "",
    form: str | None = None,
) -> None:
    """Begin to carry out a proposal, and tell what came of it.

    Args:
        context: The request that approves it.
        item: The proposal.
        tell: Told of the outcome.
        arguments: Those of an edit.
        check: Says why it is not approved so, as the person's own inbox session sees it.
        form: As :func:`carry_out` has it.
    """
    presence, key = context.presence, item_key(item)
    form = item.form if form is None else form
    word, name = context.typed("word"), item.tool or item.method

    async def run() -> None:
        error: MeupError | None = None
        said, failed = f"{name} was cancelled.", True
        try:
            # One that leaves cancels what it has begun.
            with presence.in_use():
                async with own_item(context, item) as (inbox, own):
                    if why := check(own):
                        raise NotOffered(f"it is approved alone, since {why}")
                    fulfillment = await inbox.approve(own, arguments, form=form, word=word)
            if fulfillment is None:
                # Its rule became known at the person's own inbox session, and it counts votes.
                said, failed = f"Voted for {name}: its rule counts votes.", False
            else:
                said, failed = _approved(item, fulfillment), fulfillment.is_error
        except MeupError as raised:
            error = raised
        except RequestDenied as denied:
            error = MeupError(str(denied))
        finally:
            if isinstance(error, AlreadyInProgress):
                said = f"{name}: {error.by} approved it just before you."
            elif error is not None:
                said = f"{name} was not carried out: {error}"
            tell(Outcome(OutcomeNotice(said, failed, key), error))

    # In the presence's own tasks: a browser that goes must not stop what it has approved.
    presence.tasks.start_soon(run)


def _approved(item: InboxItem, fulfillment: Fulfillment) -> str:
    """The sentence on an approval, with the beginning of the tool's answer."""
    name = item.tool or item.method
    if item.asks_permit and not fulfillment.is_error:
        return f"Approved: {item.proposer} runs {name} itself now."
    body = fulfillment.response if fulfillment.error is None else fulfillment.error
    words = " ".join(words_of_answer(body)[: 2 * MAX_ANSWER].split())
    if len(words) > MAX_ANSWER:
        words = words[:MAX_ANSWER] + " …"
    failed = "; the tool failed" if fulfillment.is_error else ""
    return f"Approved: {name} ran{failed}{f': {words}' if words else '.'}"


@asynccontextmanager
async def own_item(
    context: PageContext, item: InboxItem
) -> AsyncGenerator[tuple[Inbox, InboxItem]]:
    """The shown proposal, as it waits at the person's own inbox session, where it is decided."""
    async with context.presence.deciding() as session:
        # An inbox that has not heard every reviewer would approve where it should vote.
        await session.inbox.settle()
        own = session.inbox.find(item.proposer, item.id)
        # Not as Python compares them: to it 1, 1.0 and true are the same.
        if own is None or (
            own.envelope.raw_payload != item.envelope.raw_payload
            and digest_of(own) != digest_of(item)
        ):
            raise AlreadyDecided(item.id, "not waiting")
        yield session.inbox, own


async def _decide(
    context: PageContext,
    item: InboxItem,
    decide: Callable[[Inbox, InboxItem], Awaitable[object]],
    said: str,
) -> Response:
    try:
        async with own_item(context, item) as (inbox, own):
            await decide(inbox, own)
    except MeupError as error:
        return _failed(context, item, error)
    what = f"{said}: {item.tool or item.method} of {item.proposer}."
    return context.go_on(CONSOLE_HOME, what, proposal=item_key(item))


def _failed(
    context: PageContext,
    item: InboxItem,
    error: MeupError,
    edit: Edit | None = None,
    *,
    also: str = "",
) -> Response:
    why = str(error)
    if isinstance(error, AlreadyInProgress):
        why = f"{error.by} approved {_name(item)} just before you"
    words = f"Not done: {why}" + (f". {also}" if also else "")
    late = isinstance(error, AlreadyDecided | AlreadyInProgress)
    waits = find_item(context.presence.inbox, item_key(item)) is not None
    if late or not waits:
        return context.go_on(CONSOLE_HOME, words, failed=True, proposal=item_key(item))
    return inbox_page(context, item, problem=words, edit=edit)


# --- decisions about several calls ---
# All that are marked, each as it will run, and one decision.

EDITED: Final = "edited"
"""The value of a mark where the browser keeps an edit of the call."""

MARK: Final = "m-"
"""Prefix of a field that marks a call, before its key."""

DIGEST: Final = "d-"
"""Prefix of a field that decides a call, before its key; its value is the digest of what was
shown."""


class MarkedCard(NamedTuple):
    """A call among those that are decided together.

    Attributes:
        why: The reason for which it is approved alone; empty: it is approved with the others.
    """

    key: str
    item: InboxItem
    call: dict[str, Any]
    arguments: list[ShownArgument]
    digest: str
    why: str


async def decide_together(context: PageContext) -> Response:
    """Show all that are marked, or decide those that were shown."""
    match context.form.get("verb"):
        case "approve":
            return await _approve(context)
        case "reject":
            return await _reject(context)
        case _:
            return _page(context, _chosen(context, MARK))


def _chosen(context: PageContext, prefix: str) -> dict[str, str]:
    """The fields of calls by their keys, at most as many as a queue shows."""
    fields = context.form.items()
    found = {name.removeprefix(prefix): said for name, said in fields if name.startswith(prefix)}
    if len(found) > MAX_TOGETHER:
        raise RequestDenied(BAD_REQUEST, f"At most {MAX_TOGETHER} calls are decided together.")
    return found


def _waiting(context: PageContext) -> dict[str, InboxItem]:
    return {item_key(each): each for each in context.presence.inbox.items}


def _why(item: InboxItem) -> str:
    """The reason for which a call is approved by its own page alone; or empty."""
    if item.seconds_left is not None and item.seconds_left < 0:
        return "its time is over"
    return why_alone(item) or ("" if is_shown_whole(whole_call(item)) else MORE_THAN_SHOWN)


def _page(context: PageContext, marks: dict[str, str], problem: str = "") -> Response:
    if not marks and not problem:
        return redirect(context, CONSOLE_HOME)
    waiting = _waiting(context)
    cards = [
        MarkedCard(
            key,
            item,
            whole_call(item),
            shown_arguments(item, item.arguments),
            shown_digest(item),
            _why(item) or ("you have begun to edit it" if marks[key] == EDITED else ""),
        )
        for key, item in waiting.items()
        if key in marks
    ]
    return context.page(
        "inbox_together.html",
        BAD_REQUEST if problem else 200,
        cards=cards,
        alone=sum(bool(each.why) for each in cards),
        rejected=sum(Verb.REJECT in each.item.may for each in cards),
        missing=len(marks) - len(cards),
        problem=problem,
        reasons=OFFERED_REASONS,
        topics="inbox",
    )


async def _approve(context: PageContext) -> Response:
    """Approve each as its own page does, in their order, and wait a moment for what comes."""
    told: dict[str, OutcomeNotice] = {}
    begun: dict[str, InboxItem] = {}
    is_answered, changed = False, anyio.Event()

    for key, item in _shown(context, told).items():
        if why := _why(item):
            told[key] = _not_done(item, key, f"it is approved alone, since {why}")
        else:
            begun[key] = item

    def tell(outcome: Outcome) -> None:
        if is_answered:
            context.presence.notify(outcome.notice)
            return
        told[outcome.notice.proposal] = outcome.notice
        if begun.keys() <= told.keys():
            changed.set()

    if begun:
        # Once nothing has to be waited for, they are sent in their order.
        async with context.presence.deciding() as session:
            await session.inbox.settle()
            for item in begun.values():
                start_approval(context, item, tell, check=why_alone)
            with anyio.move_on_after(OUTCOME_SECONDS):
                await changed.wait()
    is_answered = True
    runs = [
        OutcomeNotice(f"Approved: {_name(item)} runs now.", proposal=key)
        for key, item in begun.items()
        if key not in told
    ]
    return _go_on(context, "Approved", [*told.values(), *runs])


async def _reject(context: PageContext) -> Response:
    reason = context.form.get("reason", "")
    if reason not in dict(OFFERED_REASONS):
        return _page(context, _chosen(context, DIGEST), "Choose a reason to reject.")
    words = context.typed("words") or None
    told: dict[str, OutcomeNotice] = {}
    for key, item in _shown(context, told).items():
        try:
            async with own_item(context, item) as (inbox, own):
                await inbox.reject(own, reason, words)
            told[key] = OutcomeNotice(f"Rejected: {_name(item)}.", proposal=key)
        except (MeupError, RequestDenied) as error:
            told[key] = _not_done(item, key, str(error))
    return _go_on(context, "Rejected", [*told.values()])


def _shown(context: PageContext, told: dict[str, OutcomeNotice]) -> dict[str, InboxItem]:
    """The calls of a form that are as they were shown; of the others it is told why not."""
    waiting = _waiting(context)
    found: dict[str, InboxItem] = {}
    for key, shown in _chosen(context, DIGEST).items():
        item = waiting.get(key)
        if item is None:
            told[key] = OutcomeNotice("Not done: one waits no longer.", True, key)
        elif why := why_not_as_shown(item, shown):
            told[key] = OutcomeNotice(f"{_name(item)}: {why}", True, key)
        else:
            found[key] = item
    return found


def _not_done(item: InboxItem, key: str, why: str) -> OutcomeNotice:
    return OutcomeNotice(f"Not done: {_name(item)}: {why}", True, key)


def _name(item: InboxItem) -> str:
    return f"{item.tool or item.method} of {item.proposer}"


def _go_on(context: PageContext, verb: str, parts: list[OutcomeNotice]) -> Response:
    """Go on to the next decision, and say what came of each."""
    failed = sum(each.failed for each in parts)
    said = f"{verb}: {len(parts) - failed} of {len(parts)}."
    if failed:
        said += f" {failed} failed, or were not done."
    return context.go_on(CONSOLE_HOME, said, failed=failed > 0, parts=tuple(parts))


# --- yeses in advance ---
# One is given at a decision, and all that are kept are listed and ended.

TIMES: Final = {"3600": "1 hour", "28800": "8 hours", "604800": "7 days"}
"""The times that are offered, in seconds."""

USES: Final = 20
"""Calls that are offered."""

WRITTEN: Final = "written"
"""The choice of a scope that the person wrote."""

YESES: Final = "/yeses"

GIVEN: Final = "Your yes to calls like it holds; the page Yeses ends it."
"""Said with what came of the approval: the yes holds also where that failed."""


async def show_yes(context: PageContext) -> Response:
    """The scopes that are offered at a decision, each with what it takes and what it does not."""
    item = find_item(context.presence.inbox, context.key)
    if item is None:
        return redirect(context, f"{CONSOLE_HOME}/{quote(context.key)}")
    return await _yes_page(context, item)


@_deciding
async def give_yes(context: PageContext, item: InboxItem) -> Response:
    """Give the yes that was shown, and approve the decision at which it is given."""
    form = item.form
    text = context.form.get("pattern", "").replace("\r\n", "\n")
    chosen = context.form.get("scope", "")
    most = context.typed("most")
    try:
        if chosen == WRITTEN:
            scope = _read_scope(text)
            if context.form.get("seen", "").replace("\r\n", "\n") != text:
                return await _yes_page(context, item, written=(text, scope))
        else:
            scopes = context.presence.inbox.offered_scopes(item)
            if not chosen.isdecimal() or not 1 <= int(chosen) <= len(scopes):
                raise UsageError("Choose the calls that it is for.")
            scope = scopes[int(chosen) - 1]
        if context.form.get("seconds") not in TIMES:
            raise UsageError("Choose how long it holds.")
        if not most.isdecimal() or len(most) > 4 or not 1 <= int(most) <= MAX_YES_USES:
            raise UsageError(f"It lets 1 to {MAX_YES_USES} calls through.")
        if problem := why_not(context, item):
            raise UsageError(problem)
    except UsageError as error:
        return await _yes_page(context, item, problem=str(error))
    try:
        async with own_item(context, item) as (inbox, own):
            seconds = float(context.form["seconds"])
            await inbox.give_yes(own, scope, seconds=seconds, most=int(most))
    except MeupError as error:
        return await _yes_page(context, item, problem=f"Not done: {error}")
    return await carry_out(context, item, form=form, also=GIVEN)


async def show_yeses(context: PageContext) -> Response:
    """Every yes that is kept in the space."""
    kept = context.space_server.owner.yeses
    shown = [(each, YesScope("", each.yes.arguments, each.yes.others)) for each in reversed(kept)]
    return context.page("yeses.html", kept=shown, topics="space")


async def end_yes(context: PageContext) -> Response:
    """End a yes: what it covers is asked about again."""
    id, me = context.typed("yes") or "none", context.identity.participant
    ended = next((each.yes for each in context.space_server.owner.yeses if each.yes.id == id), None)
    try:
        async with context.presence.deciding() as session:
            await revoke_yes(session.space, id)
    except MeupError as error:
        return context.go_on(YESES, f"Not done: {error}", failed=True)
    if ended is not None:
        said = f"{me} ended the yes of {ended.by} to calls of {ended.tool} by {ended.proposer}."
        context.state.presences.tell_others(context.identity, OutcomeNotice(said))
    return context.go_on(YESES, "That yes has ended: you are asked again.")


def _read_scope(text: str) -> YesScope:
    """The scope that a person wrote.

    Raises:
        UsageError: It is none.
    """
    if len(text) > 2 * MAX_YES_BYTES:
        raise UsageError(f"What you wrote is longer than {MAX_YES_BYTES} bytes.")
    try:
        read: object = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError("What you wrote is not JSON.") from None
    return read_scope(read)


async def _yes_page(
    context: PageContext,
    item: InboxItem,
    *,
    written: tuple[str, YesScope] | None = None,
    problem: str = "",
) -> Response:
    try:
        async with own_item(context, item) as (inbox, own):
            inbox.check_yes(own)
            past = await inbox.read_past(own)
            scopes, is_used = inbox.offered_scopes(own), inbox.uses_yeses
    except (NotOffered, AlreadyDecided, AlreadyInProgress) as error:
        said = f"No yes in advance: {error}"
        return context.go_on(f"{CONSOLE_HOME}/{quote(context.key)}", said, failed=True)
    best = choose_scope(scopes, past, item.arguments)
    text, own_scope = written or (_written(scopes[best]), None)
    offers = [
        (str(number), each, preview_scope(each, item.call, past))
        for number, each in enumerate(scopes, 1)
    ]
    if own_scope is not None:
        offers.append((WRITTEN, own_scope, preview_scope(own_scope, item.call, past)))
        if not own_scope.takes(item.arguments):
            problem = problem or "What you wrote does not take this call."
    return context.page(
        "yes.html",
        BAD_REQUEST if problem else 200,
        item=item,
        key=item_key(item),
        offers=offers,
        chosen=WRITTEN if own_scope is not None else str(best + 1),
        text=text,
        seen="" if own_scope is None else text,
        is_used=is_used,
        times=TIMES,
        uses=USES,
        most=MAX_YES_USES,
        max_shown=MAX_SHOWN,
        digest=shown_digest(item),
        whole_call=whole_call(item),
        danger=dangers_of(item),
        problem=problem,
    )


def _written(scope: YesScope) -> str:
    said = {"arguments": scope.arguments, "others": scope.others}
    return json.dumps(said, indent=2, ensure_ascii=True)
