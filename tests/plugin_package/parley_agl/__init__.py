"""Parley for agl-core."""
