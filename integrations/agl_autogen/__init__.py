"""AutoGen for agl-core; nothing here is needed in the user's code."""
