"""OpenAI Responses at the gateway: translates requests and answers to chat completions and back.

`request` reads a request, `conversation` its messages, `answer` translates the answer, `plugin`
registers all as ``POST /responses``.
"""
