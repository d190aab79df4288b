package xtables

import (
	"encoding/binary"
	"fmt"

	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
)

// EncodeMatch is the reverse of [DecodeMatch] for the matches that nfqproxy's own rules have:
// comments, packet marks, states of connections and TCP ports. Data has the length that the
// kernel wants, alignment included (XT_ALIGN).
func EncodeMatch(m iptables.Match) (Extension, error) {
	switch m := m.(type) {
	case iptables.Comment:
		const size = 256 // XT_MAX_COMMENT_LEN
		if len(m.Text) >= size {
			return Extension{}, fmt.Errorf("a comment of %d bytes: at most %d fit", len(m.Text), size-1)
		}
		data := make([]byte, size)
		copy(data, m.Text)
		return Extension{Name: "comment", Data: data}, nil
	case iptables.Mark: // struct xt_mark_mtinfo1
		data := make([]byte, 16)
		byteOrder.PutUint32(data, m.Mark.Value)
		byteOrder.PutUint32(data[4:], m.Mark.Mask)
		data[8] = flag(m.Negated)
		return Extension{Name: "mark", Revision: 1, Data: data}, nil
	case iptables.Conntrack: // struct xt_conntrack_mtinfo3
		state := m.State
		if m.State = (iptables.Condition[iptables.States]{}); m != (iptables.Conntrack{}) || !state.Given {
			break
		}
		data := make([]byte, 168)
		byteOrder.PutUint16(data[146:], ctState)
		byteOrder.PutUint16(data[148:], uint16(flag(state.Negated))*ctState)
		byteOrder.PutUint16(data[150:], uint16(state.Value))
		return Extension{Name: "conntrack", Revision: 3, Data: data}, nil
	case iptables.TCP: // struct xt_tcp
		if m.Option.Given || m.Flags.Given {
			break
		}
		data := make([]byte, 16)
		for i, p := range []iptables.Ports{m.Source, m.Destination} {
			byteOrder.PutUint16(data[4*i:], p.Range.First)
			byteOrder.PutUint16(data[4*i+2:], p.Range.Last)
			data[11] |= flag(p.Negated) << i
		}
		return Extension{Name: "tcp", Data: data}, nil
	}
	return Extension{}, fmt.Errorf("match %T: it cannot be written", m)
}

func flag(set bool) byte {
	if set {
		return 1
	}
	return 0
}

// entry makes a rule as ipt_entry or ip6t_entry. Of the generic matches it takes the
// protocol.
func entry(f iptables.Family, matches []iptables.Match, target Extension) ([]byte, error) {
	l := layoutOf(f)
	raw := make([]byte, l.header)
	for _, m := range matches {
		if p, ok := m.(iptables.Protocol); ok && !p.Negated {
			protocol(f, raw, p.Number)
			continue
		}
		x, err := EncodeMatch(m)
		if err != nil {
			return nil, err
		}
		raw = x.append(raw)
	}
	byteOrder.PutUint16(raw[l.targetOffset:], uint16(len(raw)))
	raw = target.append(raw)
	byteOrder.PutUint16(raw[l.targetOffset+2:], uint16(len(raw)))
	return raw, nil
}

// protocol writes the protocol into struct ipt_ip or ip6t_ip6.
func protocol(f iptables.Family, raw []byte, number uint8) {
	if f == iptables.IPv6 {
		byteOrder.PutUint16(raw[128:], uint16(number))
		raw[131] |= 1 // IP6T_F_PROTO
		return
	}
	byteOrder.PutUint16(raw[80:], uint16(number))
}

// append appends a struct xt_entry_match or xt_entry_target.
func (x Extension) append(raw []byte) []byte {
	const align = 8
	size := (extensionHeader + len(x.Data) + align - 1) / align * align
	at := len(raw)
	raw = append(raw, make([]byte, size)...)
	byteOrder.PutUint16(raw[at:], uint16(size))
	copy(raw[at+2:at+2+29], x.Name)
	raw[at+31] = x.Revision
	copy(raw[at+extensionHeader:], x.Data)
	return raw
}

// verdictTarget is the standard target.
func verdictTarget(verdict int32) Extension {
	return Extension{Name: StandardTarget, Data: binary.NativeEndian.AppendUint32(nil, uint32(verdict))}
}

// headTarget heads a chain.
func headTarget(name string) Extension {
	data := make([]byte, 30) // XT_FUNCTION_MAXNAMELEN
	copy(data, name)
	return Extension{Name: ErrorTarget, Data: data}
}
