"""Tracker ``template`` for agl-core."""
