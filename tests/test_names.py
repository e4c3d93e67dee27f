"""Names of classes: one of each, so that a search for one finds one definition."""

import re
from collections import defaultdict
from pathlib import Path

import meup_agent

PACKAGE = Path(meup_agent.__file__).parent

CLASS = re.compile(r"^ *class (\w+)[(:\[]", re.MULTILINE)
"""By its text, in a hundredth of the time that parsing the package takes."""


def test_no_two_classes_have_one_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in CLASS.findall(path.read_text(encoding="utf-8")):
            places[name].append(str(path.relative_to(PACKAGE)))
    assert len(places) > 100
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
