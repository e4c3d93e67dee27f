"""axe-core: the checks of accessibility that a program can make, as npm has it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

INSTALLED = Path(sys.prefix) / "console"
"""The folder into which npm puts it: beside what pip installs, so that both go away together."""

SCRIPT = INSTALLED / "node_modules" / "axe-core" / "axe.min.js"

UNDECIDED = {"color-contrast": ".lane, .timeline .said, kbd"}
"""Rule → the elements for which axe cannot decide it: text over the lines of a diagram,
and keys of one letter."""

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def install() -> None:
    """Install exactly what package-lock.json names."""
    # Not where only its checks are used.
    from tests import npm

    npm.install(HERE, INSTALLED)


async def violations(page: Any) -> list[str]:
    """Violations of a page as it is, and elements that axe could not decide beyond the known."""
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(SCRIPT.read_text(encoding="utf-8"))
    found = await page.evaluate(RUN, [RULES, UNDECIDED])
    wrong = [_describe(each) for each in found["violations"]]
    return wrong + [f"undecided: {_describe(each)}" for each in found["incomplete"]]


RUN = """async ([values, known]) => {
  const found = await axe.run(document, {
    runOnly: { type: "tag", values }, resultTypes: ["violations", "incomplete"],
  });
  // The bar with the buttons covers text, which is read once it is scrolled out from behind it.
  const covered = ["bgOverlap", "elmPartiallyObscuring"], bar = document.querySelector("#acts");
  const isCovered = node => bar && node.any.some(check => covered.includes(check.data?.messageKey));
  const element = node => document.querySelector(node.target.flat().at(-1));
  for (const each of found.incomplete) {
    each.nodes = each.nodes.filter(node => !isCovered(node));
    if (known[each.id])
      each.nodes = each.nodes.filter(node => !element(node)?.closest(known[each.id]));
  }
  found.incomplete = found.incomplete.filter(each => each.nodes.length);
  return { violations: found.violations, incomplete: found.incomplete };
}"""
"""Runs axe, and leaves out what is known to be undecided, element by element."""


def _describe(rule: dict[str, Any]) -> str:
    nodes = "; ".join(f"{each['html'][:200]} ({_why(each)})" for each in rule["nodes"][:3])
    return f"{rule['id']} ({rule['help']}): {nodes}"


def _why(node: dict[str, Any]) -> str:
    return ", ".join(check["message"] for check in (*node["any"], *node["all"], *node["none"]))


if __name__ == "__main__":
    install()
