// Package diagnose finds out from the objects of a cluster why a service does not answer.
package diagnose

import "encoding/json"

// Version is that of the JSON of answers and findings. It goes up when a field changes its meaning.
const Version = 1

// Code identifies a kind of finding. A code never changes its meaning; docs/findings.md has a section for
// each.
type Code string

// The findings.
const (
	// Of the question itself.
	NoSuchPort      Code = "NFQ001" // the Service has no such port
	Headless        Code = "NFQ002" // the Service has no cluster IP: no proxy is involved
	NotServed       Code = "NFQ003" // the Service is not for this proxy
	OutsideOnly     Code = "NFQ004" // a cluster IP or a pod's address, from outside of the cluster
	UnknownAddress  Code = "NFQ005" // no Service and no Pod has the address
	NodePortClosed  Code = "NFQ006" // node ports are not open at this address
	LoopbackForeign Code = "NFQ007" // a loopback address, from elsewhere
	ClaimedTwice    Code = "NFQ008" // another Service has the address, too
	NodeAddress     Code = "NFQ009" // an external IP is the address of a node

	// Of the Service's endpoints.
	SelectorMatchesNothing Code = "NFQ010" // the selector matches no Pod
	NoSelector             Code = "NFQ011" // no selector, and no EndpointSlice
	NoSlices               Code = "NFQ012" // Pods match, but there is no EndpointSlice
	PodsNotReady           Code = "NFQ013" // Pods match, and none is ready
	NoNamedPort            Code = "NFQ014" // the target port is a name that no container has
	SliceWithoutPort       Code = "NFQ015" // the EndpointSlices have no port of this name and protocol
	OtherFamily            Code = "NFQ016" // the endpoints are of the other address family
	OtherPort              Code = "NFQ017" // the containers declare other ports than the endpoint's
	NoListener             Code = "NFQ018" // nothing listens at the endpoint's port
	PodGone                Code = "NFQ019" // the endpoint's Pod has ended, or does not exist
	NoEndpoints            Code = "NFQ020" // no endpoints, for a reason that the objects do not show
	SomeNotReady           Code = "NFQ021" // some Pods are not ready, others are
	SlicesDiffer           Code = "NFQ022" // the port has different numbers in the EndpointSlices

	// Of policies.
	NoLocalEndpoints Code = "NFQ030" // traffic policy Local, and no endpoint on the node
	SourceNotAllowed Code = "NFQ031" // the load balancer's source ranges exclude the source
	NodesWithout     Code = "NFQ032" // traffic policy Local, and some nodes have no endpoint
	AffinityToOne    Code = "NFQ033" // session affinity with one endpoint
	NoAddressYet     Code = "NFQ034" // type LoadBalancer without an address
	AllClosed        Code = "NFQ035" // node ports are open at no address of any node

	// Of recent flows.
	Refuses Code = "NFQ040" // the endpoint refuses connections
	Silent  Code = "NFQ041" // the endpoint does not answer

	// Of the API.
	DeprecatedExternalIPs Code = "NFQ050" // spec.externalIPs
	DeprecatedEndpoints   Code = "NFQ051" // objects of kind Endpoints
)

// Codes are all codes.
func Codes() []Code {
	return []Code{
		NoSuchPort, Headless, NotServed, OutsideOnly, UnknownAddress, NodePortClosed, LoopbackForeign, ClaimedTwice, NodeAddress,
		SelectorMatchesNothing, NoSelector, NoSlices, PodsNotReady, NoNamedPort, SliceWithoutPort, OtherFamily, OtherPort, NoListener, PodGone,
		NoEndpoints, SomeNotReady, SlicesDiffer,
		NoLocalEndpoints, SourceNotAllowed, NodesWithout, AffinityToOne, NoAddressYet, AllClosed,
		Refuses, Silent,
		DeprecatedExternalIPs, DeprecatedEndpoints,
	}
}

// Severity is how much a finding matters.
type Severity int

// The severities, the worst first.
const (
	Error   Severity = iota // connections fail
	Warning                 // some connections fail, or will
	Note                    // worth knowing
)

// String returns error, warning or note.
func (s Severity) String() string { return [...]string{"error", "warning", "note"}[s] }

// Severity is that of all findings with the code.
func (c Code) Severity() Severity {
	switch c {
	case OtherFamily, SomeNotReady, SlicesDiffer, NodeAddress, NoAddressYet, PodGone:
		return Warning
	case NodesWithout, AffinityToOne, DeprecatedExternalIPs, DeprecatedEndpoints, Headless:
		return Note
	}
	return Error
}

// Finding is one cause, with what to do about it.
//
// Finding marshals to JSON with its severity.
type Finding struct {
	Code Code `json:"code"`
	// Object is the object to look at, as "Service shop/web"; Field is the path in it. Both may be empty.
	Object string `json:"object,omitempty"`
	Field  string `json:"field,omitempty"`
	// Text is one sentence without a full stop, in words of Kubernetes.
	Text string `json:"text"`
	// Do is what to do: a sentence without a full stop.
	Do string `json:"do"`
}

// MarshalJSON adds the severity.
func (f Finding) MarshalJSON() ([]byte, error) {
	type fields Finding
	return json.Marshal(struct {
		Severity string `json:"severity"`
		fields
	}{f.Code.Severity().String(), fields(f)})
}
