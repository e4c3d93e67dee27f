"""The gateway that each space is to be at, as every gateway works it out for itself.

Rendezvous hashing: each space ranks all gateways by a hash of its name and theirs, and is to be at
the first that is there. So spaces are spread evenly, and when a gateway goes, or comes, only those
move that were at it, or are to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

import msgspec


class NodeHeartbeat(msgspec.Struct, array_like=True, tag="meup/node/1"):
    """A gateway's message that it is there, and what it has; several times a second."""

    node: str  # its name, for people
    nonce: str  # of this start of it
    config: str  # a digest of its configuration
    advertise: str = ""  # where it takes connections that came in at others; empty: nowhere
    spaces: dict[str, int] = {}  # those that it owns, with the epoch since when it does
    refused: list[str] = []  # those that it could not begin a moment ago
    leaves: bool = False


class Placement(NamedTuple):
    """The work of one gateway."""

    take: list[str]  # spaces that nobody has
    hand_over: list[str]  # spaces of its own that are to be at another
    follow: list[str]  # spaces of others that are to be here when those are gone


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
    here = nodes.values()
    for space in spaces:
        preferred, owner = preferred_owner(space, here), owner_of(space, here)
        if owner is None:
            if preferred is not None and preferred.nonce == nonce:
                plan.take.append(space)
        elif owner.nonce != nonce:
            following = preferred_owner(space, [each for each in here if each is not owner])
            if following is not None and following.nonce == nonce:
                plan.follow.append(space)
        elif (
            preferred is not None
            and preferred.nonce != nonce
            and preferred.nonce in steady
            and preferred.advertise
        ):
            plan.hand_over.append(space)
    return plan


def _rank(space: str, node: NodeHeartbeat) -> tuple[bytes, bytes]:
    # The name first: a gateway that comes back gets the spaces that it had.
    return _hash(space, node.node), _hash(space, node.nonce)


@lru_cache(maxsize=1 << 16)
def _hash(space: str, name: str) -> bytes:
    return sha256(msgspec.msgpack.encode([space, name])).digest()
