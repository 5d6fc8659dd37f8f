"""AgentScope 1: records agents and hubs by wrapping their methods."""
