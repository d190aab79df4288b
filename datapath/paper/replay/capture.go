package replay

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// Capture reads a file of captured packets: pcap, with time stamps in microseconds or nanoseconds,
// or pcapng; each in either byte order. The blocks are the file's bytes, so that writing all
// blocks copies the file with its link types, time stamps, interfaces and comments. (pcapgo of
// gopacket keeps less, accepts a file that ends within a block, and panics on short options.)
type Capture struct {
	in     *bufio.Reader
	read   int64 // bytes so far
	packet int   // packets so far
	next   func() (*Block, error)
	begun  bool

	order      binary.ByteOrder
	header     []byte // of pcap: the file's
	interfaces []captureInterface
	nanosecond bool // pcap: stamps are in nanoseconds
	last       time.Time
}

// captureInterface is where packets were captured.
type captureInterface struct {
	link    LinkType
	name    string
	snap    uint32
	perUnit uint64        // time stamps per second
	offset  time.Duration // added to all time stamps
}

// Block is a part of a capture: a packet, or data between packets.
type Block struct {
	Raw []byte // as it is in the file
	// Frame is the captured packet with its link layer header, within Raw; nil if the block is
	// no packet. The other fields are valid iff it is one.
	Frame []byte
	// Number counts packets from 1.
	Number int
	// Time is when it was captured; if the block has no time stamp, that of the packet before.
	Time time.Time
	Link LinkType
	// Interface is the name of the interface it was captured at; empty: unknown.
	Interface string
}

// Magic numbers of capture files (draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng) and
// of gzip, as the first four bytes in big-endian order.
const (
	magicMicroseconds = 0xa1b2c3d4
	magicNanoseconds  = 0xa1b23c4d
	magicSection      = 0x0a0d0d0a
	magicGzip         = 0x1f8b
)

// longestPacket is how many bytes of a packet may be captured: a larger number counts as damage
// (MAXIMUM_SNAPLEN of libpcap).
const longestPacket = 262144

// NewCapture begins to read a capture. The error is the reason why the file is no capture.
func NewCapture(r io.Reader) (*Capture, error) {
	c := &Capture{in: bufio.NewReaderSize(r, 1<<16)}
	head, err := c.in.Peek(4)
	switch {
	case len(head) == 0 && errors.Is(err, io.EOF):
		return nil, errors.New("it is empty: a capture has at least a header")
	case err != nil && !errors.Is(err, io.EOF):
		return nil, err
	case len(head) < 4:
		return nil, fmt.Errorf("not a capture: it has only %d bytes", len(head))
	}
	magic := binary.BigEndian.Uint32(head)
	switch {
	case magic == magicSection:
		c.next = c.nextNG
		return c, nil
	case magic>>16 == magicGzip:
		return nil, errors.New("it is compressed: unpack it first, as in gunzip -c FILE | nfqproxy replay -")
	}
	c.next = c.nextPcap
	for _, order := range []binary.ByteOrder{binary.BigEndian, binary.LittleEndian} {
		switch order.Uint32(head) {
		case magicNanoseconds:
			c.nanosecond = true
			fallthrough
		case magicMicroseconds:
			c.order = order
			return c, c.beginPcap()
		}
	}
	return nil, fmt.Errorf("not a capture: it begins with %x, unlike pcap and pcapng; nor a flow log, whose lines are JSON", head)
}

// Next returns the next block, and io.EOF after the last. For a truncated or malformed file it
// returns an error with the position.
func (c *Capture) Next() (*Block, error) {
	b, err := c.next()
	if b != nil && b.Frame != nil {
		c.packet++
		b.Number = c.packet
		c.last = b.Time
	}
	return b, err
}

// beginPcap reads the header of a pcap file.
func (c *Capture) beginPcap() error {
	c.header = make([]byte, 24)
	if err := c.fill(c.header, "the header"); err != nil {
		return err
	}
	if major := c.order.Uint16(c.header[4:]); major != 2 {
		return fmt.Errorf("pcap version %d: only version 2 is known", major)
	}
	// The upper bits are about frame check sequences.
	link := LinkType(c.order.Uint32(c.header[20:]) & 0xffff)
	c.interfaces = []captureInterface{{link: link}}
	return link.check()
}

func (c *Capture) nextPcap() (*Block, error) {
	if !c.begun {
		c.begun = true
		return &Block{Raw: c.header}, nil
	}
	if _, err := c.in.Peek(1); errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	what := fmt.Sprintf("packet %d", c.packet+1)
	head := make([]byte, 16, 16+2048)
	if err := c.fill(head, what); err != nil {
		return nil, err
	}
	length := c.order.Uint32(head[8:])
	if length > longestPacket {
		return nil, fmt.Errorf("%s claims to have %d captured bytes: the file is damaged from byte %d on", what, length, c.read-16)
	}
	raw := append(head, make([]byte, length)...)
	if err := c.fill(raw[16:], what); err != nil {
		return nil, err
	}
	fraction := time.Duration(c.order.Uint32(raw[4:])) * time.Microsecond
	if c.nanosecond {
		fraction /= 1000
	}
	return &Block{
		Raw: raw, Frame: raw[16:], Link: c.interfaces[0].link,
		Time: time.Unix(int64(c.order.Uint32(raw)), int64(fraction)).UTC(),
	}, nil
}

// fill reads all of b; what names the part of the file.
func (c *Capture) fill(b []byte, what string) error {
	n, err := io.ReadFull(c.in, b)
	c.read += int64(n)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("cut off at byte %d, within %s: %d more bytes should follow", c.read, what, len(b)-n)
	}
	return err
}
