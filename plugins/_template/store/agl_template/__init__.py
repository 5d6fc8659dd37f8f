"""Store ``template`` for agl-core."""
