package replay

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/packet"
)

// FuzzDecode holds the decoding of packets against gopacket's, and translates them: no bytes
// may be lost, and what is there is translated back by the tuple it had.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{
		"0 TCP 10.244.1.9:40000 > 10.96.0.20:80 SYN payload=x", "0 UDP [fd00::1]:1 > [fd00::2]:2 payload=xyz",
		"0 SCTP 10.244.1.9:40000 > 10.96.0.20:80 INIT", "0 UDP 1.2.3.4:1 > 1.2.3.5:2\n0 ICMP 1.2.3.5 > 1.2.3.4 about=1",
	} {
		b := capture(f, "pcap raw", text)
		f.Add(b[24+16:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		b = bytes.Clone(b)
		p, err := decoded(b)
		if in, ok := errorOf(&p, err); ok {
			before := bytes.Clone(b)
			from, to := in.Tuple.Inverse(), in.Tuple.Inverse()
			to.Source, to.Destination = from.Destination, from.Source
			p.rewriteError(&in, from, to)
			if len(b) != len(before) {
				t.Fatal("the length changed")
			}
		}
		if err != nil {
			return
		}
		if len(p.Data) > len(b) || p.Offset+4 > len(p.Data) {
			t.Fatalf("%d bytes of %d, transport at %d", len(p.Data), len(b), p.Offset)
		}
		first := gopacket.Decoder(layers.LayerTypeIPv4)
		if !p.Is4() {
			first = layers.LayerTypeIPv6
		}
		g := gopacket.NewPacket(b, first, gopacket.DecodeOptions{NoCopy: true})
		if transport := g.TransportLayer(); transport != nil && g.ErrorLayer() == nil && !p.Fragment {
			s, d := transport.TransportFlow().Src().Raw(), transport.TransportFlow().Dst().Raw()
			if got := p.Transport()[:4]; !bytes.Equal(got, append(bytes.Clone(s), d...)) {
				t.Fatalf("ports %x, gopacket has %x %x", got, s, d)
			}
		}
		had := p.Tuple
		p.rewrite(had.Inverse())
		again, err := decoded(b)
		if err != nil || again.Tuple != had.Inverse() {
			t.Fatalf("%v became %v: %v", had, again.Tuple, err)
		}
	})
}

// FuzzCapture replays whatever is a capture: any file gives packets, or one error. What comes
// out is what went in.
func FuzzCapture(f *testing.F) {
	for _, format := range formats {
		f.Add(capture(f, format, conversation))
	}
	table := cluster(f, nil)
	f.Fuzz(func(t *testing.T, b []byte) {
		blocks, err := readAll(b)
		var all []byte
		for _, b := range blocks {
			all = append(all, b.Raw...)
		}
		if !bytes.HasPrefix(b, all) || err == nil && len(all) != len(b) {
			t.Fatalf("%d bytes of %d came out, or others: %v", len(all), len(b), err)
		}
		c, err := NewCapture(bytes.NewReader(b))
		if err != nil {
			return
		}
		r := New(ByTable(table, draws(), false))
		r.Translate = true
		var out bytes.Buffer
		_ = r.Run(c, &out, func(*flow.Record) error { return nil })
		if out.Len() > len(b) {
			t.Fatalf("%d bytes became %d", len(b), out.Len())
		}
	})
}

// decoded is packet.Decode for a packet of a capture.
func decoded(b []byte) (captured, error) {
	p, err := packet.Decode(b)
	return captured{p}, err
}

// errorOf is errorIn where decode has read enough for it.
func errorOf(p *captured, err error) (captured, bool) {
	if !errors.Is(err, packet.ErrNoPorts) {
		return captured{}, false
	}
	return p.errorIn()
}
