//go:build linux

package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// kernelEntry is what an entry and the kernel's have in common.
type kernelEntry struct {
	original, reply              iptables.Tuple
	zone                         uint16
	mark                         uint32
	snat, dnat, replied, assured bool
}

func (e kernelEntry) String() string {
	return fmt.Sprintf("%s, answers %s, zone %d, mark %#x, SNAT %v, DNAT %v, replied %v, assured %v", e.original, e.reply, e.zone, e.mark, e.snat, e.dnat, e.replied, e.assured)
}

func entryOf(e *Entry) kernelEntry {
	return kernelEntry{e.Original, e.Reply, e.Zone, e.Mark, e.SNAT, e.DNAT, e.SeenReply, e.Assured}
}

func entryOfFlow(f *conntrack.Flow) kernelEntry {
	return kernelEntry{
		tupleOfFlow(f.TupleOrig), tupleOfFlow(f.TupleReply), f.Zone, f.Mark,
		f.Status.SrcNAT(), f.Status.DstNAT(), f.Status.SeenReply(), f.Status.Assured(),
	}
}

func tupleOfFlow(t conntrack.Tuple) iptables.Tuple {
	source, destination := t.Proto.SourcePort, t.Proto.DestinationPort
	if hasICMP(t.Proto.Protocol) {
		source, destination = t.Proto.ICMPID, uint16(t.Proto.ICMPType)<<8|uint16(t.Proto.ICMPCode)
	}
	return iptables.Tuple{Protocol: t.Proto.Protocol, Source: netip.AddrPortFrom(t.IP.SourceAddress, source), Destination: netip.AddrPortFrom(t.IP.DestinationAddress, destination)}
}

// Of nfnetlink_conntrack.h; types and codes of ICMP follow the id.
const (
	messageGet         = 1 // IPCTNL_MSG_CT_GET
	ctaTupleOriginal   = 1
	ctaZone            = 18
	ctaTupleIP         = 1
	ctaTupleProto      = 2
	ctaIPv4Source      = 1
	ctaIPv4Destination = 2
	ctaIPv6Source      = 3
	ctaIPv6Destination = 4
	ctaProtoNumber     = 1
	ctaProtoSourcePort = 2
	ctaProtoICMPID     = 4
	ctaProtoICMPv6ID   = 7
)

// get requests the entry that has the tuple, in either direction. (conntrack.Conn's own
// Get waits for an acknowledgement that mdlayher/netlink leaves in the queue, or has read
// already.)
func (n *kernelNode) get(t iptables.Tuple, zone uint16) (kernelEntry, error) {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	e.Nested(ctaTupleOriginal, func(tuple *netlink.AttributeEncoder) error {
		tuple.Nested(ctaTupleIP, func(ip *netlink.AttributeEncoder) error {
			source, destination := uint16(ctaIPv6Source), uint16(ctaIPv6Destination)
			if t.Source.Addr().Is4() {
				source, destination = ctaIPv4Source, ctaIPv4Destination
			}
			ip.Bytes(source, t.Source.Addr().AsSlice())
			ip.Bytes(destination, t.Destination.Addr().AsSlice())
			return nil
		})
		tuple.Nested(ctaTupleProto, func(proto *netlink.AttributeEncoder) error {
			proto.Uint8(ctaProtoNumber, t.Protocol)
			typ, code := uint8(t.Destination.Port()>>8), uint8(t.Destination.Port())
			switch t.Protocol {
			case protoICMP:
				proto.Uint16(ctaProtoICMPID, t.Source.Port())
				proto.Uint8(ctaProtoICMPID+1, typ)
				proto.Uint8(ctaProtoICMPID+2, code)
			case protoICMPv6:
				proto.Uint16(ctaProtoICMPv6ID, t.Source.Port())
				proto.Uint8(ctaProtoICMPv6ID+1, typ)
				proto.Uint8(ctaProtoICMPv6ID+2, code)
			default:
				proto.Uint16(ctaProtoSourcePort, t.Source.Port())
				proto.Uint16(ctaProtoSourcePort+1, t.Destination.Port())
			}
			return nil
		})
		return nil
	})
	if zone != 0 {
		e.Uint16(ctaZone, zone)
	}
	attributes, err := e.Encode()
	if err != nil {
		return kernelEntry{}, err
	}
	family := byte(unix.NFPROTO_IPV6)
	if t.Source.Addr().Is4() {
		family = unix.NFPROTO_IPV4
	}
	request := netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_CTNETLINK<<8 | messageGet, Flags: netlink.Request},
		Data:   append([]byte{family, 0, 0, 0}, attributes...),
	}
	if err := transact(n.lookups, request); err != nil {
		return kernelEntry{}, err
	}
	var entry kernelEntry
	return entry, receive(n.lookups, func(m netlink.Message) error {
		if m.Header.Type == netlink.Error {
			return unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
		}
		var event conntrack.Event
		if err := event.Unmarshal(m); err != nil {
			return err
		}
		entry = entryOfFlow(event.Flow)
		return nil
	})
}

// compareEntry compares the entry of a packet's connection with the kernel's.
func (t *trial) compareEntry(w Way) error {
	if w.Entry == nil {
		return nil
	}
	got, err := t.node.get(w.Entry.Original, w.Entry.Zone)
	there := w.State.table[tupleKey{w.Entry.Original, w.Entry.Zone}].entry == w.Entry
	switch {
	case errors.Is(err, unix.ENOENT) && !there:
		return nil
	case errors.Is(err, unix.ENOENT):
		return errors.New("the connection's entry: the kernel has none")
	case err != nil:
		return fmt.Errorf("request for an entry: %w", err)
	case !there:
		return fmt.Errorf("the connection's entry: the kernel has %v", got)
	}
	if want := entryOf(w.Entry); !got.agrees(want) {
		return fmt.Errorf("the connection's entry: the kernel has\n  %v, want\n  %v", got, want)
	}
	return nil
}

// agrees reports whether an entry of the kernel is as the simulator has it. A UDP flow is assured
// when it is two seconds old (nf_conntrack_proto_udp.c, udp_packet): on a busy machine the
// clocks of kernel and simulator may be on different sides of that.
func (e kernelEntry) agrees(want kernelEntry) bool {
	if e.original.Protocol == protoUDP && e.replied {
		want.assured = e.assured
	}
	return e == want
}

// compareTable compares all entries.
func (t *trial) compareTable() error {
	flows, err := t.node.entries.Dump(nil)
	if err != nil {
		return fmt.Errorf("listing the entries: %w", err)
	}
	got := make(map[tupleKey]kernelEntry)
	for _, f := range flows {
		e := entryOfFlow(&f)
		got[tupleKey{e.original, e.zone}] = e
	}
	want := make(map[tupleKey]kernelEntry)
	for k, c := range t.state.table {
		if !c.reply || c.entry.Original == c.entry.Reply {
			want[k] = entryOf(c.entry)
		}
	}
	var faults []error
	for k, e := range got {
		if !e.agrees(want[k]) {
			faults = append(faults, fmt.Errorf("the connection table: the kernel has\n  %v, want\n  %v", e, want[k]))
		}
	}
	for k, e := range want {
		if _, ok := got[k]; !ok {
			faults = append(faults, fmt.Errorf("the connection table: the kernel has not\n  %v", e))
		}
	}
	return errors.Join(faults...)
}

// clone is a copy that has nothing in common with the state.
func (s *State) clone() *State {
	c := &State{
		Now: s.Now, Began: s.Began, memory: s.memory.Clone(),
		table: make(map[tupleKey]connection), sources: make(map[sourceKey][]*Entry), templates: make(map[*iptables.Rule]*Entry),
	}
	entries := make(map[*Entry]*Entry)
	for k, v := range s.table {
		if entries[v.entry] == nil {
			e := *v.entry
			entries[v.entry] = &e
		}
		c.table[k] = connection{entries[v.entry], v.reply}
	}
	for k, list := range s.sources {
		for _, e := range list {
			c.sources[k] = append(c.sources[k], entries[e])
		}
	}
	for r, e := range s.templates {
		copied := *e
		c.templates[r] = &copied
	}
	return c
}
