// Where the commands hubble and hubble-relay come from, which nfqproxy's Hubble export is tested with. They
// are built within their own module ("make peers"): with its requirements, not with those of the
// Kubernetes programs next door.
module github.com/nfqproxy/nfqproxy/bench/peers/hubble

go 1.26.0

require github.com/cilium/cilium v1.20.2
