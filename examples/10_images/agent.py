"""Two agents: one names the colour of an image, the other gets its answers as text.

The program uses only the OpenAI client and contains no training code.
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
    """Create the client at first use; it reads address and key from the environment."""
    return OpenAI()


def picture(colour: str, width: int) -> str:
    """Return a small PNG of one colour as a ``data:`` URL."""
    content = BytesIO()
    Image.new("RGB", (width, 16), colour).save(content, "PNG")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def look(url: str) -> tuple[str, str]:
    """Ask for the colour, then, in the same conversation, whether it is warm."""
    shown = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "Colour?"}]
    messages = [{"role": "user", "content": shown}]
    colour = _ask(messages)
    messages += [{"role": "assistant", "content": colour}, {"role": "user", "content": "Warm?"}]
    return colour, _ask(messages)


def report(colour: str, warm: str) -> str:
    """Send the description to the agent that does not get the image."""
    return _ask([{"role": "user", "content": f"It is {colour}. Warm: {warm}."}])


def answer(url: str) -> tuple[str, str]:
    """Run the program on one image."""
    colour, warm = look(url)
    report(colour, warm)
    return colour, warm


def _ask(messages: list) -> str:
    done = client().chat.completions.create(model=MODEL, messages=messages)
    return done.choices[0].message.content or ""
