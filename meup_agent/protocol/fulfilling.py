"""The request that carries a proposal out (PROTOCOL 4.4 and 6)."""

from __future__ import annotations

from typing import NamedTuple

from meup_agent.protocol import payloads
from meup_agent.protocol.payloads import Call, Change, JsonObject


class Fulfilling(NamedTuple):
    """The request's parameters, and what in them is not as it was proposed."""

    params: JsonObject
    changes: tuple[Change, ...]


def fulfilling(
    call: Call, arguments: JsonObject | None, executor: str, *, proposer: str
) -> Fulfilling:
    """The parameters of the request that carries a proposal out.

    Args:
        call: What is proposed.
        arguments: Other arguments than the proposed ones; ``None``: those.
        executor: Who carries it out.
        proposer: Whose proposal it is: an id alone may be another's, too.
    """
    params = payloads.without_meta(call.params)
    if arguments is not None:
        params["arguments"] = arguments
    changes = payloads.changes(call, Call(call.method, params), executor)
    meta = {name: value for name, value in call.meta.items() if _is_passed_on(name)}
    digest = payloads.digest(call.method, params, executor if call.target is not None else None)
    if digest is not None:
        meta[payloads.DIGEST] = digest
    if changes:
        meta[payloads.EDITED] = True
    meta[payloads.PROPOSER] = proposer
    params[payloads.META] = meta
    return Fulfilling(params, changes)


def _is_passed_on(name: str) -> bool:
    """Whether a fulfillment repeats what the proposal has in ``_meta``: ``traceparent``, say."""
    return name != payloads.PROGRESS_TOKEN and not name.startswith(payloads.PREFIX)
