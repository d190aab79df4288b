package labapi

import (
	"context"
	"net/netip"
)

// Requester sends requests from the hosts of a lab. It is safe for concurrent use. Errors of invalid requests are an
// [*observe.Error]; that a request fails is none.
type Requester interface {
	Request(ctx context.Context, q Request) (*Response, error)
}

// Request is a request of a host.
type Request struct {
	// From is a pod (NAMESPACE/NAME, or NAME), a node or a client of the lab.
	From string `json:"from"`
	// To is a URL (http://NAME/PATH, tcp://NAME:PORT or udp://NAME:PORT), or NAME[:PORT]. Instead of a name it may have
	// an address. Without a port, the port is the only service port at the address, or else 80 over TCP.
	To string `json:"to"`
	// Protocol is tcp or udp; empty: that of To, or tcp.
	Protocol string `json:"protocol,omitempty"`
}

// Response is the answer to a request, or why there is none.
type Response struct {
	// Lookup is how the name was resolved; nil: To has an address.
	Lookup *Lookup `json:"lookup,omitempty"`
	// Source is the ip:port that the request was sent from; empty: there was no connection to send it on.
	Source string `json:"source,omitempty"`
	// Destination is the ip:port that it was sent to, or that there was no connection with; empty: the name has no
	// address.
	Destination string `json:"destination,omitempty"`
	// By is the pod or host that answered, as it calls itself; empty: none did, or a program that is not the lab's.
	By string `json:"by,omitempty"`
	// Client is the source address as the server sees it; empty: not known.
	Client string `json:"client,omitempty"`
	// Status is the status of an HTTP response; empty: the request was not HTTP.
	Status string `json:"status,omitempty"`
	// Error is the reason why there is no answer, as the client's system reports it; empty: there is one.
	Error string `json:"error,omitempty"`
	// Seconds is how long it took.
	Seconds float64 `json:"seconds"`
}

// Lookup is how a host resolved a name.
type Lookup struct {
	Name string `json:"name"`
	// Addresses are in the order in which programs try them; the request is sent to the first one. None: Error is why.
	Addresses []netip.Addr `json:"addresses"`
	// Queries are the DNS queries, in their order; none: the name is in the host's /etc/hosts.
	Queries []LookupQuery `json:"queries"`
}

// LookupQuery is a DNS query of a lookup.
type LookupQuery struct {
	// Name is the name with its search domain, Type A or AAAA.
	Name string `json:"name"`
	Type string `json:"type"`
	// Server and Source are the ip:port of the DNS server, and the one that the query was sent from.
	Server string `json:"server"`
	Source string `json:"source"`
	// Answer are the addresses with spaces between, or what the server reports (NXDOMAIN, NODATA, REFUSED), or why there
	// is no answer.
	Answer string `json:"answer"`
}
