"""Two agents of which one looks: it says what is in a picture, the other passes it on.

Written with the OpenAI client and nothing else. The program knows no trainer.
"""

from __future__ import annotations

import base64
from functools import cache
from io import BytesIO

from openai import OpenAI
from PIL import Image

COLOURS = ("red", "green", "blue", "yellow")
WARM = ("red", "yellow")
WIDTHS = (16, 24)
MODEL = "looks"


@cache
def client() -> OpenAI:
    """Made on first use: it takes its address and key from the environment."""
    return OpenAI()


def picture(colour: str, width: int) -> str:
    """A small PNG of one colour as a ``data:`` URL."""
    content = BytesIO()
    Image.new("RGB", (width, 16), colour).save(content, "PNG")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def look(url: str) -> tuple[str, str]:
    """Ask for the colour, then, in the same conversation, whether it is a warm one."""
    shown = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "Colour?"}]
    messages = [{"role": "user", "content": shown}]
    colour = _ask(messages)
    messages += [{"role": "assistant", "content": colour}, {"role": "user", "content": "Warm?"}]
    return colour, _ask(messages)


def report(colour: str, warm: str) -> str:
    """Describe the image to an agent that cannot see it."""
    return _ask([{"role": "user", "content": f"It is {colour}. Warm: {warm}."}])


def answer(url: str) -> tuple[str, str]:
    """Run the program on one picture."""
    colour, warm = look(url)
    report(colour, warm)
    return colour, warm


def _ask(messages: list) -> str:
    done = client().chat.completions.create(model=MODEL, messages=messages)
    return done.choices[0].message.content or ""
