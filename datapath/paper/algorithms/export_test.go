package algorithms

// Jump is jump, for tests.
var Jump = jump
