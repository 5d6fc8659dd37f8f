"""Generation: requests in, sampled tokens out, many at a time."""
