"""The gateway's cost of open consoles, and of the delivery of messages beside them.

CPU time of the gateway's process, less what the same 50 envelopes a second take without a console:
10 proposals, their withdrawals, 10 calls with their results, and 10 chats. The browsers are plain
sockets that hold an event stream each and read it. 200 consoles of 20 people are ten browsers of
each; 200 of 200 people are a member each. They all may do the same, so they share one inbox. A
reviewer is a process of its own, whose policy leaves all that is proposed to people: each inbox
asks it for its rules. Where each person is named by a proposal, each has a session and an inbox. A
chat goes to two members, once with 500 people signed in beside them. An inbox of 10,000 is a `GET`
of its page: the first person's opens an inbox, another's finds it there, and that of one who may do
other things opens another one.
"""

import socket
import time
from collections.abc import Iterator

from tests.bench.console_site import (
    CHIEF,
    DRAINED,
    IDLE_SECONDS,
    ConsoleSite,
    console_site,
    mixture,
    review,
)
from tests.bench.envelopes import chat, proposal
from tests.bench.figures import Figure, Program
from tests.bench.processes import process

CONSOLES = 200
PER_SECOND = 50
SECONDS = 6
PROPOSALS = 10_000
SIGNED_IN = 500
CHATS = 2_000
BURST = 100

INBOX, TIMELINE = "inbox", "inbox,space"


def share(site: ConsoleSite, people: int, topics: str, consoles: int, count: int) -> float:
    """Percent of a core while so many envelopes pass, with so many consoles open."""
    names = [f"you{number % people}" for number in range(consoles)]
    site.listen(names, topics)
    # Every inbox asks once who has which tools.
    site.load(mixture(5, "a"), PER_SECOND)
    site.settle()
    return 100 * site.load(mixture(count), PER_SECOND)


def reviewed(site: ConsoleSite, people: int, consoles: int, count: int, *, named: bool) -> float:
    """Percent of a core as :func:`share`, with a reviewer that each inbox asks for its rules."""
    with process(review, site.address) as reviewer:
        reviewer.recv()
        for number in range(people if named else 0):
            to = [f"you{number}", "tools"]
            site.say("caller", proposal(f"{number:031x}b", "caller", 3_600, to=to))
        return share(site, people, INBOX, consoles, count)


def page(site: ConsoleSite, path: str, person: str) -> tuple[float, float]:
    """Milliseconds until a page has come, and those of the gateway's CPU time."""
    used, begun = site.cpu(), time.perf_counter()
    with socket.create_connection(("127.0.0.1", site.address.port)) as sock:
        sock.sendall(site.get(path, person, "Connection: close"))
        heard = b""
        while came := sock.recv(DRAINED):
            heard += came
    assert b" 200 " in heard[:20], heard[:200]
    took = time.perf_counter() - begun
    return took * 1e3, (site.cpu() - used) * 1e3


def delivery(site: ConsoleSite, count: int) -> float:
    """Microseconds of CPU time for a chat to all members."""
    before = site.cpu()
    for begin in range(0, count, BURST):
        site.exchange([chat(f"{begin + n:032x}", "caller") for n in range(BURST)])
    return (site.cpu() - before) / count * 1e6


def measure(scale: float = 1.0) -> Iterator[Figure]:
    # Where nothing is measured, as in a test, nothing is worth waiting for.
    patience = IDLE_SECONDS if scale > 0.01 else 0.03
    count = max(10, round(PER_SECOND * SECONDS * scale))
    consoles = max(4, round(CONSOLES * min(1.0, scale * 10)))
    with console_site(1, patience=patience) as site:
        alone = 100 * site.load(mixture(count), PER_SECOND)
    yield Figure(f"{PER_SECOND} envelopes a second, no console", alone, "% of a core")
    ways = [
        (people, topics, f"{CONSOLES} consoles of {number} people: {words}", goal)
        for people, number in ((max(2, consoles // 10), 20), (consoles, 200))
        for topics, words, goal in ((INBOX, "the inbox", 15), (TIMELINE, "the timeline", 40))
    ]
    for people, topics, name, goal in ways if scale > 0.01 else ways[:1]:
        with console_site(people, patience=patience) as site:
            used = share(site, people, topics, consoles, count) - alone
        yield Figure(name, used, "% of a core", goal)
    number = max(2, consoles // 10)
    for named, words in (
        (False, "and a reviewer"),
        (True, "a reviewer, and each of them is named by a proposal"),
    ):
        with console_site(number, patience=patience) as site:
            used = reviewed(site, number, consoles, count, named=named) - alone
        name = f"{CONSOLES} consoles of 20 people: the inbox, {words}"
        yield Figure(name, used, "% of a core", None if named else 15)
    open_ones = max(20, round(PROPOSALS * scale))
    with console_site(2, -(-open_ones // 1_000), patience) as site:
        site.seed(open_ones)
        for person, words in (
            ("you0", "of the first person"),
            ("you1", "of another person"),
            (CHIEF, "of one with other capabilities"),
        ):
            took, cpu = page(site, "/console/inbox", person)
            yield Figure(f"10,000 open proposals: the first page {words}", took, "ms", 300)
            yield Figure(f"…{words}, CPU", cpu, "ms")
        # As a browser does that has drawn its page: the rest is read then.
        site.listen(["you1"], INBOX)
        site.settle()
        took, cpu = page(site, "/console/inbox", "you1")
        yield Figure("10,000 open proposals: each page after it", took, "ms", 300)
        yield Figure("…of it CPU", cpu, "ms")
    yield from beside(scale, patience)


def beside(scale: float, patience: float) -> Iterator[Figure]:
    """The delivery of a chat with and without people who are signed in."""
    chats = max(BURST, round(CHATS * scale))
    people = max(4, round(SIGNED_IN * min(1.0, scale * 10)))
    costs: list[float] = []
    for signed_in in (0, people):
        with console_site(max(1, signed_in), patience=patience) as site:
            site.listen([f"you{number}" for number in range(signed_in)], INBOX)
            site.settle()
            delivery(site, BURST)
            costs.append(delivery(site, chats))
    yield Figure("a chat, nobody signed in", costs[0], "µs")
    yield Figure("…with 500 people signed in", costs[1], "µs")


PROGRAM = Program("console", "The console: CPU time of the gateway", measure)
