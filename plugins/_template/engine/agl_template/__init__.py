"""Engine ``template`` for agl-core."""
