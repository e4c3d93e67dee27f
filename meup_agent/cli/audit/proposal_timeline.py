"""One proposal and every step about it, as a timeline."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.text import Text

from meup_agent.cli.audit.phrases import (
    MAX_WORDS,
    by_rule,
    local,
    name,
    names,
    state_of,
    time_of,
    why,
)
from meup_agent.cli.render.formatting import format_answer
from meup_agent.cli.render.layout import NARROWEST, STATE_STYLES, Glyphs, hang
from meup_agent.escape import visible
from meup_agent.protocol import payloads
from meup_agent.protocol.audit import FulfillmentAudit, ProposalAudit, Step, StepKind
from meup_agent.wording import (
    FAILED,
    IGNORED,
    MAX_NAME,
    WHOLE,
    describe_changes,
    duration,
    format_call,
    format_proposed,
)

_NOUNS = {
    StepKind.PROPOSED: "proposal",
    StepKind.REQUESTED: "request",
    StepKind.CANCELLED: "cancel",
    StepKind.PROGRESSED: "progress",
    StepKind.RESPONDED: "response",
    StepKind.REJECTED: "reject",
    StepKind.WITHDREW: "withdraw",
    StepKind.EXPIRED: "expired",
    StepKind.RENEWED: "renewed",
    StepKind.SAID: "chat",
    StepKind.REFERRED: "request",
}
_NOUN = max(map(len, _NOUNS.values()))
_TIME = len("00:00:00.000")

_STYLES = {
    StepKind.PROPOSED: "bold",
    StepKind.REJECTED: "red",
    StepKind.WITHDREW: "yellow",
    StepKind.CANCELLED: "yellow",
    StepKind.PROGRESSED: "dim",
}


class ProposalTimeline:
    """Makes the lines of a timeline."""

    def __init__(self, width: int | None, glyphs: Glyphs) -> None:
        self._width = width
        self._glyphs = glyphs

    def lines(self, proposal: ProposalAudit) -> Iterator[Text]:
        """The proposal in a few lines, then what was said about it, in the gateway's order."""
        yield from self._head(proposal)
        who = max(cell_len(name(step.by)) for step in proposal.steps)
        if self._width is not None:
            # A longer name is cut there: what follows it on its line is not pushed out.
            who = min(who, max(self._width - _TIME - _NOUN - 2 * len("  "), NARROWEST))
        day = ""
        previous = None
        for step in proposal.steps:
            moment = local(step.at)
            if f"{moment:%Y-%m-%d}" != day:
                day = f"{moment:%Y-%m-%d}"
                yield Text(day, style="dim", no_wrap=True)
            yield self._line(step, proposal, who, previous)
            previous = step.state if step.ignored is None else previous
        if proposal.omitted:
            yield Text(f"and {proposal.omitted} more, which are not kept", style="dim")

    def _head(self, proposal: ProposalAudit) -> Iterator[Text]:
        state = state_of(proposal)
        line = Text(visible(proposal.id, MAX_NAME), style="bold cyan", no_wrap=True)
        yield line.append("  ").append(state, style=STATE_STYLES.get(state, ""))
        whom = names(proposal.record.envelope.to)
        to = f" to {whom}" if whom else ""
        lines = [f"{name(proposal.proposer)} proposed {format_proposed(proposal.call, WHOLE)}{to}"]
        decision = proposal.decision
        if decision is not None:
            said = why(decision.reason, proposal.explanation(decision.step))
            took = duration((decision.at - proposal.first.at) / 1_000_000)
            because = f": {said}" if said else ""
            how = f"decided by {name(decision.by)}" if decision.by else "expired"
            lines.append(f"{how} after {took}{because}")
            lines += filter(None, [by_rule(decision.step.rule)])
        if changes := describe_changes(proposal.changes):
            lines.append(f"edited: {changes}")
        for each in lines:
            yield Text(hang(each, self._width, 0), no_wrap=True)
        yield Text("")

    def _line(
        self, step: Step, proposal: ProposalAudit, who_width: int, previous: str | None
    ) -> Text:
        line = Text(no_wrap=True)
        moment = local(step.at)
        line.append(f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}  ", style="dim")
        who = Text(name(step.by) if step.by else "")
        who.truncate(who_width, overflow="ellipsis")
        who.align("left", who_width)
        line.append_text(who).append("  ")
        line.append(f"{_NOUNS[step.what]:<{_NOUN}}  ", style=_STYLES.get(step.what, ""))
        end = _end(step, previous, failed=_failed(_fulfillment(proposal, step.about), step))
        said = self._said(step, proposal)
        if end:
            said = f"{said}  [{end}]" if said else f"[{end}]"
        indent = line.cell_len
        if self._width is not None and self._width - indent < 2 * NARROWEST:
            indent = 4
            line.rstrip()
            line.append("\n" + " " * indent)
        style = "dim" if step.ignored is not None else ""
        line.append(hang(said, self._width, indent), style=style)
        line.rstrip()
        return line

    def _said(self, step: Step, proposal: ProposalAudit) -> str:
        whom = f" {self._glyphs.arrow} {names(step.to)}" if step.to else ""
        match step.what:
            case StepKind.PROPOSED:
                return f"{format_proposed(proposal.call, more='the beginning')}{whom}"
            case StepKind.REQUESTED:
                item = _fulfillment(proposal, step.id)
                return ", ".join(filter(None, [self._request(item, whom), by_rule(step.rule)]))
            case StepKind.RESPONDED:
                return _answer(_fulfillment(proposal, step.about), step)
            case StepKind.PROGRESSED:
                times = "once" if step.times == 1 else f"{step.times} times"
                until = f", until {local(step.until):%H:%M:%S}" if step.times > 1 else ""
                return f"{times}{until}"
            case StepKind.SAID | StepKind.CANCELLED:
                return visible(" ".join(step.text.split()), MAX_WORDS)
            case StepKind.REFERRED:
                return f"{visible(step.text, MAX_WORDS)}, which is not what was proposed{whom}"
            case StepKind.EXPIRED:
                return "no decision in its time"
            case StepKind.RENEWED:
                return f"until {time_of(step.until, beside=step.at)}"
            case StepKind.REJECTED | StepKind.WITHDREW:
                said = [why(step.reason, step.text), by_rule(step.rule)]
                return ", ".join(filter(None, said))

    def _request(self, item: FulfillmentAudit | None, whom: str) -> str:
        if item is None:
            return whom.lstrip()
        call = payloads.read_call(item.request.envelope.payload)
        changed = describe_changes(item.changes)
        edited = f", edited: {changed}" if changed else ""
        return f"{format_call(call, WHOLE)}{whom}{edited}"


def _end(step: Step, previous: str | None, *, failed: bool) -> str:
    """The reason why a step changed nothing, or the state that it led to."""
    if step.ignored is not None:
        return f"ignored: {IGNORED[step.ignored]}"
    if failed and step.state != previous:
        return FAILED
    return "" if step.state == previous else step.state.value.replace("_", " ")


def _fulfillment(proposal: ProposalAudit, request: str) -> FulfillmentAudit | None:
    return next((item for item in proposal.fulfillments if item.id == request), None)


def _failed(item: FulfillmentAudit | None, step: Step) -> bool:
    """True if a step is an error response to a request."""
    return item is not None and item.response is step and item.is_error


def _answer(item: FulfillmentAudit | None, step: Step) -> str:
    if item is None or item.response is not step:
        return ""
    if item.answer is None:
        return "an error, too long to be kept" if item.is_error else "too long to be kept"
    return format_answer(item.answer)[0]
