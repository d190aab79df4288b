package replay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"time"
)

// Blocks of pcapng (draft-ietf-opsawg-pcapng, section 4).
const (
	blockInterface = 1
	blockPacket    = 2 // obsolete
	blockSimple    = 3
	blockEnhanced  = 6
)

// Options of interfaces (section 4.2).
const (
	optionName       = 2
	optionResolution = 9
	optionOffset     = 14
)

// longestBlock is how long a block may be: a greater length counts as damage.
const longestBlock = 16 << 20

// nextNG reads a block. All have their length at both ends.
func (c *Capture) nextNG() (*Block, error) {
	if _, err := c.in.Peek(1); errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	what := fmt.Sprintf("the block behind packet %d", c.packet)
	head := make([]byte, 12)
	if err := c.fill(head, what); err != nil {
		return nil, err
	}
	section := binary.BigEndian.Uint32(head) == magicSection // the same in either order
	if section {
		switch {
		case binary.BigEndian.Uint32(head[8:]) == 0x1a2b3c4d:
			c.order = binary.BigEndian
		case binary.LittleEndian.Uint32(head[8:]) == 0x1a2b3c4d:
			c.order = binary.LittleEndian
		default:
			return nil, fmt.Errorf("the section at byte %d has no byte order: the file is damaged, or no pcapng", c.read-12)
		}
		c.interfaces = nil
	}
	length := c.order.Uint32(head[4:])
	if length < 12 || length%4 != 0 || length > longestBlock {
		return nil, fmt.Errorf("%s claims a length of %d: the file is damaged from byte %d on", what, length, c.read-12)
	}
	raw := append(head, make([]byte, length-12)...)
	if err := c.fill(raw[12:], what); err != nil {
		return nil, err
	}
	if behind := c.order.Uint32(raw[length-4:]); behind != length {
		return nil, fmt.Errorf("%s has the length %d before and %d behind: the file is damaged from byte %d on", what, length, behind, c.read-int64(length))
	}
	b := &Block{Raw: raw}
	if err := c.open(b, section); err != nil {
		return nil, fmt.Errorf("%s, at byte %d: %w", what, c.read-int64(length), err)
	}
	return b, nil
}

// open reads the body of a block.
func (c *Capture) open(b *Block, section bool) error {
	body := b.Raw[8 : len(b.Raw)-4]
	switch typ := c.order.Uint32(b.Raw); {
	case section:
		if len(body) < 16 {
			return errors.New("a section header that is too short")
		}
		if major := c.order.Uint16(body[4:]); major != 1 {
			return fmt.Errorf("pcapng version %d: only version 1 is known", major)
		}
	case typ == blockInterface:
		return c.addInterface(body)
	case typ == blockEnhanced || typ == blockPacket:
		if len(body) < 20 {
			return errors.New("a packet block that is too short")
		}
		id := c.order.Uint32(body)
		if typ == blockPacket {
			id = uint32(c.order.Uint16(body))
		}
		i, err := c.at(id)
		if err != nil {
			return err
		}
		stamp := uint64(c.order.Uint32(body[4:]))<<32 | uint64(c.order.Uint32(body[8:]))
		return b.take(i, i.time(stamp), body[20:], c.order.Uint32(body[12:]))
	case typ == blockSimple:
		if len(body) < 4 {
			return errors.New("a packet block that is too short")
		}
		i, err := c.at(0)
		if err != nil {
			return err
		}
		length := c.order.Uint32(body)
		if i.snap > 0 {
			length = min(length, i.snap)
		}
		return b.take(i, c.last, body[4:], length)
	}
	return nil
}

// take makes the block a packet.
func (b *Block) take(i *captureInterface, when time.Time, data []byte, length uint32) error {
	if length > longestPacket || int(length) > len(data) {
		return fmt.Errorf("a packet that claims %d bytes in a block for %d", length, len(data))
	}
	b.Frame, b.Time, b.Link, b.Interface = data[:length:length], when, i.link, i.name
	return i.link.check()
}

// at finds an interface by its number.
func (c *Capture) at(id uint32) (*captureInterface, error) {
	if uint64(id) >= uint64(len(c.interfaces)) {
		return nil, fmt.Errorf("a packet of interface %d, but only %d are described before it", id, len(c.interfaces))
	}
	return &c.interfaces[id], nil
}

// addInterface reads a description of an interface.
func (c *Capture) addInterface(body []byte) error {
	if len(body) < 8 {
		return errors.New("an interface description that is too short")
	}
	i := captureInterface{link: LinkType(c.order.Uint16(body)), snap: c.order.Uint32(body[4:]), perUnit: 1e6}
	for options := body[8:]; len(options) >= 4; {
		code, length := c.order.Uint16(options), int(c.order.Uint16(options[2:]))
		if code == 0 {
			break
		}
		padded := 4 + (length+3)&^3
		if padded > len(options) {
			return fmt.Errorf("option %d of an interface goes past the end of the block", code)
		}
		value := options[4 : 4+length]
		options = options[padded:]
		switch {
		case code == optionName:
			i.name = string(value)
		case code == optionResolution && length == 1:
			var ok bool
			if i.perUnit, ok = resolution(value[0]); !ok {
				return fmt.Errorf("time stamps of resolution %#x: want at most 10^-19 or 2^-63 seconds", value[0])
			}
		case code == optionOffset && length == 8:
			i.offset = time.Duration(int64(c.order.Uint64(value))) * time.Second
		}
	}
	c.interfaces = append(c.interfaces, i)
	return nil
}

// resolution is how many units a second has: a negative power of 10 or, with the highest
// bit set, of 2.
func resolution(b byte) (perSecond uint64, ok bool) {
	if b&0x80 != 0 {
		return 1 << (b & 0x3f), b&0x7f < 64
	}
	perSecond = 1
	for range min(b, 19) {
		perSecond *= 10
	}
	return perSecond, b <= 19
}

func (i *captureInterface) time(stamp uint64) time.Time {
	seconds, rest := stamp/i.perUnit, stamp%i.perUnit
	high, low := bits.Mul64(rest, 1e9)
	nanoseconds, _ := bits.Div64(high, low, i.perUnit) // rest < perUnit: no overflow
	return time.Unix(int64(seconds), int64(nanoseconds)).UTC().Add(i.offset)
}
