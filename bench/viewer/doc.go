// Command viewer measures one viewer of the flows of many nodes: the relay that nfqproxy flows --cluster and the web
// page of a cluster read. The nodes are real flow APIs and journals, of one process; their flows are made up. See
// bench/README.md.
package main
