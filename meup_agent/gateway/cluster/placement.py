"""The gateway that each space is to be at, as every gateway works it out for itself.

Rendezvous hashing: each space ranks all gateways by a hash of its name and theirs, and is to be at
the first that is there. So spaces are spread evenly, and when a gateway goes, or comes, only those
move that were at it, or are to be. A gateway that has read a space's log takes it sooner than one
that still has to, and no space moves to one that has not: its members would wait for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Annotated, Final, NamedTuple

import msgspec

FOLLOWERS: Final = 2
"""Gateways that follow each space beside its owner: so many of a space's gateways may go at once,
and who takes it over then need not read its log."""


class NodeHeartbeat(msgspec.Struct, array_like=True, tag="meup/node/1"):
    """A gateway's message that it is there, and what it has; several times a second."""

    node: str  # its name, for people
    nonce: str  # of this start of it
    config: str  # a digest of its configuration
    advertise: str = ""  # where it takes connections that came in at others; empty: nowhere
    spaces: dict[str, int] = {}  # those that it owns, with the epoch since when it does
    refused: list[str] = []  # those that it could not begin a moment ago
    leaves: bool = False
    follows: list[str] = []  # those of others whose logs it has read, and follows
    # The newest format of batches that it reads.
    format: Annotated[int, msgspec.Meta(ge=1)] = 1
    begins: list[str] = []  # those that nobody has, and that it is about to


class Placement(NamedTuple):
    """The work of one gateway."""

    take: list[str]  # spaces that nobody has
    hand_over: list[str]  # spaces of its own that are to be at another
    follow: list[str]  # spaces of others that may be here when those are gone


def owner_of(space: str, nodes: Iterable[NodeHeartbeat]) -> NodeHeartbeat | None:
    """The gateway that has a space; of several that say so, the one that began last."""
    claims = [each for each in nodes if space in each.spaces]
    return max(claims, key=lambda each: each.spaces[space], default=None)


def preferred_owner(space: str, nodes: Iterable[NodeHeartbeat]) -> NodeHeartbeat | None:
    """The gateway that a space is to be at.

    Where none takes connections that came in at others, all spaces are at one: at that which has
    any.
    """
    able = [each for each in nodes if not each.leaves and space not in each.refused]
    shared = [each for each in able if each.advertise]
    ranked = shared or [each for each in able if each.spaces] or able
    name = space if shared else ""
    return max(ranked, key=lambda each: _rank(name, each), default=None)


def next_owner(space: str, nodes: Iterable[NodeHeartbeat]) -> NodeHeartbeat | None:
    """The gateway that is to take a space which nobody has."""
    here = list(nodes)
    ready = [each for each in here if each.advertise and space in each.follows]
    return preferred_owner(space, ready) or preferred_owner(space, here)


def plan_for(
    nonce: str, nodes: Mapping[str, NodeHeartbeat], spaces: Iterable[str], steady: Iterable[str]
) -> Placement:
    """The spaces that one gateway is to take, and those that it is to hand over.

    Args:
        nonce: The gateway's.
        nodes: All that are there, by their nonces, it included.
        spaces: Those of the configuration.
        steady: The nonces of those that spaces are handed over to: not of one that may go at once.
    """
    plan, steady = Placement([], [], []), {*steady}
    here, follows = nodes.values(), {*nodes[nonce].follows}
    for space in spaces:
        preferred, owner = preferred_owner(space, here), owner_of(space, here)
        if owner is None:
            taking = next_owner(space, here)
            if taking is not None and taking.nonce == nonce:
                plan.take.append(space)
        elif owner.nonce != nonce:
            following = list(_next_owners(space, here, owner))
            # Who has read a log follows it until the space is where it is to be, and others have
            # read it: at every moment its owner may end.
            is_settled = owner is preferred and all(space in each.follows for each in following)
            if nodes[nonce] in following or (
                space in follows and not is_settled and any(each.advertise for each in following)
            ):
                plan.follow.append(space)
        elif (
            preferred is not None
            and preferred.nonce != nonce
            and preferred.nonce in steady
            and space in preferred.follows
            and preferred.advertise
        ):
            plan.hand_over.append(space)
    return plan


def _next_owners(
    space: str, nodes: Iterable[NodeHeartbeat], owner: NodeHeartbeat
) -> Iterator[NodeHeartbeat]:
    """The gateways that are next for a space when its owner goes, in turn."""
    left = [each for each in nodes if each is not owner]
    for _ in range(FOLLOWERS):
        following = preferred_owner(space, left)
        if following is None:
            return
        yield following
        left.remove(following)


def _rank(space: str, node: NodeHeartbeat) -> tuple[bytes, bytes]:
    # The name first: a gateway that comes back gets the spaces that it had.
    return _hash(space, node.node), _hash(space, node.nonce)


@lru_cache(maxsize=1 << 16)
def _hash(space: str, name: str) -> bytes:
    return sha256(msgspec.msgpack.encode([space, name])).digest()
