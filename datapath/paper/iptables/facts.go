package iptables

import (
	"fmt"
	"slices"
)

// Facts are what the result of a match depends on, besides addresses, ports, devices, marks, ICMP
// types, TCP flags and the connection.
type Facts uint16

// The facts. Those up to FactOptions are fields of a packet that may be assumed.
const (
	FactMAC     Facts = 1 << iota // MAC
	FactOwner                     // the numbers in Owner
	FactLength                    // Length
	FactTOS                       // TOS
	FactTTL                       // TTL
	FactOptions                   // TCPOptions and MSS

	FactSender  // whether a socket of the host sent the packet
	FactBridge  // PhysIn, PhysOut and Bridged
	FactChunks  // Chunks
	FactBytes   // Bytes and Payload
	FactKernel  // the kernel's own data: the time, the processor, IPsec, expected connections
	FactSockets // the sockets of the host
	FactRandom  // a random choice
	FactMemory  // earlier packets that reached the rule, or traffic of the connection
	FactShared  // what is kept of packets for other rules, too
	FactOther   // what is not known at all: a statement that is not supported
)

// Reads returns the facts that a match depends on.
func Reads(m Match) Facts {
	if m, ok := m.(depending); ok {
		return m.reads()
	}
	return 0
}

// Harmless reports whether it makes no difference to other rules, and to the packet, if the rule
// matches.
func (r *Rule) Harmless() bool {
	unknown, _ := r.Target.(UnknownTarget)
	if _, ok := r.Target.(inert); !ok && r.Target != nil && !unknown.Continues() {
		return false
	}
	return !slices.ContainsFunc(r.Matches, func(m Match) bool { return Reads(m)&(FactShared|FactOther) != 0 })
}

// suppose records the assumed fields among the facts. false: a field cannot be assumed.
func (c *Context) suppose(read Facts) bool {
	p := &c.Packet
	switch read & p.Supposed {
	case FactMAC:
		// Without a frame there is no address, assumed or not.
		return c.In == "" || !c.Host.HasFrames(c.In)
	case FactOwner:
		if p.Owner != nil {
			c.assume("that user %d and group %d send the packet", p.Owner.UID, p.Owner.GID)
		}
	case FactLength:
		c.assume("that the packet has %d bytes", p.Length)
	case FactTOS:
		c.assume("that the packet's type of service is %#02x", p.TOS)
	case FactTTL:
		c.assume("that the packet's time to live is %d here", p.TTL)
	case FactOptions:
		c.assume("that the packet has %s", optionsText(p))
	}
	return true
}

func optionsText(p *Packet) string {
	if slices.Contains(p.TCPOptions, tcpOptionMSS) {
		return fmt.Sprintf("the TCP options %v, with a segment size of %d", p.TCPOptions, p.MSS)
	}
	return fmt.Sprintf("the TCP options %v", p.TCPOptions)
}

// processor returns the processor that handles the packet.
func (c *Context) processor() uint32 {
	c.assume("that processor %d handles the packet", c.Packet.CPU)
	return c.Packet.CPU
}

// isNot is "the mark is 0x0, not 0x4000". For a negated match the fact alone is the reason.
func isNot(fact, wanted string, negated bool) string {
	if negated {
		return fact
	}
	return fact + ", not " + wanted
}

// fails reports whether a given condition does not have the result that it must have.
func (c Condition[T]) fails(result bool) bool { return c.Given && result == c.Negated }
