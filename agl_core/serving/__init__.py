"""HTTP between the components of a run: a server on the loop, calls with results, their client.

Reading order: `asgi` (the few pieces of it), `server` (uvicorn as a guest), `rpc` (methods behind
one key), `peer` (who calls them, across restarts), `clocks` (of two machines that differ), `keys`;
`backend_http` (a backend behind HTTP), `openai_server` (HTTP before a backend), `answering`,
`counting`, `headers` and `problems` (what both ways of serving one answer with); `loop` and
`collector` are for processes that do nothing but serve; `vllm_control` changes the weights of a
server of somebody else.
"""
