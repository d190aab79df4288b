package observe

import "context"

// Requester sends requests from the hosts of a lab. It is safe for concurrent use. Errors of invalid requests are an
// [*Error]; that a request fails is none.
type Requester interface {
	Request(ctx context.Context, q Request) (*Response, error)
}

// Request is a request of a host.
type Request struct {
	// From is a pod (NAMESPACE/NAME, or NAME), a node or a client of the lab.
	From string `json:"from"`
	// To is ADDRESS:PORT ([IPV6]:PORT).
	To string `json:"to"`
	// Protocol is tcp or udp; empty: tcp.
	Protocol string `json:"protocol,omitempty"`
}

// Response is the answer to a request, or why there is none.
type Response struct {
	// Source is the ip:port that the request was sent from; empty: none was.
	Source string `json:"source,omitempty"`
	// By is the pod or host that answered, as it calls itself; empty: none did, or a program that is not the lab's.
	By string `json:"by,omitempty"`
	// Client is the source address as the server sees it; empty: not known.
	Client string `json:"client,omitempty"`
	// Error is why there is no answer, as the client's system reports it; empty: there is one.
	Error string `json:"error,omitempty"`
	// Seconds is how long it took.
	Seconds float64 `json:"seconds"`
}
