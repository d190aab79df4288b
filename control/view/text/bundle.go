package text

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/nfqproxy/nfqproxy/control/bundle"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/unit"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// Bundle renders a bundle: the flow, if it has one, with its service, connection entries and packets, and the files. It ends with a newline. An
// error is about a file of the bundle that cannot be read.
func Bundle(b *bundle.Bundle, o Options) (string, error) {
	var out strings.Builder
	by := fmt.Sprintf("bundle of %s by nfqproxy %s", b.Created.In(o.zone()).Format("2006-01-02 15:04:05 MST"), b.Program)
	if b.File(bundle.FlowFile) == nil && b.Flow == "" {
		fmt.Fprintf(&out, "node %s; %s\n", b.Node, by)
	} else {
		fmt.Fprintf(&out, "flow %s, decided on node %s; %s\n\n", b.Flow, b.Node, by)
		if err := flowOf(&out, b, o); err != nil {
			return "", err
		}
	}
	fmt.Fprintf(&out, "\nfiles\n")
	for _, f := range b.Files {
		fmt.Fprintf(&out, "  %-22s %10s  %s\n", f.Name, unit.Bytes(uint64(f.Size)), f.About)
	}
	for _, n := range b.Notes {
		fmt.Fprintf(&out, "  %s %s\n", o.Style.Paint(Yellow, "missing:"), n)
	}
	return out.String(), nil
}

// flowOf writes what the bundle has about its flow.
func flowOf(out *strings.Builder, b *bundle.Bundle, o Options) error {
	var r flow.Record
	if found, err := readFile(b, bundle.FlowFile, &r); err != nil {
		return err
	} else if !found {
		return fmt.Errorf("%s: missing", bundle.FlowFile)
	}
	out.WriteString(Story(&r, o))
	if err := serviceOf(out, b); err != nil {
		return err
	}
	if err := entriesOf(out, b); err != nil {
		return err
	}
	return packetsOf(out, b, o.zone())
}

// listed writes the first lines of a list of n.
func listed(out *strings.Builder, n int, line func(i int) string) {
	const most = 40
	for i := range min(n, most) {
		fmt.Fprintf(out, "  %s\n", line(i))
	}
	if n > most {
		fmt.Fprintf(out, "  and %d more\n", n-most)
	}
}

// readFile reads a file of a bundle, which may be missing.
func readFile(b *bundle.Bundle, name string, into any) (found bool, err error) {
	data := b.File(name)
	if data == nil {
		return false, nil
	}
	if err := json.Unmarshal(data, into); err != nil {
		return false, fmt.Errorf("%s: %w", name, err)
	}
	return true, nil
}

func serviceOf(out *strings.Builder, b *bundle.Bundle) error {
	var s observe.Service
	found, err := readFile(b, bundle.ServiceFile, &s)
	if !found {
		return err
	}
	fmt.Fprintf(out, "\nservice %s: %s, %d open, %d refused, %d unanswered\n", s.Service, quantity.Count(s.Flows.Total, "flow"), s.Flows.Open, s.Flows.Refused, s.Flows.Unanswered)
	listed(out, len(s.Endpoints), func(i int) string {
		e := &s.Endpoints[i]
		text := endpointName(e.Endpoint, e.Pod, e.Node)
		if e.Excluded != "" {
			text += ", " + e.Excluded
		}
		if e.Removed {
			text += ", removed"
		}
		return fmt.Sprintf("%s: %s, %d refused, %d unanswered", text, quantity.Count(e.Flows.Total, "flow"), e.Flows.Refused, e.Flows.Unanswered)
	})
	return nil
}

func entriesOf(out *strings.Builder, b *bundle.Bundle) error {
	var list []bundle.Entry
	found, err := readFile(b, bundle.EntriesFile, &list)
	if !found {
		return err
	}
	fmt.Fprintf(out, "\nconnection entries of the client and the service: %d\n", len(list))
	listed(out, len(list), func(i int) string {
		e := &list[i]
		text := fmt.Sprintf("%s %s -> %s, replies %s -> %s", decision.Protocol(e.Protocol), e.Original.Source, e.Original.Destination, e.Reply.Source, e.Reply.Destination)
		if e.State != "" {
			text += ", " + e.State
		}
		if !e.Answered {
			text += ", no reply"
		}
		return text + ", expires in " + unit.Duration(time.Duration(e.Timeout)*time.Second)
	})
	return nil
}

// packetsOf renders the captured packets, one line each.
func packetsOf(out *strings.Builder, b *bundle.Bundle, zone *time.Location) error {
	data := b.File(bundle.PacketsFile)
	if data == nil {
		return nil
	}
	r, err := pcapgo.NewNgReader(bytes.NewReader(data), pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		return fmt.Errorf("%s: %w", bundle.PacketsFile, err)
	}
	type captured struct {
		at     time.Time
		device string
		data   []byte
	}
	var packets []captured
	for {
		data, info, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%s: packet %d: %w", bundle.PacketsFile, len(packets)+1, err)
		}
		device := ""
		if i, err := r.Interface(info.InterfaceIndex); err == nil {
			device = i.Name
		}
		packets = append(packets, captured{info.Timestamp.In(zone), device, data})
	}
	fmt.Fprintf(out, "\npackets: %d\n", len(packets))
	listed(out, len(packets), func(i int) string {
		p := &packets[i]
		return fmt.Sprintf("%s  %-12s %s", p.at.Format("15:04:05.000000"), p.device, packetInWords(p.data))
	})
	return nil
}

// packetInWords is a packet in one line.
func packetInWords(data []byte) string {
	layer := layers.LayerTypeIPv4
	if len(data) > 0 && data[0]>>4 == 6 {
		layer = layers.LayerTypeIPv6
	}
	p := gopacket.NewPacket(data, layer, gopacket.NoCopy)
	network := p.NetworkLayer()
	if network == nil || p.ErrorLayer() != nil && p.TransportLayer() == nil {
		return fmt.Sprintf("%d bytes that are not a whole IP packet", len(data))
	}
	from, to := network.NetworkFlow().Endpoints()
	ends := func(source, destination uint16) string {
		return net.JoinHostPort(from.String(), fmt.Sprint(source)) + " -> " + net.JoinHostPort(to.String(), fmt.Sprint(destination))
	}
	switch l := p.TransportLayer().(type) {
	case *layers.TCP:
		return "TCP " + ends(uint16(l.SrcPort), uint16(l.DstPort)) + " " + tcpFlags(l) + payload(len(l.Payload))
	case *layers.UDP:
		return "UDP " + ends(uint16(l.SrcPort), uint16(l.DstPort)) + payload(len(l.Payload))
	case *layers.SCTP:
		return "SCTP " + ends(uint16(l.SrcPort), uint16(l.DstPort))
	}
	text := from.String() + " -> " + to.String()
	if l, ok := p.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4); ok {
		return "ICMP " + text + " " + l.TypeCode.String()
	}
	if l, ok := p.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6); ok {
		return "ICMPv6 " + text + " " + l.TypeCode.String()
	}
	return text
}

func payload(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d bytes", n)
}

// tcpFlags are those of a TCP segment, as tcpdump's users know them.
func tcpFlags(l *layers.TCP) string {
	var list []string
	for _, f := range []struct {
		set  bool
		name string
	}{{l.SYN, "SYN"}, {l.FIN, "FIN"}, {l.RST, "RST"}, {l.PSH, "PSH"}, {l.ACK, "ACK"}} {
		if f.set {
			list = append(list, f.name)
		}
	}
	return strings.Join(list, " ")
}
