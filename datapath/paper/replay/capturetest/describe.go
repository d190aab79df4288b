package capturetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

// Describe writes the packets of a pcap or pcapng capture, a line each:
//
//	0.001 UDP 10.244.1.9:40000 > 10.244.1.2:53
//
// gopacket reads it, so that the tested code is not used.
func Describe(capture []byte) (string, error) {
	var source gopacket.PacketDataSource
	var link layers.LinkType
	if bytes.HasPrefix(capture, []byte{0x0a, 0x0d, 0x0d, 0x0a}) {
		r, err := pcapgo.NewNgReader(bytes.NewReader(capture), pcapgo.DefaultNgReaderOptions)
		if err != nil {
			return "", err
		}
		source, link = r, r.LinkType()
	} else {
		r, err := pcapgo.NewReader(bytes.NewReader(capture))
		if err != nil {
			return "", err
		}
		source, link = r, r.LinkType()
	}
	var b strings.Builder
	for {
		data, info, err := source.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return b.String(), nil
		}
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "%g %s\n", info.Timestamp.Sub(Epoch).Seconds(), packetText(gopacket.NewPacket(data, link, gopacket.Default)))
	}
}

func packetText(p gopacket.Packet) string {
	network, transport := p.NetworkLayer(), p.TransportLayer()
	switch {
	case network == nil:
		return "not IP"
	case transport == nil:
		return fmt.Sprintf("%s > %s", network.NetworkFlow().Src(), network.NetworkFlow().Dst())
	}
	end := func(address, port gopacket.Endpoint) string {
		if address.EndpointType() == layers.EndpointIPv6 {
			return fmt.Sprintf("[%s]:%s", address, port)
		}
		return fmt.Sprintf("%s:%s", address, port)
	}
	addresses, ports := network.NetworkFlow(), transport.TransportFlow()
	return fmt.Sprintf("%s %s > %s", transport.LayerType(), end(addresses.Src(), ports.Src()), end(addresses.Dst(), ports.Dst()))
}
