package savednode

import (
	"bytes"
	"fmt"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// addNeighbours adds the node's neighbour entries.
func (n *Node) addNeighbours(h *netfilter.Host, f iptables.Family) error {
	name := "neigh" + number(f) + ".json"
	text := n.bundle.File(name)
	if text == nil {
		name = "neigh" + number(f) + ".txt"
		text = neighboursOf(n.bundle.File(name))
	}
	if text == nil {
		return nil
	}
	if err := h.Read(bytes.NewReader(text)); err != nil {
		return fmt.Errorf("%s: %w", n.file(name), err)
	}
	return nil
}
