"""AgentScope 2: records agents through their middleware."""
