// Where the helm command comes from, which renders and checks deploy/helm. It is built within
// a module of its own ("make peers"): with its requirements, not with those of the Kubernetes
// programs next door.
module github.com/nfqproxy/nfqproxy/bench/peers/helm

go 1.26.0

require helm.sh/helm/v4 v4.3.1
