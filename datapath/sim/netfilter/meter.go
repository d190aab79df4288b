package netfilter

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
)

// quota is quota_mt (xt_quota.c). A dump does not show how much a running host has left.
func (w *walk) quota(m iptables.Quota) bool {
	if w.state.quotas == nil {
		w.state.quotas = make(map[matchKey]uint64)
	}
	left, known := w.state.quotas[w.asked]
	if !known {
		if left = m.Bytes; !w.machine.options.FreshCounters {
			w.grant("line %d: that nothing of the quota of %d bytes was used before", w.asked.rule.Line, m.Bytes)
		}
	}
	length := uint64(w.packet.Length)
	enough := left >= length
	if enough {
		left -= length
	} else {
		left = 0
	}
	w.state.quotas[w.asked] = left
	return enough != m.Negated
}

// counted identifies the connections that a match of -m connlimit counts together.
type counted struct {
	match matchKey
	addr  netip.Addr
	zone  uint16
}

// connlimit is connlimit_mt (xt_connlimit.c): of the connections that reached the rule, those that
// are not over, and the packet's own.
func (w *walk) connlimit(m iptables.Connlimit) bool {
	addr := w.packet.Source.Addr()
	if m.Destination {
		addr = w.packet.Destination.Addr()
	}
	if p, err := addr.Prefix(int(m.Bits)); err == nil {
		addr = p.Addr()
	}
	own := tupleKey{tupleOf(&w.packet), w.zone}
	if w.entry != nil {
		own = tupleKey{w.entry.Original, w.entry.Zone}
	}
	if w.state.counted == nil {
		w.state.counted = make(map[counted][]tupleKey)
	}
	key := counted{w.asked, addr, own.zone}
	if _, known := w.state.counted[key]; !known && !w.machine.options.FreshCounters {
		w.grant("line %d: that no other connection of %s is counted", w.asked.rule.Line, addr)
	}
	list := slices.DeleteFunc(slices.Clone(w.state.counted[key]), func(k tupleKey) bool {
		c, alive := w.state.table[k]
		return k == own || !alive || c.entry.closed()
	})
	list = append(list, own)
	w.state.counted[key] = list
	return (uint64(len(list)) > uint64(m.Limit)) != m.UpTo
}

// volume is the traffic of a connection in one direction (struct nf_conn_counter).
type volume struct{ packets, bytes uint64 }

// count counts a packet (nf_ct_acct_update).
func (c connection) count(p *Packet) {
	t := &c.entry.transferred[0]
	if c.reply {
		t = &c.entry.transferred[1]
	}
	t.packets++
	t.bytes += uint64(p.Length)
}

// connbytes is connbytes_mt (xt_connbytes.c). A template counts nothing.
func (w *walk) connbytes(m iptables.Connbytes) bool {
	return w.entry != nil && w.tracked && m.Count.Contains(w.entry.amount(m)) != m.Negated
}

// amount returns the number that -m connbytes compares.
func (e *Entry) amount(m iptables.Connbytes) uint64 {
	sum := e.transferred[0]
	switch m.Direction {
	case iptables.ConnbytesReply:
		sum = e.transferred[1]
	case iptables.ConnbytesBoth:
		sum.packets += e.transferred[1].packets
		sum.bytes += e.transferred[1].bytes
	}
	switch {
	case m.Unit == iptables.ConnbytesPackets:
		return sum.packets
	case m.Unit == iptables.ConnbytesBytes:
		return sum.bytes
	case sum.packets == 0:
		return 0
	}
	return sum.bytes / sum.packets
}

// closed is already_closed (nf_conncount.c).
func (e *Entry) closed() bool {
	return e.Original.Protocol == protoTCP && (e.tcp.state == tcpTimeWait || e.tcp.state == tcpClosed)
}

// time is time_mt (xt_time.c).
func (w *walk) time(m iptables.Time) truth {
	if w.state.Began.IsZero() {
		return undecided
	}
	now := w.now()
	w.grant("that it is %s", now.Format("Monday, 2006-01-02 15:04:05 UTC"))
	if m.KernelZone {
		w.grant("that the kernel's time zone is UTC")
	}
	return truthOf(m.Contains(now))
}

// now returns the time of the packet.
func (w *walk) now() time.Time {
	return w.state.Began.Add(time.Duration(w.state.Now * float64(time.Second))).UTC()
}

// segmentSize is tcpmss_mt (xt_tcpmss.c).
func segmentSize(m iptables.SegmentSize, p *Packet) bool {
	if !slices.Contains(p.TCPOptions, tcpOptionMSS) {
		return m.Negated
	}
	return m.Range.Contains(p.MSS) != m.Negated
}

const tcpOptionMSS = 2 // TCPOPT_MSS

// Facts are fields of a packet.
type Facts uint8

// The fields that may be assumed.
const (
	FactMAC     Facts = 1 << iota // MAC
	FactOwner                     // Owner
	FactLength                    // Length
	FactTOS                       // TOS
	FactTTL                       // TTL
	FactOptions                   // TCPOptions and MSS
)

// looksAt returns the fields that a match reads, of those that may be assumed.
func looksAt(m iptables.Match) Facts {
	switch m := m.(type) {
	case iptables.MAC:
		return FactMAC
	case iptables.Owner:
		if m.UID.Given || m.GID.Given {
			return FactOwner
		}
	case iptables.Length, iptables.Quota:
		return FactLength
	case iptables.Connbytes:
		if m.Unit != iptables.ConnbytesPackets {
			return FactLength
		}
	case iptables.TOS, iptables.DSCP:
		return FactTOS
	case iptables.TTL, iptables.HopLimit:
		return FactTTL
	case iptables.Recent:
		if m.TTL {
			return FactTTL
		}
	case iptables.SegmentSize:
		return FactOptions
	case iptables.TCP:
		if m.Option.Given {
			return FactOptions
		}
	}
	return 0
}

// suppose records the assumed fields that the match reads. false: a field cannot be assumed.
func (w *walk) suppose(m iptables.Match) bool {
	p := &w.packet
	switch looksAt(m) & p.Supposed {
	case FactMAC:
		// Without a frame there is no address, assumed or not.
		d := w.machine.network.device(w.in)
		return w.in == "" || w.in == loopbackName || d != nil && d.PointToPoint
	case FactOwner:
		if p.Owner != nil {
			w.grant("that user %d and group %d send the packet", p.Owner.UID, p.Owner.GID)
		}
	case FactLength:
		w.grant("that the packet has %d bytes", p.Length)
	case FactTOS:
		w.grant("that the packet's type of service is %#02x", p.TOS)
	case FactTTL:
		w.grant("that the packet's time to live is %d here", p.TTL)
	case FactOptions:
		w.grant("that the packet has %s", optionsText(p))
	}
	return true
}

func optionsText(p *Packet) string {
	if slices.Contains(p.TCPOptions, tcpOptionMSS) {
		return fmt.Sprintf("the TCP options %v, with a segment size of %d", p.TCPOptions, p.MSS)
	}
	return fmt.Sprintf("the TCP options %v", p.TCPOptions)
}
