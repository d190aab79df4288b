// Package bundletext renders bundles as text.
package bundletext

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

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/bundle"
	"github.com/nfqproxy/nfqproxy/control/view/flowtext"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// few is how many entries or packets are shown.
const few = 40

// Render renders a bundle: the flow, its service, connection entries, packets and files. It ends with a newline. An
// error is about a file of the bundle that cannot be read.
func Render(b *bundle.Bundle, o flowtext.Options) (string, error) {
	zone := o.Zone
	if zone == nil {
		zone = time.Local
	}
	var out strings.Builder
	fmt.Fprintf(&out, "flow %s, decided on node %s; bundle of %s by nfqproxy %s\n\n", b.Flow, b.Node, b.Created.In(zone).Format("2006-01-02 15:04:05 MST"), b.Program)
	var r flow.Record
	if err := read(b, bundle.FlowFile, &r); err != nil {
		return "", err
	}
	out.WriteString(flowtext.Story(&r, o, false))
	if err := service(&out, b); err != nil {
		return "", err
	}
	if err := entries(&out, b); err != nil {
		return "", err
	}
	if err := packets(&out, b, zone); err != nil {
		return "", err
	}
	fmt.Fprintf(&out, "\nfiles\n")
	for _, f := range b.Files {
		fmt.Fprintf(&out, "  %-16s %10s  %s\n", f.Name, flowtext.Bytes(uint64(f.Size)), f.About)
	}
	for _, n := range b.Notes {
		fmt.Fprintf(&out, "  %s %s\n", o.Style.Paint(flowtext.Yellow, "missing:"), n)
	}
	return out.String(), nil
}

// errMissing: the bundle does not have the file.
var errMissing = errors.New("missing")

func read(b *bundle.Bundle, name string, into any) error {
	data := b.File(name)
	if data == nil {
		return fmt.Errorf("%s: %w", name, errMissing)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// optional is read for a file that may be missing.
func optional(b *bundle.Bundle, name string, into any) (found bool, err error) {
	if err = read(b, name, into); errors.Is(err, errMissing) {
		return false, nil
	}
	return err == nil, err
}

func service(out *strings.Builder, b *bundle.Bundle) error {
	var s observe.Service
	found, err := optional(b, bundle.ServiceFile, &s)
	if !found {
		return err
	}
	fmt.Fprintf(out, "\nservice %s: %s flows, %d open, %d refused, %d unanswered\n", s.Service, fmt.Sprint(s.Flows.Total), s.Flows.Open, s.Flows.Refused, s.Flows.Unanswered)
	for i := range s.Endpoints {
		if i == few {
			fmt.Fprintf(out, "  and %d more\n", len(s.Endpoints)-few)
			break
		}
		e := &s.Endpoints[i]
		text := e.Endpoint
		if e.Pod != "" {
			text += "  pod " + e.Pod
		}
		if e.Node != "" {
			text += " on " + e.Node
		}
		if e.Excluded != "" {
			text += ", " + e.Excluded
		}
		if e.Removed {
			text += ", removed"
		}
		fmt.Fprintf(out, "  %s: %s, %d refused, %d unanswered\n", text, flowtext.Count(e.Flows.Total, "flow"), e.Flows.Refused, e.Flows.Unanswered)
	}
	return nil
}

func entries(out *strings.Builder, b *bundle.Bundle) error {
	var list []bundle.Entry
	found, err := optional(b, bundle.EntriesFile, &list)
	if !found {
		return err
	}
	fmt.Fprintf(out, "\nconnection entries of the client and the service: %d\n", len(list))
	for i := range list {
		if i == few {
			fmt.Fprintf(out, "  and %d more\n", len(list)-few)
			break
		}
		e := &list[i]
		text := fmt.Sprintf("%s %s -> %s, replies %s -> %s", decision.Protocol(e.Protocol), e.Original.Source, e.Original.Destination, e.Reply.Source, e.Reply.Destination)
		if e.State != "" {
			text += ", " + e.State
		}
		if !e.Answered {
			text += ", no reply"
		}
		fmt.Fprintf(out, "  %s, expires in %s\n", text, time.Duration(e.Timeout)*time.Second)
	}
	return nil
}

// packets renders the captured packets, one line each.
func packets(out *strings.Builder, b *bundle.Bundle, zone *time.Location) error {
	data := b.File(bundle.PacketsFile)
	if data == nil {
		return nil
	}
	r, err := pcapgo.NewNgReader(bytes.NewReader(data), pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		return fmt.Errorf("%s: %w", bundle.PacketsFile, err)
	}
	var lines []string
	n := 0
	for ; ; n++ {
		data, info, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%s: packet %d: %w", bundle.PacketsFile, n+1, err)
		}
		if n >= few {
			continue
		}
		device := ""
		if i, err := r.Interface(info.InterfaceIndex); err == nil {
			device = i.Name
		}
		lines = append(lines, fmt.Sprintf("  %s  %-12s %s", info.Timestamp.In(zone).Format("15:04:05.000000"), device, describe(data)))
	}
	fmt.Fprintf(out, "\npackets: %d\n", n)
	for _, line := range lines {
		out.WriteString(line + "\n")
	}
	if n > few {
		fmt.Fprintf(out, "  and %d more\n", n-few)
	}
	return nil
}

// describe is a packet in one line.
func describe(data []byte) string {
	first := gopacket.LayerType(layers.LayerTypeIPv4)
	if len(data) > 0 && data[0]>>4 == 6 {
		first = layers.LayerTypeIPv6
	}
	p := gopacket.NewPacket(data, first, gopacket.NoCopy)
	network := p.NetworkLayer()
	if network == nil || p.ErrorLayer() != nil && p.TransportLayer() == nil {
		return fmt.Sprintf("%d bytes that are no whole IP packet", len(data))
	}
	from, to := network.NetworkFlow().Endpoints()
	ends := func(source, destination uint16) string {
		return net.JoinHostPort(from.String(), fmt.Sprint(source)) + " -> " + net.JoinHostPort(to.String(), fmt.Sprint(destination))
	}
	switch l := p.TransportLayer().(type) {
	case *layers.TCP:
		return "TCP " + ends(uint16(l.SrcPort), uint16(l.DstPort)) + " " + flags(l) + length(len(l.Payload))
	case *layers.UDP:
		return "UDP " + ends(uint16(l.SrcPort), uint16(l.DstPort)) + length(len(l.Payload))
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

func length(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d bytes", n)
}

// flags are those of a TCP segment, as tcpdump's users know them.
func flags(l *layers.TCP) string {
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
