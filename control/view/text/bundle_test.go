package text_test

import (
	"bytes"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/nfqproxy/nfqproxy/control/bundle"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/view/text"
)

// capture is a pcapng file of a SYN, its RST, a datagram, and what is no packet.
func capture(t *testing.T) []byte {
	t.Helper()
	client, endpoint := net.IPv4(10, 244, 1, 9), net.IPv4(10, 244, 2, 2)
	ip4 := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: client, DstIP: endpoint}
	back := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: endpoint, DstIP: client}
	ip6 := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: net.ParseIP("fd44::9"), DstIP: net.ParseIP("fd44::2")}
	syn := &layers.TCP{SrcPort: 40000, DstPort: 8080, SYN: true}
	rst := &layers.TCP{SrcPort: 8080, DstPort: 40000, RST: true, ACK: true}
	udp := &layers.UDP{SrcPort: 40000, DstPort: 5353}
	var file bytes.Buffer
	w, err := pcapgo.NewNgWriterInterface(&file, pcapgo.NgInterface{Name: "eth0", LinkType: layers.LinkTypeRaw, TimestampResolution: 9}, pcapgo.DefaultNgWriterOptions)
	if err != nil {
		t.Fatal(err)
	}
	for i, list := range [][]gopacket.SerializableLayer{{ip4, syn}, {back, rst}, {ip6, udp, gopacket.Payload("who?")}, {gopacket.Payload("\x00\x01")}} {
		b := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true}, list...); err != nil {
			t.Fatal(err)
		}
		info := gopacket.CaptureInfo{Timestamp: observetest.Now.Add(time.Duration(i) * time.Millisecond), CaptureLength: len(b.Bytes()), Length: len(b.Bytes())}
		if err := w.WritePacket(info, b.Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

func whole(t *testing.T) *bundle.Bundle {
	t.Helper()
	c := observetest.NewCluster()
	r := c.Records()[0]
	b := &bundle.Bundle{Manifest: bundle.Manifest{Created: observetest.Now, Program: "v1", Node: r.Node, Flow: r.ID}}
	services, err := c.Services(t.Context(), observe.ServiceQuery{})
	if err != nil {
		t.Fatal(err)
	}
	sent := uint64(2)
	at := netip.MustParseAddrPort
	for name, value := range map[string]any{
		bundle.FlowFile: r, bundle.ServiceFile: services.Services[3],
		bundle.EntriesFile: []bundle.Entry{
			{Protocol: 6, Original: bundle.Tuple{Source: at("10.244.1.9:40000"), Destination: at("10.96.0.20:80")}, Reply: bundle.Tuple{Source: at("10.244.2.2:8080"), Destination: at("10.244.1.9:40000")}, State: "SYN_SENT", Timeout: 117, Sent: &sent},
		},
	} {
		if err := b.AddJSON(name, "JSON", value); err != nil {
			t.Fatal(err)
		}
	}
	b.Add(bundle.PacketsFile, "4 packets in 5s", capture(t))
	b.Note("nftables.rules: the node has no program nft")
	return b
}

func TestBundle(t *testing.T) {
	got, err := text.Bundle(whole(t), text.Options{Zone: time.UTC})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "bundle.txt", got)
}

// TestDamagedBundle: a bundle may lack all files but the flow's; a file that cannot be read is named.
func TestDamagedBundle(t *testing.T) {
	for name, tt := range map[string]struct {
		file, text string
		want       string // part of the error; empty: none
	}{
		"whole":                    {"other.txt", "", ""},
		"flow that is no record":   {bundle.FlowFile, "[]", bundle.FlowFile},
		"entries that are no list": {bundle.EntriesFile, "{}", bundle.EntriesFile},
		"packets":                  {bundle.PacketsFile, "none", bundle.PacketsFile},
		"service":                  {bundle.ServiceFile, "7", bundle.ServiceFile},
	} {
		t.Run(name, func(t *testing.T) {
			b := whole(t)
			b.Add(tt.file, "", []byte(tt.text))
			_, err := text.Bundle(b, text.Options{})
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
	if _, err := text.Bundle(&bundle.Bundle{Manifest: bundle.Manifest{Flow: "node-a-1"}}, text.Options{}); err == nil || !strings.Contains(err.Error(), "flow.json: missing") {
		t.Errorf("a bundle without a flow: %v", err)
	}
}
