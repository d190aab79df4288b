package audit

import (
	"cmp"
	"fmt"
	"io"
	"iter"
	"net/netip"
	"strings"
	"text/tabwriter"

	"k8s.io/utils/ptr"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/ipvs"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// VirtualServer is a virtual server of IPVS as a service: named by its address, because IPVS has no names of Services.
type VirtualServer struct {
	Server    string       `json:"server"`         // "TCP 10.96.0.1:443"
	Kind      string       `json:"kind,omitempty"` // "cluster IP", by the sets; empty: not known
	Scheduler string       `json:"scheduler,omitempty"`
	Affinity  uint32       `json:"affinitySeconds,omitempty"`
	Endpoints []RealServer `json:"endpoints"`
	// Refused is the share of new connections that no endpoint gets.
	Refused float64 `json:"refused,omitempty"`
	// Basis is the rule by which new connections are shared, Assumed what the file does not show, and Sticky the effect of the affinity: sentences without a full stop.
	Basis   string `json:"basis"`
	Assumed string `json:"assumed,omitempty"`
	Sticky  string `json:"sticky,omitempty"`
	Line    int    `json:"line"`
}

// RealServer is an endpoint of a virtual server.
type RealServer struct {
	Address string `json:"address"`
	Forward string `json:"forward"`
	Weight  int    `json:"weight"`
	// Share is that of new connections without affinity.
	Share float64 `json:"share"`
	// Active and Inactive are the numbers of its connections; nil: the file does not have them.
	Active   *uint32 `json:"activeConnections,omitempty"`
	Inactive *uint32 `json:"inactiveConnections,omitempty"`
}

// VirtualServers are those of a host. sets are its ipsets, which tell kinds of addresses apart; nil: not known.
func VirtualServers(s *ipvs.State, sets map[string]*iptables.Set) []VirtualServer {
	kinds := kindsOf(sets)
	all := []VirtualServer{}
	for _, v := range s.Servers {
		c := v.Choose(ipvs.Client{To: v.Address})
		shares := make(map[*ipvs.RealServer]float64)
		for _, share := range c.Shares {
			shares[share.Server] = share.Probability
		}
		out := VirtualServer{
			Server: v.String(), Kind: kinds.of(v), Scheduler: v.Scheduler, Affinity: v.Persistence, Endpoints: []RealServer{},
			Refused: c.Refused, Basis: c.Basis, Assumed: c.Assumed, Sticky: v.Sticky(), Line: v.Line,
		}
		for i := range v.Real {
			r := &v.Real[i]
			e := RealServer{Address: r.Address.String(), Forward: r.Forward.String(), Weight: r.Weight, Share: shares[r]}
			if s.Format.HasConnections() {
				e.Active, e.Inactive = &r.Active, &r.Inactive
			}
			out.Endpoints = append(out.Endpoints, e)
		}
		all = append(all, out)
	}
	return all
}

// addressKinds are the kinds of addresses, by kube-proxy's ipsets (pkg/proxy/ipvs/ipset.go). Node ports have no address.
type addressKinds map[addressKey]string

type addressKey struct {
	protocol uint8
	at       netip.AddrPort
}

const (
	nodePorts      = "node port"
	externalIP     = "external IP"
	loadBalancerIP = "load balancer IP"
)

func kindsOf(sets map[string]*iptables.Set) addressKinds {
	kinds := make(addressKinds)
	for _, k := range []struct{ prefix, kind string }{
		{"KUBE-CLUSTER-IP", "cluster IP"}, {"KUBE-EXTERNAL-IP", externalIP}, {"KUBE-LOAD-BALANCER", loadBalancerIP}, {nodePortSets, nodePorts},
	} {
		for at := range inSets(sets, k.prefix) {
			kinds[at] = k.kind
		}
	}
	return kinds
}

// nodePortSets is the beginning of the names of sets with node ports: KUBE-NODE-PORT-TCP, whose elements have no protocol.
const nodePortSets = "KUBE-NODE-PORT-"

// inSets are the elements of the sets whose names for IPv4 begin so, with the addresses that they are for.
func inSets(sets map[string]*iptables.Set, prefix string) iter.Seq2[addressKey, iptables.Element] {
	return func(yield func(addressKey, iptables.Element) bool) {
		for name, s := range sets {
			if !strings.HasPrefix(proxymode.PlainSet(name), prefix) {
				continue
			}
			for _, e := range s.Elements {
				at := addressKey{e.Protocol, netip.AddrPortFrom(e.Network.Addr(), e.Ports.First)}
				if prefix == nodePortSets {
					at = addressKey{protocolOfSet(name), netip.AddrPortFrom(netip.Addr{}, e.Ports.First)}
				}
				if !yield(at, e) {
					return
				}
			}
		}
	}
}

// protocolOfSet is the protocol in the name of a set; 0: there is none.
func protocolOfSet(set string) uint8 {
	for _, p := range []decision.Protocol{decision.TCP, decision.UDP, decision.SCTP} {
		if strings.Contains(set, p.String()) {
			return uint8(p)
		}
	}
	return 0
}

// of is the kind of a virtual server's address; empty: not known.
func (kinds addressKinds) of(v *ipvs.VirtualServer) string {
	if kind := kinds[addressKey{v.Protocol, v.Address}]; kind != "" {
		return kind
	}
	return kinds[addressKey{v.Protocol, netip.AddrPortFrom(netip.Addr{}, v.Address.Port())}]
}

// WriteVirtualServers writes virtual servers as a text table, one line each. Wide lists all endpoints, with their
// connections.
func WriteVirtualServers(w io.Writer, wide bool, all []VirtualServer) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "VIRTUAL SERVER\tKIND\tSCHEDULER\tAFFINITY\tENDPOINTS")
	for i := range all {
		v := &all[i]
		const unknown = "<unknown>"
		affinity := "<none>"
		switch {
		case v.Affinity > 0:
			affinity = fmt.Sprintf("ClientIP %ds", v.Affinity)
		case v.Scheduler == "": // each has one: ipvsadm --stats and --rate print neither
			affinity = unknown
		}
		fmt.Fprintln(t, strings.Join([]string{v.Server, cmp.Or(v.Kind, unknown), cmp.Or(v.Scheduler, unknown), affinity, v.endpoints(wide)}, "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return writeBases(w, all)
}

// endpoints lists the endpoints with their shares of new connections.
func (v *VirtualServer) endpoints(wide bool) string {
	var words []string
	for i := range v.Endpoints {
		e := &v.Endpoints[i]
		if more := len(v.Endpoints) - i; !wide && i == fewEndpoints && more > 1 {
			words = append(words, fmt.Sprintf("%d more", more))
			break
		}
		var notes facts
		waits := e.Weight > 0 && v.Refused == 0 // for connections that others do not get, as by lc
		notes.add(e.Share == 0 && !waits, "no new connections")
		notes.add(e.Share == 0 && waits, "not the next connection")
		notes.add(e.Share > 0 && e.Share < 1, "%s", shareText(e.Share))
		notes.add(e.Forward != ipvs.Masquerade.String(), "%s", e.Forward)
		notes.add(wide && e.Active != nil, "%d active", ptr.Deref(e.Active, 0))
		notes.add(wide && e.Active != nil, "%d inactive", ptr.Deref(e.Inactive, 0))
		text := e.Address
		if len(notes) > 0 {
			text += " (" + strings.Join(notes, ", ") + ")"
		}
		words = append(words, text)
	}
	if len(words) == 0 {
		return "none (refused)"
	}
	return strings.Join(words, ", ")
}

// writeBases writes how the virtual servers select endpoints, each way once.
func writeBases(w io.Writer, all []VirtualServer) error {
	counts := make(map[string]int)
	var order []string
	add := func(text string) {
		if counts[text] == 0 {
			order = append(order, text)
		}
		counts[text]++
	}
	for i := range all {
		v := &all[i]
		text := v.Basis
		if v.Assumed != "" {
			text += "; assumed: " + v.Assumed
		}
		if len(v.Endpoints) > 1 || v.Refused > 0 {
			add(text)
		}
		if v.Sticky != "" {
			add(v.Sticky)
		}
	}
	if len(order) == 0 {
		return nil
	}
	_, err := fmt.Fprintln(w, "\nNew connections, as documented for IPVS:")
	for _, text := range order {
		fmt.Fprintf(w, "  %s (%s)\n", text, quantity.Count(counts[text], "virtual server"))
	}
	return err
}
