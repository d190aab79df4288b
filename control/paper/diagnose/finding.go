// Package diagnose finds out from the objects of a cluster why a service does not answer.
package diagnose

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Version is the version of the JSON of answers and findings. It increases when a field changes its meaning.
const Version = 1

// Code identifies a kind of finding. A code never changes its meaning; docs/reference/findings.md has a section for
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
	PodGone                Code = "NFQ019" // the endpoint's Pod has ended, does not exist, or has another address
	NoEndpoints            Code = "NFQ020" // no endpoints, for a reason that the objects do not show
	SomeNotReady           Code = "NFQ021" // some Pods are not ready, others are
	SlicesDiffer           Code = "NFQ022" // the port has different numbers in the EndpointSlices
	NoDNSName              Code = "NFQ023" // externalName is an address, or no DNS name
	FurtherAddresses       Code = "NFQ024" // endpoints have addresses besides the first, which are ignored
	NotShown               Code = "NFQ025" // whether there are endpoints is not known
	HeadlessAddress        Code = "NFQ026" // a headless Service has a type or addresses that no proxy serves
	NodePortRange          Code = "NFQ027" // a node port is outside of the API server's usual range
	EndpointIsClusterIP    Code = "NFQ028" // the endpoint is the cluster IP of a Service
	SharedAddress          Code = "NFQ029" // two Pods have one address

	// Of policies.
	NoLocalEndpoints Code = "NFQ030" // traffic policy Local, and no endpoint on the node
	SourceNotAllowed Code = "NFQ031" // the load balancer's source ranges exclude the source
	NodesWithout     Code = "NFQ032" // traffic policy Local, and some nodes have no endpoint
	AffinityToOne    Code = "NFQ033" // session affinity with one endpoint
	NoAddressYet     Code = "NFQ034" // type LoadBalancer without an address
	AllClosed        Code = "NFQ035" // node ports are open at no address of any node
	PolicyForbids    Code = "NFQ036" // network policies do not allow the connection
	HintsIgnored     Code = "NFQ037" // topology hints have no effect on some nodes
	OutsideCIDR      Code = "NFQ038" // a cluster IP is outside of the service CIDRs
	FewReplicas      Code = "NFQ039" // traffic policy Local, and fewer Pods than nodes

	// Of recent flows.
	Refuses Code = "NFQ040" // the endpoint refuses connections
	Silent  Code = "NFQ041" // the endpoint does not answer

	// Of what nodes observe; see package findings.
	Uneven          Code = "NFQ042" // new flows are not spread evenly
	OldConnections  Code = "NFQ043" // new connections are spread evenly, open ones are not
	StuckUDP        Code = "NFQ044" // UDP flows go to an endpoint that was removed
	TableNearlyFull Code = "NFQ045" // the connection table is nearly full
	Repeats         Code = "NFQ046" // first packets are sent again
	PortsNearlyUsed Code = "NFQ047" // a node's ports towards one endpoint are nearly used up
	NodeProblem     Code = "NFQ048" // a problem of a node's daemon
	TablesDiffer    Code = "NFQ049" // nodes have different service tables

	// Of the API.
	DeprecatedExternalIPs Code = "NFQ050" // spec.externalIPs
	DeprecatedEndpoints   Code = "NFQ051" // objects of kind Endpoints
	DeprecatedIPVS        Code = "NFQ052" // kube-proxy's mode ipvs
	ExternalIPsIgnored    Code = "NFQ053" // the proxy ignores spec.externalIPs

	// Of iptables rules.
	RulesInconsistent Code = "NFQ060" // kube-proxy's rules are inconsistent
	RulesIncomplete   Code = "NFQ061" // the file does not show all rules
	HostRuleDrops     Code = "NFQ062" // a rule or policy that is not kube-proxy's drops connections to services
	HostDropsFlows    Code = "NFQ063" // a rule of the host drops flows after they were decided
	HostRuleMayDrop   Code = "NFQ064" // a rule or policy drops connections at times
	HostRuleUnclear   Code = "NFQ065" // whether a rule or policy drops connections is not known
	HostRuleQueues    Code = "NFQ066" // connections wait for a program at a netfilter queue
	NotTranslated     Code = "NFQ067" // packets to a service keep their destination, or get another one
	NotMasqueraded    Code = "NFQ068" // connections from outside keep their source
	TwoBackEnds       Code = "NFQ069" // kube-proxy's rules are in both back ends of iptables

	// Of the way of packets.
	SameBridge     Code = "NFQ070" // client and endpoint may share a bridge, which keeps the reply from the translation
	ReplyBypasses  Code = "NFQ071" // the reply does not pass the node that translated the packet
	Depends        Code = "NFQ072" // the result depends on what the objects do not show
	BehindBalancer Code = "NFQ073" // a load balancer sends the packet on to a node port
	OtherProgram   Code = "NFQ074" // not a service proxy, but another program takes the packet

	// Of nodes.
	HostDropsSome Code = "NFQ075" // a rule of the host drops some packets: at random, or above a number
	BrokenRoute   Code = "NFQ076" // a node has no route to an address, or a wrong one
	ReverseFilter Code = "NFQ077" // a node drops packets because of their source (rp_filter)
	SendsLate     Code = "NFQ078" // a node's device makes packets late
	NodeNotReady  Code = "NFQ079" // a node is not ready

	OnlyDefaultRoute Code = "NFQ094" // a node has no route of its own to an endpoint, though to others

	NoNeighbour    Code = "NFQ097" // a host did not answer a node that sends it packets for endpoints
	WrongNeighbour Code = "NFQ098" // a node sends packets for another node's address to a device that is not its

	NoHairpin Code = "NFQ099" // a bridge does not send packets back by the port that they came in by

	SameTuple Code = "NFQ095" // packets were dropped because another one of the same addresses and ports made the entry

	PodsOutside Code = "NFQ096" // Pods have addresses outside of the network that the proxy takes for the Pods'

	// Of connection entries.
	StaleConnections    Code = "NFQ080" // connections of TCP or SCTP lead to what is no endpoint
	EntryElsewhere      Code = "NFQ081" // connections lead to an endpoint of another Service
	EntryNotTranslated  Code = "NFQ082" // connections to a Service are not translated
	EntryNotMasqueraded Code = "NFQ083" // connections keep their source, and have to be masqueraded

	// Of virtual servers of IPVS.
	NoRealServer         Code = "NFQ084" // a virtual server has no real server that takes connections
	AddressOnly          Code = "NFQ085" // an address of kube-ipvs0 has no virtual server
	ServerWithoutAddress Code = "NFQ086" // the address of a virtual server is none of the node's
	LeftOverServers      Code = "NFQ087" // virtual servers beside the rules of another mode
	ServerInNoSet        Code = "NFQ089" // a virtual server is in none of kube-proxy's ipsets

	// Of flows that another service proxy decides.
	ProxyOutdated    Code = "NFQ090" // it sends new flows to endpoints that were out of use for some time
	ProxyUnknown     Code = "NFQ091" // it sends new flows to what is no endpoint
	ProxyTranslation Code = "NFQ092" // it does not translate flows to a service
	ProxyLags        Code = "NFQ093" // its rules lack changes for some time

	// Of a node's rules beside objects.
	RulesOutdated Code = "NFQ088" // a node's rules are not what the objects ask for
)

// Codes are all codes.
func Codes() []Code {
	return []Code{
		NoSuchPort, Headless, NotServed, OutsideOnly, UnknownAddress, NodePortClosed, LoopbackForeign, ClaimedTwice, NodeAddress,
		SelectorMatchesNothing, NoSelector, NoSlices, PodsNotReady, NoNamedPort, SliceWithoutPort, OtherFamily, OtherPort, NoListener, PodGone,
		NoEndpoints, SomeNotReady, SlicesDiffer, NoDNSName, FurtherAddresses, NotShown, HeadlessAddress, NodePortRange, EndpointIsClusterIP, SharedAddress,
		NoLocalEndpoints, SourceNotAllowed, NodesWithout, AffinityToOne, NoAddressYet, AllClosed, PolicyForbids, HintsIgnored, OutsideCIDR, FewReplicas,
		Refuses, Silent, Uneven, OldConnections, StuckUDP, TableNearlyFull, Repeats, PortsNearlyUsed, NodeProblem, TablesDiffer,
		DeprecatedExternalIPs, DeprecatedEndpoints, DeprecatedIPVS, ExternalIPsIgnored,
		RulesInconsistent, RulesIncomplete, HostRuleDrops, HostDropsFlows, HostRuleMayDrop, HostRuleUnclear, HostRuleQueues, NotTranslated, NotMasqueraded, TwoBackEnds,
		SameBridge, ReplyBypasses, Depends, BehindBalancer, OtherProgram,
		HostDropsSome, BrokenRoute, ReverseFilter, SendsLate, NodeNotReady, OnlyDefaultRoute, NoNeighbour, WrongNeighbour, NoHairpin, SameTuple, PodsOutside,
		StaleConnections, EntryElsewhere, EntryNotTranslated, EntryNotMasqueraded,
		NoRealServer, AddressOnly, ServerWithoutAddress, LeftOverServers, RulesOutdated, ServerInNoSet,
		ProxyOutdated, ProxyUnknown, ProxyTranslation, ProxyLags,
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

// Severity is the severity of all findings with the code.
func (c Code) Severity() Severity {
	switch c {
	case OtherFamily, SomeNotReady, SlicesDiffer, FurtherAddresses, NodePortRange, FewReplicas, NodeAddress, NoAddressYet, PodGone, SharedAddress, OutsideCIDR,
		ExternalIPsIgnored, Uneven, TableNearlyFull, Repeats, PortsNearlyUsed, HostRuleMayDrop, HostRuleQueues,
		ReverseFilter, SendsLate, NodeNotReady, OnlyDefaultRoute, NoNeighbour, PodsOutside, StaleConnections, AddressOnly, LeftOverServers, ProxyOutdated, ProxyUnknown, ProxyTranslation:
		return Warning
	case NodesWithout, AffinityToOne, SameTuple, NotShown, DeprecatedExternalIPs, DeprecatedEndpoints, DeprecatedIPVS, Headless, HintsIgnored,
		OldConnections, RulesIncomplete, HostRuleUnclear, SameBridge, Depends, BehindBalancer, OtherProgram:
		return Note
	}
	return Error
}

// OfNode reports whether findings with the code are about what a node does to packets, whatever the endpoint.
func OfNode(c Code) bool {
	return slices.Contains([]Code{HostDropsFlows, HostDropsSome, BrokenRoute, ReverseFilter, NodeNotReady}, c)
}

// Sort sorts findings, the worst first, and those that are ignored last; the order of those with the same code stays.
func Sort(list []Finding) {
	slices.SortStableFunc(list, func(a, b Finding) int {
		ignored := cmp.Compare(min(len(a.Ignored), 1), min(len(b.Ignored), 1))
		return cmp.Or(ignored, cmp.Compare(a.Code.Severity(), b.Code.Severity()), cmp.Compare(a.Code, b.Code))
	})
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
	// Do is the remedy: a sentence without a full stop.
	Do string `json:"do"`
	// Nodes are the nodes that have it, where the rules of several were examined.
	Nodes NodeNames `json:"nodes,omitempty"`
	// Example is a connection that fails; nil: there is none.
	Example *Example `json:"example,omitempty"`
	// Ignored names the mark that declares it as intended, as "annotation nfqproxy.io/ignore-findings of Service shop/web"; empty: nothing.
	Ignored string `json:"ignored,omitempty"`

	service   string // the title of the service whose connections rules refuse
	aboutHost bool
	noRule    bool // kube-proxy's rules lack something, and no rule is the reason
}

// AboutHost reports whether routes, sysctls or devices of a node are the cause, and not its rules.
func (f *Finding) AboutHost() bool {
	return f.aboutHost || slices.Contains([]Code{BrokenRoute, OnlyDefaultRoute, ReverseFilter, NoNeighbour, WrongNeighbour}, f.Code)
}

// Wrong reports whether it is an error or a warning, and not ignored.
func (f *Finding) Wrong() bool { return f.Ignored == "" && f.Code.Severity() != Note }

// Example is a connection that fails because of a finding.
type Example struct {
	// Text is what happens to it: a sentence without a full stop.
	Text string `json:"text"`
	// Record is the decision about its first packet.
	Record *flow.Record `json:"record"`
}

// MarshalJSON adds the severity.
func (f Finding) MarshalJSON() ([]byte, error) {
	type fields Finding
	return json.Marshal(struct {
		Severity string `json:"severity"`
		fields
	}{f.Code.Severity().String(), fields(f)})
}
