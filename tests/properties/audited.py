"""The audit of a world: the gateway's order decides, whatever participants saw."""

from collections.abc import Container, Iterable, Mapping

from meup_agent import Envelope, ProposalState
from tests.spaces import Audit, Entry, StepKind
from tests.tables import ProposalEntry, ProposalKey
from tests.wire import kinds


def folded(log: Iterable[Envelope]) -> Audit:
    """The audit of everything that a gateway ordered."""
    audit = Audit()
    for seq, envelope in enumerate(log, 1):
        audit.add(Entry(seq, "demo", seq, envelope))
    return audit


def check_audit(log: list[Envelope], expected: Mapping[ProposalKey, str]) -> None:
    """The audit has every proposal once, in the state that the order gives it.

    One that was made a second time is another one, which takes the place of the first.

    Args:
        log: The envelopes in the order of the gateway.
        expected: The end of each proposal, by that order alone.
    """
    audit = folded(log)
    found = {item.record.key: item for item in audit.proposals}
    made = sum(envelope.kind == kinds.MCP_PROPOSAL for envelope in log)
    assert made == len(audit.proposals), "a proposal is there twice, or not at all"
    assert found.keys() == expected.keys()
    for key, item in found.items():
        # That a rejection counts, others see as the withdrawal that follows it (PROTOCOL 4.5).
        is_rejected = item.state is ProposalState.REJECTED
        seen = ProposalState.WITHDRAWN if is_rejected else item.state
        assert seen == expected[key], (key, item.state, expected[key])
        assert (item.decision is None) == item.state.is_pending
        if item.decision is not None:
            assert item.decision.step in item.steps
        if is_rejected:
            assert item.decision is not None
            assert item.decision.step.what is StepKind.REJECTED
        assert [step.seq for step in item.steps] == sorted(step.seq for step in item.steps)


def check_own(
    log: Iterable[Envelope], records: Iterable[ProposalEntry], *, crossing: Container[str]
) -> None:
    """The audit never says less than a proposer's own record, where nothing was lost.

    A proposer that takes a rejection for an answer says so by its withdrawal. Only what crossed
    that on its way may be otherwise: a fulfillment that was ordered before it, or one of the
    ``crossing`` withdraws that another process of the proposer said.
    """
    found = {item.record.key: item for item in folded(log).proposals}
    for record in records:
        item = found.get(record.key)
        if item is None or record.state is not ProposalState.REJECTED or not item.decision:
            continue
        crossed = any(step.what is StepKind.REQUESTED for step in item.steps)
        crossed |= item.decision.step.id in crossing
        assert item.state is ProposalState.REJECTED or crossed, (record.key, item.state)
