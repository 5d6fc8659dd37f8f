"""Anthropic Messages at the gateway: requests become chat completions, and answers Messages.

Reading order: `_conversation` (messages), `_request` (the other fields), `_answer`, `_counting`.
"""
