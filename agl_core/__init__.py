"""agl-core: train the named sub-agents of an agent that already works."""
