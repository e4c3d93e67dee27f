"""Who hears what is said in a space, and in which form."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from meup_agent.protocol.space.catch_up import CatchUp
    from meup_agent.protocol.space.journal import Entry


class Form(NamedTuple):
    """How somebody takes what is said: whatever has the same form is made once for all of them.

    Attributes:
        dialect: The dialect.
        numbered: Each frame says its number as ``seq`` (PROTOCOL 6).
        pack: Makes of a frame what is handed to :meth:`Listener.deliver`.
    """

    dialect: str
    numbered: bool = False
    pack: Callable[[bytes], bytes] = bytes


class Listener(Protocol):
    """Somebody who hears what is said in a space."""

    @property
    def form(self) -> Form:
        """How it takes what is said."""
        ...

    def deliver(self, packed: bytes) -> None:
        """Take a frame, packed once for all. Never raises, and never calls the host."""
        ...

    def close(self, code: int, reason: str) -> None:
        """End: it hears nothing more. Never raises, and never calls the host."""
        ...

    def ready(self, then: Callable[[], None]) -> None:
        """Call when most of what was delivered is on its way; not at all if it has ended."""
        ...


class Member(Listener, Protocol):
    """A participant's connection at the gateway."""

    @property
    def participant(self) -> str:
        """Whose connection it is."""
        ...

    @property
    def last_seen(self) -> int | None:
        """The number of the last envelope that it got before; ``None``: it does not resume."""
        ...

    @property
    def observes(self) -> bool:
        """Whether it only looks on (PROTOCOL 3)."""
        ...


class Readers(Protocol):
    """Tells whether senders have to wait for somebody who reads slowly."""

    @property
    def filling(self) -> bool:
        """Whether a queue is filling that is worth waiting for."""
        ...

    @property
    def patience(self) -> float:
        """Seconds for which senders wait for one reader at most."""
        ...

    def wait(self, sender: str) -> float:
        """Seconds for which a loud sender waits before it asks again; 0: it need not."""
        ...


class _NoReaders:
    """Nobody waits for anybody: queues that are full are closed."""

    filling = False
    patience = 0.0

    def wait(self, sender: str) -> float:
        return 0.0


NO_READERS: Final[Readers] = _NoReaders()


class Listeners:
    """Those who hear what is said, by form."""

    def __init__(self) -> None:
        # By identity: two connections of a participant can be here for a moment.
        self._by_form: dict[Form, dict[int, Listener]] = {}
        self._by_name: dict[str, Listener] = {}
        self._catching_up: dict[int, CatchUp] = {}

    def add(self, listener: Listener) -> None:
        """Let somebody hear what is said from now on."""
        self._catching_up.pop(id(listener), None)
        self._by_form.setdefault(listener.form, {})[id(listener)] = listener
        name = _name(listener)
        if name is not None:
            self._by_name[name] = listener

    def catch_up(self, catch_up: CatchUp) -> None:
        """Let somebody read what it missed first."""
        self._catching_up[id(catch_up.listener)] = catch_up
        catch_up.step()

    def remove(self, listener: Listener) -> None:
        """Let somebody hear nothing more; who is not here changes nothing."""
        waiting = self._catching_up.pop(id(listener), None)
        if waiting is not None:
            waiting.stop()
        group = self._by_form.get(listener.form)
        if group is not None and group.pop(id(listener), None) is not None:
            if not group:
                del self._by_form[listener.form]
            name = _name(listener)
            if name is not None and self._by_name.get(name) is listener:
                del self._by_name[name]

    def clear(self) -> None:
        """Take everybody out."""
        for waiting in self._catching_up.values():
            waiting.stop()
        self._by_form.clear()
        self._by_name.clear()
        self._catching_up.clear()

    def deliver(self, entry: Entry, frame: Callable[[Entry, Form], bytes | None]) -> int:
        """Hand an entry to everybody, made once for each form; how many got it.

        Those that it names come first: somebody waits for them, and not for the onlookers.
        """
        made = {form: frame(entry, form) for form in self._by_form}
        first = self._named(entry.envelope.to)
        for listener in first:
            packed = made[listener.form]
            if packed is not None:
                listener.deliver(packed)
        delivered = 0
        for form, group in self._by_form.items():
            packed = made[form]
            if packed is None:
                continue
            delivered += len(group)
            if first:
                for listener in group.values():
                    if listener not in first:
                        listener.deliver(packed)
            else:
                for listener in group.values():
                    listener.deliver(packed)
        return delivered

    def tell(self, listener: Listener, packed: bytes | None) -> None:
        """Hand something to one of them alone, after what it still has to read."""
        if packed is None:
            return
        waiting = self._catching_up.get(id(listener))
        if waiting is None:
            listener.deliver(packed)
        else:
            waiting.hold(packed)

    def _named(self, names: tuple[str, ...]) -> Collection[Listener]:
        """Those of these names who are here, each once."""
        here = self._by_name
        # Most envelopes name one, and looking into a tuple of one takes no hash.
        if len(names) == 1:
            name = names[0]
            return (here[name],) if name in here else ()
        return dict.fromkeys(here[name] for name in names if name in here)


def _name(listener: Listener) -> str | None:
    # An observer has its participant's name, and would stand in the way of the real member.
    return None if getattr(listener, "observes", False) else getattr(listener, "participant", None)
