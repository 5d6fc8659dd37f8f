"""Count the tokens of prompts at the gateway, in any dialect.

It serves ``POST .../v1/tokenize``. A plugin that has the same in another dialect calls `counted`; a server of one
backend calls `count_prompt`.
"""

from agl_counting._count import Prompt, count_prompt, counted

__all__ = ["Prompt", "count_prompt", "counted"]
