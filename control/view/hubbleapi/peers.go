package hubbleapi

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	peerpb "github.com/nfqproxy/nfqproxy/control/view/hubbleapi/hubblepb/peer"
)

// Peers are the nodes of the cluster, as a relay connects to them. All have the API at one port.
type Peers struct {
	// Each calls its argument for every known node, in no order.
	Each func(func(name string, addresses []netip.Addr))
	// Listen is where this node serves the API: the port, and the family that a node's address should
	// have. An unspecified IPv6 address stands for both families.
	Listen netip.AddrPort
}

// peerInterval is how often a relay is informed of changes.
const peerInterval = 2 * time.Second

// peerServer lists the peers.
type peerServer struct {
	peerpb.UnimplementedPeerServer
	peers *Peers
	tls   bool
}

// Notify sends the nodes, and then their changes.
func (s *peerServer) Notify(_ *peerpb.NotifyRequest, stream grpc.ServerStreamingServer[peerpb.ChangeNotification]) error {
	tick := time.NewTicker(peerInterval)
	defer tick.Stop()
	known := make(map[string]string)
	for {
		now := s.peers.addresses()
		for _, change := range changes(known, now) {
			if s.tls {
				change.Tls = &peerpb.TLS{ServerName: ServerName(change.GetName())}
			}
			if err := stream.Send(change); err != nil {
				return err
			}
		}
		known = now
		select {
		case <-stream.Context().Done():
			return nil
		case <-tick.C:
		}
	}
}

// ServerName is the name that a node's certificate must have: as with Cilium, of a cluster with the name
// default. A certificate for *.default.hubble-grpc.cilium.io serves all nodes.
func ServerName(node string) string {
	return strings.ReplaceAll(node, ".", "-") + ".default.hubble-grpc.cilium.io"
}

// addresses are where each node serves the API. A node without an address is left out.
func (p *Peers) addresses() map[string]string {
	list := make(map[string]string)
	p.Each(func(name string, addresses []netip.Addr) {
		if len(addresses) == 0 {
			return
		}
		at := addresses[0]
		if own := p.Listen.Addr(); own != netip.IPv6Unspecified() {
			if i := slices.IndexFunc(addresses, func(a netip.Addr) bool { return a.Is4() == own.Is4() }); i >= 0 {
				at = addresses[i]
			}
		}
		list[name] = netip.AddrPortFrom(at, p.Listen.Port()).String()
	})
	return list
}

// changes are the notifications from one state to another, in the order of names.
func changes(before, now map[string]string) (list []*peerpb.ChangeNotification) {
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, there := now[name]; !there {
			list = append(list, &peerpb.ChangeNotification{Name: name, Address: before[name], Type: peerpb.ChangeNotificationType_PEER_DELETED})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		change := peerpb.ChangeNotificationType_PEER_UPDATED
		switch address, there := before[name]; {
		case !there:
			change = peerpb.ChangeNotificationType_PEER_ADDED
		case address == now[name]:
			continue
		}
		list = append(list, &peerpb.ChangeNotification{Name: name, Address: now[name], Type: change})
	}
	return list
}
