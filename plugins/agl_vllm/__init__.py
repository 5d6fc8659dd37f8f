"""Control of a running vLLM server: new weights, adapters, pauses. It registers no hooks."""

from agl_vllm._control import VllmControl

__all__ = ["VllmControl"]
