package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/bench/traffic"
)

// The ordinary client.
const (
	connectRate    = 200 // connections a second, each with a byte there and back
	requestRate    = 100 // UDP requests a second, of one flow
	requestTimeout = 3 * time.Second
	late           = 200 * time.Millisecond
	resent         = 900 * time.Millisecond // TCP sends a SYN again after a second
)

// outcome is the result of a connection, by the schedule's clock.
type outcome struct {
	took time.Duration
	err  error
}

// useService is an ordinary client. ended is called when it begins nothing more.
func (t *topology) useService(ctx context.Context, d time.Duration, ended func()) (*clientResult, error) {
	udp, err := t.client.Dial(ctx, "udp", netip.AddrPort{}, theService)
	if err != nil {
		return nil, err
	}
	defer udp.Close()
	e := &clientResult{errors: map[string]int{}}
	outcomes := make([]outcome, int(d.Seconds()*connectRate))
	answers := make(chan int)
	start := time.Now()
	_ = udp.SetReadDeadline(start.Add(d + time.Second))
	go func() { answers <- countAnswers(udp) }()
	var schedules, connections sync.WaitGroup
	schedules.Go(func() {
		// A request that cannot be sent counts as one without a reply.
		e.requests = paced(requestRate, d, func(int) { _, _ = udp.Write([]byte("?")) })
	})
	schedules.Go(func() {
		paced(connectRate, d, func(i int) {
			connections.Go(func() {
				at := start.Add(time.Duration(i) * time.Second / connectRate)
				err := t.request(time.Until(at.Add(requestTimeout)))
				outcomes[i] = outcome{time.Since(at), err}
			})
		})
	})
	schedules.Wait()
	ended()
	connections.Wait()
	e.lost = e.requests - <-answers
	e.add(outcomes)
	return e, nil
}

// request makes one connection.
func (t *topology) request(limit time.Duration) error {
	return t.client.Do(func() error {
		_, err := traffic.Request(theService, limit)
		return err
	})
}

// countAnswers reads datagrams until the connection's deadline.
func countAnswers(c net.Conn) (n int) {
	b := make([]byte, 16)
	for {
		_, err := c.Read(b)
		switch {
		case err == nil:
			n++
		case errors.Is(err, os.ErrDeadlineExceeded):
			return n
		}
	}
}

// paced calls send at a rate, a few times each millisecond, with the number of the call. It
// gives how many calls there were.
func paced(rate int, d time.Duration, send func(i int)) (n int) {
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		elapsed := min(time.Since(start), d)
		for due := int(elapsed.Seconds() * float64(rate)); n < due; n++ {
			send(n)
		}
		if elapsed == d {
			return n
		}
	}
}

// forged are the sources of attacks (RFC 2544).
var forged = netip.MustParsePrefix("198.18.0.0/15")

// forgedSource is the n-th: all addresses with one port, then with the next.
func forgedSource(n int, port uint16) netip.AddrPort {
	const addresses = 1 << 17
	return netip.AddrPortFrom(traffic.Advance(forged.Addr(), uint32(n%addresses)), port+uint16(n/addresses))
}

// flood is SYNs, or datagrams without content, out of the client's namespace.
type flood struct {
	udp  bool
	to   netip.AddrPort
	rate int
	time time.Duration
	// from is the source of all; the zero value: forged ones, a new one each time or, with
	// twice, each second time: a second datagram comes a tenth of a second after the first.
	from  netip.AddrPort
	twice bool
}

// source is that of packet i.
func (f *flood) source(i int) netip.AddrPort {
	switch {
	case f.from.IsValid():
		return f.from
	case f.twice && i%2 == 1:
		i = max(i/2-f.rate/20, 0)
	case f.twice:
		i /= 2
	}
	return forgedSource(i, forgedPort)
}

// send gives how many packets were sent.
func (t *topology) send(f *flood) (sent int, err error) {
	var fd int
	if err := t.client.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	}); err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	to := &unix.SockaddrInet4{Addr: f.to.Addr().As4()}
	b := gopacket.NewSerializeBuffer()
	paced(f.rate, f.time, func(i int) {
		sendErr := f.serialize(b, f.source(i))
		if sendErr == nil {
			sendErr = unix.Sendto(fd, b.Bytes(), 0, to)
		}
		if sendErr == nil {
			sent++
		} else if !errors.Is(sendErr, unix.ENOBUFS) {
			err = sendErr
		}
	})
	return sent, err
}

func (f *flood) serialize(b gopacket.SerializeBuffer, from netip.AddrPort) error {
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: from.Addr().AsSlice(), DstIP: f.to.Addr().AsSlice()}
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if f.udp {
		ip.Protocol = layers.IPProtocolUDP
		udp := &layers.UDP{SrcPort: layers.UDPPort(from.Port()), DstPort: layers.UDPPort(f.to.Port())}
		_ = udp.SetNetworkLayerForChecksum(ip)
		return gopacket.SerializeLayers(b, options, ip, udp)
	}
	tcp := &layers.TCP{SrcPort: layers.TCPPort(from.Port()), DstPort: layers.TCPPort(f.to.Port()), SYN: true, Window: 1024}
	_ = tcp.SetNetworkLayerForChecksum(ip)
	return gopacket.SerializeLayers(b, options, ip, tcp)
}
