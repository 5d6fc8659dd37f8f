"""OpenAI Responses at the gateway: translates requests and answers to chat completions and back.

`_request` reads a request, `_conversation` its messages, `_answer` translates the answer, `plugin`
registers all as ``POST /responses``.
"""
