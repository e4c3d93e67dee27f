"""Themes of the screen: light and dark, and the styles of parts in each."""

from __future__ import annotations

from typing import Final

from textual.theme import Theme

DARK: Final = {
    "": "#d8dee9",
    "dim": "#8b95a7",
    "title": "bold #ffffff",
    "target": "#9fb3d1",
    "name": "bold #d8dee9",
    "key": "#8fc7ff",
    "string": "#c3e88d",
    "number": "#f7a072",
    "heading": "bold #d8dee9",
    "mark": "bold #ffffff on #b3261e",
    "danger": "bold #ff9d8a",
    "good": "bold #7ddf8c",
    "bad": "bold #ff8a80",
    "late": "bold #ffcb6b",
    "chosen": "bold",
}
LIGHT: Final = {
    "": "#24292f",
    "dim": "#5f6b7a",
    "title": "bold #000000",
    "target": "#43536b",
    "name": "bold #24292f",
    "key": "#0550ae",
    "string": "#116329",
    "number": "#953800",
    "heading": "bold #24292f",
    "mark": "bold #ffffff on #b3261e",
    "danger": "bold #a40e26",
    "good": "bold #0f6b2d",
    "bad": "bold #b3261e",
    "late": "bold #8a4600",
    "chosen": "bold",
}
"""Styles of parts by name; each has a contrast of 4.5 on its background."""

THEMES: Final = (
    Theme(
        name="meup-dark",
        primary="#8fc7ff",
        foreground="#d8dee9",
        background="#12161d",
        surface="#12161d",
        panel="#1d2430",
        success="#1f7a3a",
        error="#b3261e",
        warning="#ffcb6b",
        dark=True,
    ),
    Theme(
        name="meup-light",
        primary="#0550ae",
        foreground="#24292f",
        background="#ffffff",
        surface="#ffffff",
        panel="#eef2f7",
        success="#0f6b2d",
        error="#b3261e",
        warning="#8a4600",
        dark=False,
    ),
)
