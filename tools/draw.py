"""Draw the diagrams of the documentation, each for light and for dark pages.

::

    python tools/draw.py            # writes docs/images/NAME-light.svg and NAME-dark.svg
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

IMAGES: Final = Path(__file__).parents[1] / "docs" / "images"
THEMES: Final[Mapping[str, Mapping[str, str]]] = {
    "light": {
        "ink": "#1f2328",
        "soft": "#59636e",
        "line": "#818b98",
        "plain": "#f6f8fa",
        "blue": "#ddf4ff",
        "green": "#dafbe1",
        "amber": "#fff8c5",
    },
    "dark": {
        "ink": "#f0f6fc",
        "soft": "#9198a1",
        "line": "#656c76",
        "plain": "#262c36",
        "blue": "#12304f",
        "green": "#12391f",
        "amber": "#3f3008",
    },
}

Point = tuple[float, float]


@dataclass(slots=True)
class Drawing:
    """An SVG picture: boxes with text, arrows, and text alone."""

    width: int
    height: int
    label: str
    theme: Mapping[str, str]
    parts: list[str] = field(default_factory=list[str])

    def box(self, at: Point, size: Point, lines: Sequence[str], *, fill: str = "plain") -> None:
        """Draw a box; the first line is its title."""
        (x, y), (width, height) = at, size
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{self.theme[fill]}" '
            f'stroke="{self.theme["line"]}"/>'
        )
        top = y + height / 2 - (len(lines) - 1) * 8 + 4.5
        for number, line in enumerate(lines):
            self.text((x + width / 2, top + number * 16), line, title=number == 0)

    def text(self, at: Point, text: str, *, title: bool = False, anchor: str = "middle") -> None:
        """Write one line of text."""
        colour, weight = ("ink", "600") if title else ("soft", "400")
        self.parts.append(
            f'<text x="{at[0]}" y="{at[1]}" text-anchor="{anchor}" fill="{self.theme[colour]}" '
            f'font-weight="{weight}">{escape(text)}</text>'
        )

    def arrow(self, *points: Point, head: bool = True) -> None:
        """Draw a line through points; an arrow if it has a head."""
        path = " L".join(f"{x},{y}" for x, y in points)
        end = ' marker-end="url(#head)"' if head else ""
        self.parts.append(
            f'<path d="M{path}" fill="none" stroke="{self.theme["line"]}" stroke-width="1.5"{end}/>'
        )

    def svg(self) -> str:
        """Return the whole picture."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(self.label)}" '
            f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}" '
            'font-family="system-ui, sans-serif" font-size="12.5">\n'
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{self.theme["line"]}"/></marker></defs>\n'
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


def loop(theme: Mapping[str, str]) -> Drawing:
    drawing = Drawing(860, 250, "The loop of a run, from agent calls to new weights", theme)
    drawing.box((10, 70), (120, 60), ["agent program", "as it is"], fill="blue")
    drawing.box((190, 20), (150, 60), ["tracing", "who spoke"])
    drawing.box((190, 120), (150, 60), ["gateway", "which tokens"])
    drawing.box((400, 70), (90, 60), ["store", "records"])
    drawing.box((530, 70), (120, 60), ["adapters", "token paths"])
    drawing.box((690, 70), (160, 60), ["training", "advantage and loss"], fill="green")
    drawing.arrow((130, 92), (160, 92), (160, 50), (190, 50))
    drawing.arrow((130, 108), (160, 108), (160, 150), (190, 150))
    drawing.arrow((340, 50), (370, 50), (370, 92), (400, 92))
    drawing.arrow((340, 150), (370, 150), (370, 108), (400, 108))
    drawing.arrow((490, 100), (530, 100))
    drawing.arrow((650, 100), (690, 100))
    drawing.arrow((770, 130), (770, 220), (70, 220), (70, 130))
    drawing.text((420, 212), "new weights or prompts serve the next step")
    return drawing


def records(theme: Mapping[str, str]) -> Drawing:
    drawing = Drawing(860, 210, "A rollout has attempts, agent runs, calls and choices", theme)
    drawing.box((10, 75), (110, 50), ["rollout", "one task"], fill="blue")
    drawing.box((160, 75), (120, 50), ["attempt", "fenced"])
    for number, y in enumerate((35, 125)):
        drawing.box((330, y), (130, 40), [("planner's run", "writer's run")[number]])
        drawing.arrow((280, 100), (305, 100), (305, y + 20), (330, y + 20))
    for y, source in ((10, 55), (60, 55), (125, 145)):
        drawing.box((510, y), (90, 40), ["call"])
        drawing.arrow((460, source), (485, source), (485, y + 20), (510, y + 20))
    for y, source in ((10, 30), (60, 80), (110, 145), (160, 145)):
        drawing.box((650, y), (90, 40), ["choice"], fill="green")
        drawing.arrow((600, source), (625, source), (625, y + 20), (650, y + 20))
        drawing.text((752, y + 25), "token ids", anchor="start")
    drawing.arrow((120, 100), (160, 100))
    drawing.text((555, 196), "n = 2")
    return drawing


def prefixes(theme: Mapping[str, str]) -> Drawing:
    drawing = Drawing(860, 190, "Calls that share a prefix share its tokens", theme)
    drawing.box((10, 75), (200, 44), ["system and question", "context: no loss"])
    for y, text, said in (
        (15, "“The lamp costs 34 euros.”", "attempt 1, advantage +1"),
        (73, "“It is 34.”", "attempt 2, advantage -1"),
        (131, "“The lamp costs 34.”", "attempt 3, advantage 0"),
    ):
        drawing.box((280, y), (240, 48), [text, said], fill="green")
        drawing.arrow((210, 97), (245, 97), (245, y + 24), (280, y + 24))
    drawing.box((590, 15), (110, 48), ["tool result", "context"])
    drawing.box((740, 15), (110, 48), ["next call", "trained"], fill="green")
    drawing.arrow((520, 39), (590, 39))
    drawing.arrow((700, 39), (740, 39))
    drawing.text((720, 100), "a call whose prompt begins with an earlier")
    drawing.text((720, 117), "call and its answer continues that path")
    return drawing


def versions(theme: Mapping[str, str]) -> Drawing:
    drawing = Drawing(860, 210, "Rollouts and updates over time, with and without staleness", theme)
    drawing.text((10, 42), "max_staleness = 0", title=True, anchor="start")
    x = 150
    for number in range(3):
        drawing.box((x, 20), (130, 36), [f"rollouts {number}"], fill="blue")
        drawing.box((x + 130, 20), (100, 36), [f"update {number}"], fill="green")
        x += 230
    drawing.text((10, 112), "max_staleness = 1", title=True, anchor="start")
    drawing.box((150, 90), (130, 36), ["rollouts 0"], fill="blue")
    for number in range(4):
        drawing.box((280 + 140 * number, 90), (140, 36), [f"update {number}"], fill="green")
    for number, (x, width) in enumerate(((150, 270), (420, 140), (560, 140))):
        drawing.box((x, 136), (width, 30), [f"rollouts {number + 1}"], fill="amber")
    drawing.arrow((150, 186), (850, 186))
    drawing.text((500, 202), "time")
    return drawing


DRAWINGS: Final[Mapping[str, Callable[[Mapping[str, str]], Drawing]]] = {
    "loop": loop,
    "records": records,
    "prefixes": prefixes,
    "versions": versions,
}


def pictures() -> dict[str, str]:
    """Return every picture by the name of its file."""
    return {
        f"{name}-{theme}.svg": draw(colours).svg()
        for name, draw in DRAWINGS.items()
        for theme, colours in THEMES.items()
    }


def main() -> None:
    """Write every picture."""
    IMAGES.mkdir(exist_ok=True)
    for name, svg in pictures().items():
        (IMAGES / name).write_text(svg, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
