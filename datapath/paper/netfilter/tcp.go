package netfilter

import "github.com/nfqproxy/nfqproxy/datapath/paper/iptables"

// tcpState is the state of a TCP connection in connection tracking (enum tcp_conntrack,
// nf_conntrack_tcp.h).
type tcpState uint8

const (
	tcpNone tcpState = iota
	tcpSynSent
	tcpSynReceived
	tcpEstablished
	tcpFinWait
	tcpCloseWait
	tcpLastAck
	tcpTimeWait
	tcpClosed
	tcpSynSent2 // a SYN in both directions
	tcpStates

	tcpInvalid = tcpStates     // the packet is
	tcpIgnored = tcpStates + 1 // the packet is let through, and changes nothing
)

// tcpKind is the relevant flag of a packet (get_conntrack_index).
type tcpKind uint8

const (
	kindSyn tcpKind = iota
	kindSynAck
	kindFin
	kindAck
	kindReset
	kindNone
	tcpKinds
)

func kindOf(f iptables.TCPFlags) tcpKind {
	switch {
	case f&iptables.RST != 0:
		return kindReset
	case f&(iptables.SYN|iptables.ACK) == iptables.SYN|iptables.ACK:
		return kindSynAck
	case f&iptables.SYN != 0:
		return kindSyn
	case f&iptables.FIN != 0:
		return kindFin
	case f&iptables.ACK != 0:
		return kindAck
	}
	return kindNone
}

// tcpTransitions are the states that a packet leads to, by its direction, its kind and
// the state before: tcp_conntracks of nf_conntrack_proto_tcp.c, as of Linux 6.1.
var tcpTransitions = func() (table [2][tcpKinds][tcpStates]tcpState) {
	letters := map[rune]tcpState{
		's': tcpSynSent, 'r': tcpSynReceived, 'e': tcpEstablished, 'f': tcpFinWait, 'w': tcpCloseWait,
		'l': tcpLastAck, 't': tcpTimeWait, 'c': tcpClosed, '2': tcpSynSent2, '-': tcpInvalid, '.': tcpIgnored,
	}
	for direction, kinds := range [2][tcpKinds]string{
		// From:    none, s, r, e, f, w, l, t, c, 2
		{kindSyn: "ss.....ss2", kindSynAck: "--r------r", kindFin: "--ffllltc-", kindAck: "e-eewwttc-", kindReset: "-ccccccccc", kindNone: "----------"},
		{kindSyn: "-2-----s-2", kindSynAck: "-r.......r", kindFin: "--ffllltc-", kindAck: "-.rewwttc.", kindReset: "-ccccccccc", kindNone: "----------"},
	} {
		for kind, states := range kinds {
			for from, to := range states {
				table[direction][kind][from] = letters[to]
			}
		}
	}
	return table
}()

// tcpConnection is the stored state of a TCP connection. It has no sequence numbers: they are
// assumed to be in order.
type tcpConnection struct {
	state        tcpState
	last         tcpKind // of the last packet that counted, or was ignored
	lastReply    bool    // its direction
	closing      bool    // one side has begun to close it (IP_CT_TCP_FLAG_CLOSE_INIT)
	simultaneous bool    // both sides have opened it (IP_CT_TCP_SIMULTANEOUS_OPEN)
}

// transition is the effect of a packet on its connection.
type transition uint8

const (
	goesOn    transition = iota
	uncounted            // it continues, but is not counted
	invalid              // the packet does not belong there
	reopens              // it begins a new one in place of one that is over
	ends                 // the entry is deleted, but the packet still has it
)

// advance is nf_conntrack_tcp_packet for a connection that is in the table.
func (e *Entry) advance(f iptables.TCPFlags, reply bool) transition {
	c, kind, direction := &e.tcp, kindOf(f), 0
	if reply {
		direction = 1
	}
	before, after := c.state, tcpTransitions[direction][kind][c.state]
	switch after {
	case tcpInvalid:
		return invalid
	case tcpSynSent:
		if before >= tcpTimeWait && (c.closing || c.last == kindReset && c.lastReply == reply) {
			return reopens
		}
		if before >= tcpTimeWait {
			after = tcpIgnored
		}
	case tcpSynSent2:
		c.simultaneous = true
	case tcpSynReceived:
		if reply && kind == kindAck && c.simultaneous {
			after = tcpEstablished
		}
	}
	if after == tcpIgnored {
		if kind != kindSynAck || c.last != kindSyn || c.lastReply == reply {
			c.last, c.lastReply = kind, reply
			return uncounted
		}
		// It is the reply to an ignored SYN: the hosts' state is newer.
		before, after = tcpSynSent, tcpSynReceived
	}
	c.last, c.lastReply, c.state = kind, reply, after
	if after == tcpFinWait && before != after {
		c.closing = true
	}
	switch {
	case !e.SeenReply && kind == kindReset:
		return ends
	case !e.SeenReply && kind == kindSyn && before == tcpSynSent:
		return uncounted // nor does a repeated SYN renew the timeout
	case e.SeenReply && after == tcpEstablished && (before == tcpSynReceived || before == tcpEstablished):
		e.Assured = true
	}
	return goesOn
}

// tcpStateNames are those of nft's timeouts.
var tcpStateNames = [tcpStates]string{
	tcpSynSent: "syn_sent", tcpSynReceived: "syn_recv", tcpEstablished: "established", tcpFinWait: "fin_wait", tcpCloseWait: "close_wait",
	tcpLastAck: "last_ack", tcpTimeWait: "time_wait", tcpClosed: "close", tcpSynSent2: "syn_sent2",
}

// tcpTimeouts are how long an entry lives after its last packet, in seconds.
var tcpTimeouts = [tcpStates]uint32{
	tcpSynSent: 120, tcpSynReceived: 60, tcpEstablished: 432000, tcpFinWait: 120, tcpCloseWait: 60,
	tcpLastAck: 30, tcpTimeWait: 120, tcpClosed: 10, tcpSynSent2: 120,
}
