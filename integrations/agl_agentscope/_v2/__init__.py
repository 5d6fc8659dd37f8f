"""AgentScope 2: agents through their middleware."""
