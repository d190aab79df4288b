// Package audit reads services from kube-proxy's iptables rules: their addresses, their endpoints
// with shares, the proxy's configuration, and inconsistencies. [NewObjects] makes Kubernetes
// objects for which kube-proxy would write the same rules, and [Compare] returns the changes
// between two dumps.
//
// Rules of kube-proxy since about 1.8 are understood. Names come from comments: without them
// services are identified by their addresses.
package audit

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// Node is the content of one node's rules, in one address family. It is read only.
type Node struct {
	Family decision.Family `json:"-"`
	// Mode is the mode of the service proxy that wrote the rules, and Proof what shows it. Only rules
	// of ModeIPTables and ModeNFTables have services.
	Mode  proxymode.Mode  `json:"-"`
	Proof proxymode.Proof `json:"-"`
	// Services are the service ports, by name; those without one follow, by address.
	Services []*Service `json:"services"`
	Proxy    Proxy      `json:"proxy"`
	// Problems are the inconsistencies of the rules, by their first line.
	Problems []Issue `json:"problems"`
	// Contested are addresses and node ports that several services claim: kube-proxy writes
	// the rules of each.
	Contested []Issue `json:"contested,omitempty"`
	// Gaps are the parts that the file does not show: a listing often has only a few chains.
	Gaps []Issue `json:"gaps"`

	// owners are the services whose properties explain all that the rule does.
	owners map[*iptables.Rule]ruleOwner
	// chains are the services that the chains of nat are for.
	chains map[string]*Service
	// unported are services, by their names in comments, whose ports iptables did not print.
	unported unique[string]
	// contests give the first service of what several claim, for each rule of theirs.
	contests map[*iptables.Rule]string
	// foreign are the rules in chains of services that kube-proxy does not write, of nftables.
	foreign map[*nftables.Rule]bool
}

// ruleOwner is the owner of a rule of kube-proxy.
type ruleOwner struct {
	service *Service // nil: no service, but the proxy's configuration explains the rule
	// counts is set for a rule that counts in nfacct, and for one that would if the kernel had
	// it.
	counts bool
	// masquerade is set for the rule that decides which ClusterIP flows are
	// masqueraded: the proxy's configuration more than a property of the service.
	masquerade bool
}

// OtherMode is one sentence about rules that are neither of iptables nor of nftables mode: the mode, and what shows the
// services; empty: the rules may show them.
func (n *Node) OtherMode() string {
	switch {
	case n.Mode.IPVS():
		return fmt.Sprintf("%s wrote these rules (%s): virtual servers of IPVS translate to the endpoints, and rules do not show them; ipvsadm -Sn lists them", n.Mode, n.Proof)
	case n.Mode == proxymode.ModeUserspace:
		return fmt.Sprintf("%s wrote these rules (%s): they redirect to ports of kube-proxy itself, which selects the endpoints; rules do not show them", n.Mode, n.Proof)
	}
	return ""
}

// Issue is one problem or gap of the rules.
type Issue struct {
	Lines []int  `json:"lines,omitempty"` // of the file, counted from 1
	Text  string `json:"text"`            // one sentence without its line numbers
}

// String is "lines 3 and 7: text".
func (f Issue) String() string {
	if len(f.Lines) == 0 {
		return f.Text
	}
	const few = 6
	var numbers []string
	for _, l := range f.Lines {
		numbers = append(numbers, strconv.Itoa(l))
	}
	text := quantity.All(numbers)
	if len(numbers) > few {
		text = quantity.Some(numbers, few)
	}
	if len(f.Lines) == 1 {
		return "line " + text + ": " + f.Text
	}
	return "lines " + text + ": " + f.Text
}

// Proxy is how kube-proxy was configured, as far as its rules show.
type Proxy struct {
	// Version is about which kube-proxy wrote the rules: "1.25 or later"; empty: unknown.
	Version string `json:"version,omitempty"`
	// At most one of the next three is set: how pods are detected.
	PodCIDR         netip.Prefix `json:"podCIDR,omitzero"` // of the cluster, or of the node (mode NodeCIDR)
	Bridge          string       `json:"bridge,omitempty"`
	InterfacePrefix string       `json:"interfacePrefix,omitempty"`
	// NodePodCIDR is the prefix of this node's pods, if the CNI's rules show it.
	NodePodCIDR   netip.Prefix `json:"nodePodCIDR,omitzero"`
	MasqueradeAll bool         `json:"masqueradeAll"`
	// MasqueradeMark is the packet mark's bit; 0: there is no rule that sets it.
	MasqueradeMark uint32 `json:"masqueradeMark"`
	// LocalhostNodePorts: node ports are open on 127.0.0.1, too. Always set for IPv6, whose rules
	// do not show it.
	LocalhostNodePorts bool `json:"localhostNodePorts"`
	// NodePortAddresses are the node's addresses that node ports are restricted to; none:
	// they are open on all.
	NodePortAddresses []netip.Addr `json:"nodePortAddresses,omitempty"`
	// NFAcct: rules count in nfacct, which kube-proxy found in the node's kernel.
	NFAcct bool `json:"nfacct,omitempty"`
	// PassesInvalid: KUBE-FORWARD does not drop INVALID packets. kube-proxy writes no such rule
	// where nf_conntrack_tcp_be_liberal is set, and wrote none before 1.15.
	PassesInvalid bool `json:"passesInvalid,omitempty"`
	// ServiceCIDRs are the ranges of cluster IPs, as far as mode nftables shows them: packets to addresses in
	// them without a service are dropped.
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs,omitempty"`

	mode proxymode.Mode // ModeNFTables, or else nothing that is shown

	// balances is set if there is a service with endpoints: its rules show the detection of pods
	// and whether all flows are masqueraded, if kube-proxy does either.
	balances bool
}

// Service is one port of one Service in one address family.
type Service struct {
	Name     decision.ServicePortName `json:"-"` // zero: no comment has it
	Protocol decision.Protocol        `json:"-"`
	Family   decision.Family          `json:"-"`

	ClusterIP netip.Addr `json:"clusterIP,omitzero"` // zero: no rule has it
	Port      uint16     `json:"port,omitempty"`     // 0: no rule has it
	NodePort  uint16     `json:"nodePort,omitempty"` // 0: none
	// ExternalIPs and LoadBalancerIPs are in the order of the rules. If a service has no
	// endpoints, their rules are the same: then all are ExternalIPs.
	ExternalIPs     []netip.Addr `json:"externalIPs,omitempty"`
	LoadBalancerIPs []netip.Addr `json:"loadBalancerIPs,omitempty"`
	// SourceRanges are the sources that may use LoadBalancerIPs; none: all.
	SourceRanges []netip.Prefix `json:"sourceRanges,omitempty"`
	// NodeAllowed: LoadBalancerIPs are allowed sources themselves, which kube-proxy adds
	// where the node's address is within SourceRanges.
	NodeAllowed bool `json:"nodeAllowed,omitempty"`

	// The policies are Cluster if no rule shows them.
	InternalPolicy      decision.Policy `json:"-"`
	ExternalPolicy      decision.Policy `json:"-"`
	AffinitySeconds     uint32          `json:"affinitySeconds,omitempty"` // 0: none
	HealthCheckNodePort uint16          `json:"healthCheckNodePort,omitempty"`

	// Endpoints are the ones that get new flows, by the text of their address.
	Endpoints []Endpoint `json:"endpoints"`
	// Refused: packets are rejected, since there is no endpoint anywhere.
	Refused bool `json:"refused,omitempty"`
	// Dropped: packets under policy Local are dropped, since there is no endpoint on
	// this node.
	Dropped bool `json:"dropped,omitempty"`

	suffix string // of the names of its chains; empty: it has none
	// chainKind is the beginning of the name of the chain that balances over the cluster's endpoints.
	chainKind string
	hashed    string // the name as the comments have it, for the hash
	// hiddenNodePort: there is a node port, whose number cannot be read.
	hiddenNodePort bool
	balanced       [2]*balance
}

// Endpoint is where flows of a service port go.
type Endpoint struct {
	// Chain is KUBE-SEP-..., or in mode nftables endpoint-..., which only services with session affinity have since 1.36.
	Chain    string         `json:"chain,omitempty"`
	AddrPort netip.AddrPort `json:"address,omitzero"` // zero: the file does not show it
	// Share is the endpoint's share of the flows under policy Cluster, LocalShare of those under
	// policy Local: 0 to 1.
	Share      float64 `json:"share"`
	LocalShare float64 `json:"localShare,omitempty"`
	// ShareUnknown: the file does not show when a rule of its chain matches, so the shares are only those if it always does.
	ShareUnknown bool     `json:"shareUnknown,omitempty"`
	Locality     Locality `json:"locality,omitempty"`
}

// Locality is where an endpoint is.
type Locality string

// The localities. Rules show them if a service has policy Local, or by NodePodCIDR.
const (
	LocalityUnknown Locality = ""
	OnThisNode      Locality = "here"
	OnAnotherNode   Locality = "elsewhere"
)

// Title is the name, or without one the address: "10.96.0.1:443".
func (s *Service) Title() string {
	switch {
	case s.Name != decision.ServicePortName{}:
		return s.Name.String()
	case s.ClusterIP.IsValid():
		return netip.AddrPortFrom(s.ClusterIP, s.Port).String()
	case s.NodePort != 0:
		return fmt.Sprintf("node port %d", s.NodePort)
	case len(s.ExternalIPs) > 0:
		return netip.AddrPortFrom(s.ExternalIPs[0], s.Port).String()
	case len(s.LoadBalancerIPs) > 0 && s.suffix == "":
		return netip.AddrPortFrom(s.LoadBalancerIPs[0], s.Port).String()
	}
	return s.chainKind + s.suffix
}

// Type is the Service's type, as its rules suggest.
func (s *Service) Type() string {
	switch {
	case len(s.LoadBalancerIPs) > 0 || s.HealthCheckNodePort != 0:
		return "LoadBalancer"
	case s.NodePort != 0, s.hiddenNodePort:
		return "NodePort"
	}
	return "ClusterIP"
}

// External reports whether the service port can be reached other than by its ClusterIP.
func (s *Service) External() bool {
	return s.NodePort != 0 || len(s.ExternalIPs) > 0 || len(s.LoadBalancerIPs) > 0
}

// MarshalJSON writes names and policies as text.
func (s *Service) MarshalJSON() ([]byte, error) {
	type fields Service
	name := ""
	if s.Name != (decision.ServicePortName{}) {
		name = s.Name.String()
	}
	f := *s
	if f.Endpoints == nil {
		f.Endpoints = []Endpoint{}
	}
	return json.Marshal(struct {
		Name           string `json:"name,omitempty"`
		Type           string `json:"type"`
		Protocol       string `json:"protocol"`
		Family         string `json:"family"`
		InternalPolicy string `json:"internalPolicy"`
		ExternalPolicy string `json:"externalPolicy"`
		*fields
	}{name, s.Type(), s.Protocol.String(), s.Family.String(), s.InternalPolicy.String(), s.ExternalPolicy.String(), (*fields)(&f)})
}

// MarshalJSON writes the family as text, and lists even where they are empty.
func (n *Node) MarshalJSON() ([]byte, error) {
	type fields Node
	f := *n
	f.Services = append([]*Service{}, f.Services...)
	f.Problems = append([]Issue{}, f.Problems...)
	f.Gaps = append([]Issue{}, f.Gaps...)
	return json.Marshal(struct {
		Family string `json:"family"`
		Mode   string `json:"mode"`
		*fields
	}{n.Family.String(), n.Mode.String(), (*fields)(&f)})
}
