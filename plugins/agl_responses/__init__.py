"""OpenAI Responses at the gateway: requests and answers said as chat completions and back.

`request` reads a request, `conversation` its messages, `answer` says the answer, `plugin` registers
it all as ``POST /responses``.
"""
