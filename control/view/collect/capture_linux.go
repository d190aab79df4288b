package collect

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	defaultPackets = 10_000
	// snapLength is how much of each packet is kept, in bytes: an Ethernet frame.
	snapLength = 2048
	// receiveBuffer is the size of the socket's receive buffer, in bytes.
	receiveBuffer = 4 << 20
)

// capture captures the packets of the pairs on all interfaces, without their link layer: pcapng with one interface
// block for each interface that had some. It ends with the time or the context. lost counts packets that were not
// kept.
func capture(ctx context.Context, s Source) (file []byte, kept int, lost uint, err error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, 0, fmt.Errorf("open a packet socket (requires CAP_NET_RAW): %w", err)
	}
	defer unix.Close(fd)
	filter, err := filterOf(s.Pairs)
	if err != nil {
		return nil, 0, 0, err
	}
	wake := unix.Timeval{Usec: 100_000} // to look at the time and the context
	err = errors.Join(
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wake),
		// Only now packets arrive: all of them have passed the filter.
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_ALL)}),
	)
	if err != nil {
		return nil, 0, 0, fmt.Errorf("set up a packet socket: %w", err)
	}
	w := &writer{interfaces: make(map[int]int)}
	most := cmp.Or(s.Packets, defaultPackets)
	data, control := make([]byte, snapLength), make([]byte, 256)
	for end := time.Now().Add(s.Capture); ctx.Err() == nil && time.Now().Before(end); {
		n, oobn, _, from, err := unix.Recvmsg(fd, data, control, unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR), errors.Is(err, unix.ENETDOWN): // nothing yet, or an interface went away
			continue
		case err != nil:
			return nil, 0, 0, fmt.Errorf("read packets: %w", err)
		case kept == most:
			lost++
			continue
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		if !ok || link.Hatype == unix.ARPHRD_LOOPBACK && link.Pkttype == unix.PACKET_OUTGOING {
			continue // a loopback interface has each packet twice
		}
		// With MSG_TRUNC, n is the length of the packet.
		if err := w.write(link.Ifindex, timeOf(control[:oobn]), data[:min(n, len(data))], n); err != nil {
			return nil, 0, 0, err
		}
		kept++
	}
	if stats, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
		lost += uint(stats.Drops)
	}
	file, err = w.close()
	return file, kept, lost, err
}

func bigEndian(n uint16) uint16 { return n<<8 | n>>8 }

// timeOf is the kernel's time of a packet.
func timeOf(control []byte) time.Time {
	messages, err := unix.ParseSocketControlMessage(control)
	if err == nil {
		for _, m := range messages {
			if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
				return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
			}
		}
	}
	return time.Now()
}

// writer writes pcapng, in memory.
type writer struct {
	buf        bytes.Buffer
	ng         *pcapgo.NgWriter
	interfaces map[int]int // number in the file, by the kernel's index
}

func (w *writer) write(index int, at time.Time, data []byte, full int) error {
	number, known := w.interfaces[index]
	if !known {
		name := fmt.Sprintf("if%d", index)
		if i, err := net.InterfaceByIndex(index); err == nil {
			name = i.Name
		}
		var err error
		if number, err = w.add(name); err != nil {
			return err
		}
		w.interfaces[index] = number
	}
	return w.ng.WritePacket(gopacket.CaptureInfo{Timestamp: at, CaptureLength: len(data), Length: full, InterfaceIndex: number}, data)
}

// add adds an interface. A file needs one.
func (w *writer) add(name string) (number int, err error) {
	i := pcapgo.NgInterface{Name: name, LinkType: layers.LinkTypeRaw, SnapLength: snapLength, TimestampResolution: 9}
	if w.ng == nil {
		w.ng, err = pcapgo.NewNgWriterInterface(&w.buf, i, pcapgo.DefaultNgWriterOptions)
		return 0, err
	}
	return w.ng.AddInterface(i)
}

func (w *writer) close() ([]byte, error) {
	if w.ng == nil {
		if _, err := w.add("none"); err != nil {
			return nil, err
		}
	}
	err := w.ng.Flush()
	return w.buf.Bytes(), err
}

// filterOf accepts packets between two addresses of a pair. A packet starts with its IP header.
func filterOf(pairs []Pair) ([]unix.SockFilter, error) {
	var program []bpf.Instruction
	for _, p := range pairs {
		for _, direction := range [][2]netip.Addr{{p.A, p.B}, {p.B, p.A}} {
			program = append(program, between(direction[0], direction[1])...)
		}
	}
	program = append(program, bpf.RetConstant{Val: 0})
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("filter of packets: %w", err)
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return filter, nil
}

// between returns the packet if it goes from one address to the other, and else continues behind.
func between(from, to netip.Addr) []bpf.Instruction {
	version, at := uint32(4), uint32(12)
	if from.Is6() {
		version, at = 6, 8
	}
	tests := []bpf.Instruction{bpf.LoadAbsolute{Off: 0, Size: 1}, bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 4}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: version}}
	for word := range slices.Chunk(slices.Concat(from.AsSlice(), to.AsSlice()), 4) {
		tests = append(tests, bpf.LoadAbsolute{Off: at, Size: 4}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(word)})
		at += 4
	}
	tests = append(tests, bpf.RetConstant{Val: snapLength})
	for i, t := range tests {
		if j, ok := t.(bpf.JumpIf); ok {
			j.SkipFalse = uint8(len(tests) - i - 1)
			tests[i] = j
		}
	}
	return tests
}
