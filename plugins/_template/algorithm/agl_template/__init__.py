"""Algorithm ``template`` for agl-core."""
