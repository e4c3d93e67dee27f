"""The longest time for a pattern and a value of 100 KB together: compile and match, at worst.

Run it from the repository: `python -m tests.bench.patterns`

First the shapes that are known to be bad, for this matcher or for others; then patterns and values
made at random out of what is bad in them, others in each round. All figures are CPU time.
`--worst` prints the worst. Nothing is asserted: tests/protocol/test_capability_limits.py tests the
limits.
"""

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

from meup_agent.errors import InvalidPattern
from meup_agent.protocol.capability import compile_capabilities, compile_pattern
from meup_agent.protocol.capability.patterns import Reading
from tests.bench.figures import Figure, Program, main
from tests.bench.timing import microseconds

SIZE = 100_000
RUNS = 3
SHOWN = 20
MADE_UP = 500
"""Patterns at random in one round."""

SEEDS = count(1)

Case = tuple[str, object, object]


def filled(text: str, room: int = SIZE) -> str:
    """The text again and again, so that it takes the room in UTF-8."""
    return text * (room // len(text.encode()))


def noise(alphabet: str, room: int = SIZE, seed: int = 1) -> str:
    """Letters at random, always the same ones."""
    letters = random.Random(seed)
    return "".join(letters.choices(alphabet, k=room // len(alphabet[-1].encode())))


def nested(levels: int, leaf: object, name: str = "a") -> Any:
    """An object in an object, so often."""
    for _ in range(levels):
        leaf = {name: leaf}
    return leaf


def broad_and_deep(levels: int, members: int) -> Any:
    """At each level one object that goes deeper, and many numbers beside it."""
    value: Any = 1
    for _ in range(levels):
        value = {"a": value, "b": [0] * members}
    return value


def strings() -> Iterator[Case]:
    """One pattern against one long text."""
    ab = noise("ab")
    for steps in (16, 24, 30, 36, 60, 120, 240, 480, 960):
        yield f"regex, {steps} letters that may be either", f"/a[ab]{{{steps}}}c/", ab
        yield f"regex, {steps // 4} pairs that may be missing", f"/a(?:a?b?){{{steps // 4}}}c/", ab
        yield (f"regex, anchored, {steps} either", f"/^(a|b)*a(a|b){{{steps}}}c$/", ab)
        yield f"negated, {steps} either", f"!/a[ab]{{{steps}}}c/", ab
    for many in (5, 10, 20, 40):
        yield f"glob, {many} of ?*", "a" + "?*" * many + "c", ab
        yield f"glob, star and {many} ?", "*a" + "?" * many + "c", ab
        yield f"glob, {many} classes", "*a" + "[ab]" * many + "c", ab
        yield f"glob, {many} choices", "*a" + "{a,b}" * many + "c", ab
        yield f"glob, {many} stars", "*a" * many + "c", ab
        yield f"glob, {many} words", "*ab" * many + "c*", ab
        yield f"glob, {many} **/*a*", "**/*a*/" * many + "c", noise("ab/")
        yield f"glob, {many} **/a", "**/a/" * many + "c", filled("a/")
    letters = "abcdefghijklmnopqrstuvwxyz"
    yield (
        "glob, a star in each of many choices",
        "{" + ",".join(f"*{a}*{b}*0" for a in letters for b in letters[:8])[:1000] + "}",
        noise(letters),
    )
    yield (
        "glob, words of many letters",
        "*" + "*".join(noise(letters, 9, seed) for seed in range(90)) + "*0",
        noise(letters),
    )
    yield "glob, choices before a star", "{a,aa}" * 150 + "*c", filled("a")
    yield "glob, segments that begin with dots", "**/x/**", filled("/.")
    yield "glob, dots and relative dots", "!**/x/**", filled("/../.")
    yield "glob, outside ASCII", "*é?*漢?😀", noise("é漢😀")
    yield "regex, outside ASCII", "/é.{40}漢/", noise("é漢😀")
    yield "regex, every letter whatever its case", "/(?i)[a-z].{60}0/", noise(letters)
    yield "regex, stars in stars", "/((((a*)*)*)*)*c/", filled("a")
    yield "regex, words with bounds", r"/(\b\w+\b.?){20}0/", noise("ab ")
    yield "regex, a class of everything", r"/[\s\S]{60}0/", noise("é漢😀")
    yield "regex, a repeated class", r"/[^a]{80}c/", filled("b")
    yield "regex, too many Unicode classes", "/" + r"\pL" * 330 + "/", "a"
    yield "regex, repetitions in repetitions", "/((((a{10}){10}){10}){10})/", "a"


def objects() -> Iterator[Case]:
    """Patterns that look through a value."""
    flat = list(range(18_000))
    yield "** over many numbers", {"**": "x"}, {"a": flat}
    yield "** with many alternatives", {"**": [f"x{n}*y{n}" for n in range(400)]}, {"a": flat}
    texts = {"a": ["ab" * 5] * 7_000}
    yield "** with many globs", {"**": [f"*{n}?b" for n in range(400)]}, texts
    yield "** with many negated globs", {"**": {"b": [f"!*{n}?b" for n in range(400)]}}, texts
    yield "** with many exact strings", {"**": [f"x{n}" for n in range(400)]}, texts
    yield "** with many objects", {"**": [{f"x{n}": 1} for n in range(450)]}, {"a": [{}] * 30_000}
    yield (
        "many keys with globs",
        {f"*{n}?*": 1 for n in range(400)},
        {f"{n}a": 1 for n in range(9_000)},
    )
    yield (
        "many keys that fit",
        {f"*{n}*": 0 for n in range(10)},
        {f"0123456789{n}": 1 for n in range(5_000)},
    )
    yield "keys with globs in one another", nested(30, 0, "*"), nested(98, 1)
    wide: Any = 1
    for _ in range(4):
        wide = {f"k{n}": wide for n in range(9)}
    yield "keys with globs in a bush", nested(4, 0, "*"), wide
    for step in ("..*", "..a", "..a.*", "..*[*]", "..[0]"):
        path = "$" + step * 45
        yield f"a path of 45 {step}", {path: 0}, broad_and_deep(95, 200)
        yield f"a path of 45 {step}, flat", {path: 0}, {"a": {"a": flat}}
    yield "a path of many stars", {"$" + ".*" * 90: 0}, broad_and_deep(95, 200)
    yield "many paths", {f"$..a{n}": 1 for n in range(400)}, broad_and_deep(95, 200)
    yield "many paths through everything", [{"$..*": n + 2} for n in range(300)], {"a": flat}
    yield "many ** side by side", [{"**": {f"x{n}": 1}} for n in range(300)], {"a": [{}] * 30_000}
    yield "lists in lists", {"$" + "[*]" * 90: 0}, [[[0] * 1_000] * 10]
    yield "a deep value", {"**": {"b": 1}}, nested(98, {"c": ["x"] * 20_000})
    yield "a deep pattern", nested(31, "x*"), nested(31, "x" * 90_000)
    yield "long keys", {"*a" + "?" * 20 + "c": 1}, {noise("ab"): 1}
    yield (
        "many texts of some length",
        {"**": "*a" + "?" * 20 + "c"},
        {"a": [noise("ab", 1_000, seed) for seed in range(95)]},
    )
    yield "many patterns for one text", [f"/{n}a[ab]{{30}}c/" for n in range(300)], noise("ab")
    yield "many simple patterns for one text", [f"*{n}*x" for n in range(400)], noise("ab")
    yield "much to compile", [f"/[^{chr(97 + n % 26)}]{{99}}{n}/" for n in range(400)], "a"
    yield "many globs to compile", [f"a{n}*b?c" for n in range(400)], "a"


def capabilities() -> Iterator[tuple[str, list[object], str, object]]:
    """Long lists of capabilities."""
    call = {"method": "tools/call", "params": {"name": "x" * 90_000, "arguments": {}}}
    yield (
        "many capabilities for a long name",
        [{"kind": "mcp/*", "payload": {"params": {"name": f"*{n}?x*"}}} for n in range(256)],
        "mcp/request",
        call,
    )
    yield (
        "many capabilities, few in common",
        [
            {"kind": "mcp/*", "payload": {"method": f"a{n}*", "params": {f"b{n % 7}": f"c{n}"}}}
            for n in range(256)
        ],
        "mcp/request",
        call,
    )
    yield (
        "many kinds for a long kind",
        [{"kind": f"*a{'?' * 20}{n}"} for n in range(256)],
        noise("ab", 90_000),
        {},
    )
    keys = {f"k{n}" * 10: "x" * 60 for n in range(480)}
    yield (
        "two capabilities with many keys in common",
        [{"kind": "mcp/*", "payload": {**keys, "z": n}} for n in range(2)],
        "mcp/request",
        call,
    )
    yield (
        "capabilities alike to a great depth",
        [{"kind": "mcp/*", "payload": nested(30, {"b": f"{n}" * 400})} for n in range(28)],
        "mcp/request",
        call,
    )
    yield "many negated kinds", [{"kind": f"!*{n}*"} for n in range(256)], "a" * 90_000, {}


def timed(run: Callable[[], object], runs: int = RUNS) -> float:
    """CPU seconds that a run takes: the median of some."""
    taken: list[float] = []
    for _ in range(runs):
        begun = time.process_time()
        run()
        taken.append(time.process_time() - begun)
    return statistics.median(taken)


def both(pattern: object, value: object, reading: Reading) -> Callable[[], object]:
    """Compile and match; a pattern that is refused is done with."""

    def run() -> object:
        try:
            return compile_pattern(pattern, reading=reading).matches(value)
        except InvalidPattern:
            return None

    return run


def allowed(patterns: list[object], kind: str, payload: object) -> Callable[[], object]:
    """Compile and decide."""

    def run() -> object:
        try:
            return compile_capabilities(patterns).allow(kind, payload)
        except InvalidPattern:
            return None

    return run


def made_up(source: random.Random) -> Case:
    """A pattern and a value out of what is bad elsewhere."""
    atoms = ["a", "b", "*", "**", "?", "[ab]", "{a,b}", "{a*,b?}", "/", "é", "a?", "*a"]
    bits = ["a", "b", "[ab]", "(a|b)", ".", "a?", "b*", "(?:ab?)+", ".*", "é", "[^a]", "(a|ab)*"]

    def text() -> str:
        if source.random() < 0.5:
            return "".join(source.choices(atoms, k=source.randint(1, 60)))
        body = "".join(source.choices(bits, k=source.randint(1, 25)))
        return f"/{source.choice(['', '^', 'a'])}{body}{{{source.randint(1, 60)}}}c/"

    def pattern(depth: int) -> object:
        roll = source.random()
        if depth == 0 or roll < 0.4:
            return source.choice(["", "", "!"]) + text()
        if roll < 0.6:
            return [pattern(depth - 1) for _ in range(source.randint(1, 30))]
        keys = ["a", "b", "*", "?*", "**", "$..a", "$.a[*]", "$..*", "[ab]*", "$.*.*", "a*b"]
        return {key: pattern(depth - 1) for key in source.sample(keys, source.randint(1, 4))}

    def value(depth: int, room: int) -> object:
        roll = source.random()
        if depth == 0 or roll < 0.3:
            return noise(source.choice(["ab", "a", "ab/", "abé", "a/."]), max(room, 2))
        many = source.choice([1, 2, 10, 100])
        if roll < 0.6:
            return [value(depth - 1, room // many)] * many
        return {f"{source.choice('ab')}{n or ''}": value(depth - 1, room // many) for n in range(2)}

    return "made up", pattern(source.randint(0, 3)), value(source.randint(0, 4), SIZE)


Found = tuple[float, str, str]
"""Seconds, what it is, the pattern."""


def known(runs: int = RUNS) -> Iterator[Found]:
    """Every known shape, measured."""
    for cases in (strings, objects):
        for name, pattern, value in cases():
            for reading in Reading:
                taken = timed(both(pattern, value, reading), runs)
                yield taken, f"{name}, {reading.value}", repr(pattern)
    for name, patterns, kind, payload in capabilities():
        yield timed(allowed(patterns, kind, payload), runs), name, repr(patterns)


def searched(tries: int, seed: int) -> Iterator[Found]:
    """Patterns at random, measured."""
    source = random.Random(seed)
    for number in range(tries):
        name, pattern, value = made_up(source)
        reading = [*Reading][number % len(Reading)]
        taken = timed(both(pattern, value, reading))
        yield taken, f"{name}, {reading.value}", repr(pattern)


CALL = {
    "jsonrpc": "2.0",
    "id": "1",
    "method": "tools/call",
    "params": {"name": "write_file", "arguments": {"path": "/public/a.txt"}},
}


def checks() -> Iterator[tuple[str, list[object]]]:
    """Twenty capabilities of one kind that are all looked at."""
    for name, tool in (("names", "read_{}"), ("globs", "read_{}_*"), ("other globs", "*a{}?x*")):
        yield (
            f"a check with 20 capabilities, {name}",
            [
                {
                    "kind": "mcp/request",
                    "payload": {"method": "tools/call", "params": {"name": tool.format(n)}},
                }
                for n in range(20)
            ],
        )


def measure(scale: float = 1.0) -> Iterator[Figure]:
    shapes, tries = list(known(max(1, round(RUNS * scale)))), max(1, round(MADE_UP * scale))
    yield Figure(f"the worst of {len(shapes)} known shapes", max(shapes)[0] * 1e3, "ms", 50)
    worst = max(searched(tries, next(SEEDS)))
    yield Figure(f"the worst of {tries} made up", worst[0] * 1e3, "ms", 50)
    for name, patterns in checks():
        ready = compile_capabilities(patterns)
        times = max(1, round(20_000 * scale))
        check = partial(ready.allow, "mcp/request", CALL)
        goal = 3 if "other" not in name else None
        yield Figure(name, microseconds(check, times), "µs", goal)


PROGRAM = Program("patterns", "Capability patterns: 100 KB of pattern and value", measure)


def show_worst(tries: int) -> None:
    """Print the worst, and what they are."""
    for taken, name, shown in sorted([*known(), *searched(tries, 1)], reverse=True)[:SHOWN]:
        sys.stdout.write(f"{taken * 1e3:8.2f} ms  {name:42.42}  {shown[:70]}\n")


if __name__ == "__main__":
    if "--worst" in sys.argv:
        show_worst(4 * MADE_UP)
    else:
        main([PROGRAM], sys.argv[1:])
