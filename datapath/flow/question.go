package flow

// Question is a packet as users write it.
type Question struct {
	Protocol    string `json:"protocol"`    // tcp, udp or sctp
	Source      string `json:"source"`      // an address or a pod's name; the port may be left out
	Destination string `json:"destination"` // an address or a name, with a port
	Local       bool   `json:"local"`       // originates on the node itself
	InInterface string `json:"inInterface"` // the input interface; may be left out
}
