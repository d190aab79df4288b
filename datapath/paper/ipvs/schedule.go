package ipvs

import (
	"cmp"
	"fmt"
	"net/netip"
)

// Choice is which real server a new connection gets.
type Choice struct {
	// Shares are the real servers that it may get. Their probabilities add up to 1, with Refused.
	Shares []Share
	// Refused is the probability that it gets none; 1: no real server takes new connections.
	Refused float64
	// Basis is the rule of the scheduler, and Assumed what is assumed about state that is not in the file: sentences
	// without a full stop. Assumed is empty if the file determines the shares.
	Basis, Assumed string
}

// Share is a real server with its probability.
type Share struct {
	Server      *RealServer
	Probability float64
}

// Client is the connection to schedule. Without From it is one of a client that is not known.
type Client struct {
	From, To netip.AddrPort
}

// Choose returns which real server a new connection of a client without persistence gets; see [VirtualServer.Sticky].
func (v *VirtualServer) Choose(c Client) Choice {
	if len(v.Real) == 0 {
		return Choice{Refused: 1, Basis: "it has no real servers"}
	}
	if len(v.takers()) == 0 {
		return Choice{Refused: 1, Basis: "all its real servers have weight 0 or as many connections as they may have: they get no new ones"}
	}
	if !v.format.HasSchedulers() {
		return v.possible(fmt.Sprintf("the output of %s has no schedulers", v.format), v.takers())
	}
	schedule := map[string]func(Client) Choice{
		"rr": v.roundRobin, "wrr": v.roundRobin, "lc": v.leastLoaded, "wlc": v.leastLoaded, "sed": v.leastLoaded, "nq": v.leastLoaded,
		"fo": v.failover, "ovf": v.overflow, "sh": v.sourceHash, "dh": v.destinationHash, "mh": v.maglev, "lblc": v.locality, "lblcr": v.locality, "twos": v.twoChoices,
	}[v.Scheduler]
	if schedule == nil {
		return v.possible(fmt.Sprintf("scheduler %s is not known", v.Scheduler), v.takers())
	}
	return schedule(c)
}

// takers are the real servers that take new connections.
func (v *VirtualServer) takers() (all []*RealServer) {
	for i := range v.Real {
		r := &v.Real[i]
		// IP_VS_DEST_F_OVERLOAD (ip_vs_bind_dest): only one format has thresholds and connections.
		full := r.Upper > 0 && v.format.HasConnections() && uint64(r.Active)+uint64(r.Inactive) >= uint64(r.Upper)
		if !full && (r.Weight > 0 || !v.format.HasWeights()) {
			all = append(all, r)
		}
	}
	return all
}

// equal are equal shares.
func equal(servers []*RealServer) (shares []Share) {
	for _, r := range servers {
		shares = append(shares, Share{r, 1 / float64(len(servers))})
	}
	return shares
}

// possible is a choice that the file does not determine: one of the servers.
func (v *VirtualServer) possible(basis string, servers []*RealServer) Choice {
	c := Choice{Shares: equal(servers), Basis: basis}
	if len(servers) > 1 {
		c.Assumed = fmt.Sprintf("that each of %d real servers is as likely as the others", len(servers))
	}
	return c
}

// roundRobin is ip_vs_rr.c and ip_vs_wrr.c: over a round each real server gets as many connections as its weight, or one
// with rr. The position in the round is not in the file.
func (v *VirtualServer) roundRobin(Client) Choice {
	takers := v.takers()
	c := Choice{Basis: fmt.Sprintf("%s takes turns: these are the shares of a round, and whose turn it is is not in the file", v.Scheduler)}
	if len(takers) == 1 {
		c.Basis = "one real server takes new connections"
	}
	total := 0.0
	weight := func(r *RealServer) float64 {
		if v.Scheduler == "rr" {
			return 1
		}
		return float64(r.Weight)
	}
	for _, r := range takers {
		total += weight(r)
	}
	for _, r := range takers {
		c.Shares = append(c.Shares, Share{r, weight(r) / total})
	}
	return c
}

// leastLoaded is ip_vs_lc.c, ip_vs_wlc.c, ip_vs_sed.c and ip_vs_nq.c: the real server with the lowest load; of several,
// the first in the kernel's list.
func (v *VirtualServer) leastLoaded(Client) Choice {
	takers := v.takers()
	if !v.format.HasConnections() && len(takers) > 1 {
		return v.possible(fmt.Sprintf("%s selects by the numbers of connections, which are not in the file: ipvsadm -Ln has them", v.Scheduler), takers)
	}
	if v.Scheduler == "nq" {
		var idle []*RealServer
		for _, r := range takers {
			if r.Active == 0 {
				idle = append(idle, r)
			}
		}
		if len(idle) > 0 {
			return v.first(idle, "nq selects a real server without active connections, as of the listing")
		}
	}
	lowest := least(takers, func(r, s *RealServer) int {
		a, weightA := v.load(r)
		b, weightB := v.load(s)
		return cmp.Compare(a*weightB, b*weightA) // a/weightA and b/weightB
	})
	return v.first(lowest, v.Scheduler+" selects the real server with the lowest load, by the numbers of connections in the listing")
}

// load is the load of a real server, and what it is divided by (ip_vs_dest_conn_overhead of ip_vs.h: an active connection
// counts as 256 inactive ones).
func (v *VirtualServer) load(r *RealServer) (load, weight float64) {
	switch v.Scheduler {
	case "lc":
		return float64(r.Active)*256 + float64(r.Inactive), 1
	case "sed", "nq":
		return float64(r.Active) + 1, float64(r.Weight)
	}
	return float64(r.Active)*256 + float64(r.Inactive), float64(r.Weight)
}

// first is the first of equal real servers in the kernel's list.
func (v *VirtualServer) first(servers []*RealServer, basis string) Choice {
	switch {
	case len(servers) == 1:
		return Choice{Shares: equal(servers), Basis: basis}
	case v.orderKnown():
		return Choice{Shares: equal(servers[:1]), Basis: basis + "; of equal ones the first"}
	}
	return v.possible(fmt.Sprintf("%s; %s are equal, and the first in the kernel's list gets it, which ipvsadm shows with --nosort", basis, list(servers)), servers)
}

// failover is ip_vs_fo.c: the real server with the highest weight.
func (v *VirtualServer) failover(Client) Choice {
	return v.first(heaviest(v.takers()), "fo selects the real server with the highest weight")
}

// overflow is ip_vs_ovf.c: the real server with the highest weight, of those that have at most as many active connections.
func (v *VirtualServer) overflow(Client) Choice {
	takers := v.takers()
	if !v.format.HasConnections() {
		return v.possible("ovf selects by the numbers of active connections, which are not in the file: ipvsadm -Ln has them", takers)
	}
	var below []*RealServer
	for _, r := range takers {
		if uint64(r.Active) <= uint64(r.Weight) {
			below = append(below, r)
		}
	}
	if len(below) == 0 {
		return Choice{Refused: 1, Basis: "all its real servers have more active connections than their weight, as of the listing: ovf selects none"}
	}
	return v.first(heaviest(below), "ovf selects the real server with the highest weight, of those with at most as many active connections, as of the listing")
}

func heaviest(servers []*RealServer) []*RealServer {
	return least(servers, func(a, b *RealServer) int { return cmp.Compare(b.Weight, a.Weight) })
}

// least are the real servers before which no other one comes.
func least(servers []*RealServer, compare func(a, b *RealServer) int) (all []*RealServer) {
	for _, r := range servers {
		if len(all) > 0 && compare(r, all[0]) < 0 {
			all = all[:0]
		}
		if len(all) == 0 || compare(r, all[0]) == 0 {
			all = append(all, r)
		}
	}
	return all
}

// locality is ip_vs_lblc.c and ip_vs_lblcr.c: the real server, or the set of them, that the destination's address had
// before, which no output of ipvsadm shows.
func (v *VirtualServer) locality(Client) Choice {
	return v.possible(v.Scheduler+" keeps the connections to an address on the real server that it had, which is not in the file", v.takers())
}

// twoChoices is ip_vs_twos.c: of two real servers, each drawn with the probability of its weight, the one with the lower
// load. The draw is from 0 to the sum of the weights, both included, so that the first real server gets one more.
func (v *VirtualServer) twoChoices(Client) Choice {
	takers := v.takers()
	if !v.format.HasConnections() && len(takers) > 1 {
		return v.possible("twos selects by the numbers of connections, which are not in the file: ipvsadm -Ln has them", takers)
	}
	draws := make([]float64, len(takers))
	total := 1.0
	for i, r := range takers {
		draws[i] = float64(r.Weight)
		total += float64(r.Weight)
	}
	draws[0]++
	c := Choice{Basis: "twos draws two real servers by weight, and takes the one with fewer connections for its weight, as of the listing"}
	if !v.orderKnown() {
		c.Assumed = "that the kernel has the real servers in the order of the file: the first gets slightly more"
	}
	shares := make([]float64, len(takers))
	for i, a := range takers {
		for j, b := range takers {
			loadA, weightA := v.load(a)
			loadB, weightB := v.load(b)
			winner := i
			if weightB*loadA > weightA*loadB {
				winner = j
			}
			shares[winner] += draws[i] / total * draws[j] / total
		}
	}
	for i, p := range shares {
		if p > 0 {
			c.Shares = append(c.Shares, Share{takers[i], p})
		}
	}
	return c
}
