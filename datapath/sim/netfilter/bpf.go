package netfilter

import (
	"math"

	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
)

// Codes of instructions (linux/bpf_common.h, linux/filter.h).
const (
	bpfClass = 0x07
	bpfLD    = 0x00
	bpfLDX   = 0x01
	bpfST    = 0x02
	bpfSTX   = 0x03
	bpfALU   = 0x04
	bpfJMP   = 0x05
	bpfRET   = 0x06

	bpfSize = 0x18 // of what is loaded: 4, 2 or 1 byte

	bpfMode = 0xe0
	bpfIMM  = 0x00
	bpfABS  = 0x20
	bpfIND  = 0x40
	bpfMEM  = 0x60
	bpfLEN  = 0x80
	bpfMSH  = 0xa0

	bpfOperation = 0xf0
	bpfX         = 0x08 // the operand is X, not K
	bpfA         = 0x10 // the program returns A, not K
	bpfTXA       = 0x80 // A becomes X; else X becomes A

	// Offsets from here on are of the kernel's data about the packet, and of its headers.
	bpfNetwork   = math.MaxUint32 - 0x100000 + 1 // SKF_NET_OFF
	bpfAncillary = math.MaxUint32 - 0x1000 + 1   // SKF_AD_OFF
	bpfMark      = bpfAncillary + 20             // SKF_AD_MARK
	bpfCPU       = bpfAncillary + 36             // SKF_AD_CPU
	bpfAnyHeader = 1 << 31
)

// bpf runs a program, whose jumps only go forward. The result is unknown if it depends on unknown
// bytes, or on the kernel's data about the packet, except its mark and processor.
type bpf struct {
	walk   *walk
	image  image
	a, x   number
	memory [16]number
}

// run is ___bpf_prog_run, for what bpf_convert_filter makes of the instruction set
// (net/core/filter.c).
func (b *bpf) run(program []iptables.Instruction) truth {
	for at := 0; at >= 0 && at < len(program); at++ {
		i := &program[at]
		operand := known(i.K)
		if i.Code&bpfX != 0 {
			operand = b.x
		}
		done := undecided
		ok := true
		switch i.Code & bpfClass {
		case bpfLD:
			b.a, done = b.load(i)
			ok = done == yes
		case bpfLDX:
			b.x, done = b.load(i)
			ok = done == yes
		case bpfST, bpfSTX:
			if ok = i.K < uint32(len(b.memory)); ok {
				b.memory[i.K] = [...]number{b.a, b.x}[i.Code&bpfClass-bpfST]
			}
		case bpfALU:
			done = b.compute(i.Code&bpfOperation, operand)
			ok = done == yes
		case bpfJMP:
			var skip uint32
			skip, ok = b.jump(i, operand)
			at += int(min(skip, uint32(len(program))))
		case bpfRET:
			n := known(i.K)
			if i.Code&bpfA != 0 {
				n = b.a
			}
			return n.isNot(0)
		default: // BPF_MISC
			if i.Code&bpfTXA != 0 {
				b.a = b.x
			} else {
				b.x = b.a
			}
		}
		if !ok {
			return done
		}
	}
	return undecided
}

// load reads a number; false: the packet does not have the bytes, and the program returns 0.
func (b *bpf) load(i *iptables.Instruction) (n number, t truth) {
	at, size := uint64(i.K), 4>>(i.Code&bpfSize>>3) // BPF_W, BPF_H, BPF_B
	switch i.Code & bpfMode {
	case bpfIMM:
		return known(i.K), yes
	case bpfLEN:
		b.walk.suppose(iptables.Length{})
		return known(uint32(len(b.image.bytes))), yes
	case bpfMEM:
		if i.K >= uint32(len(b.memory)) {
			return n, undecided
		}
		return b.memory[i.K], yes
	case bpfMSH:
		n, t = b.bytes(at, 1)
		return number{n.value & 0xf * 4, (n.known&0xf)*4 | ^uint32(0x3c)}, t
	case bpfABS:
		switch {
		case i.K == bpfMark:
			return known(b.walk.packet.Mark), yes
		case i.K == bpfCPU:
			return known(b.walk.processor()), yes
		case i.K >= bpfNetwork && i.K < bpfAncillary:
			at -= bpfNetwork
		case i.K >= bpfAnyHeader:
			return n, undecided
		}
		return b.bytes(at, size)
	case bpfIND:
		offset := b.x.value + i.K
		if b.x.known != math.MaxUint32 || offset >= bpfAnyHeader {
			return n, undecided
		}
		return b.bytes(uint64(offset), size)
	}
	return n, undecided
}

// bytes reads a number of the packet.
func (b *bpf) bytes(at uint64, size int) (number, truth) {
	n, ok := b.image.at(at, size)
	return n, truthOf(ok)
}

// Operations on A.
const (
	bpfAdd    = 0x00
	bpfSub    = 0x10
	bpfMul    = 0x20
	bpfDiv    = 0x30
	bpfOr     = 0x40
	bpfAnd    = 0x50
	bpfLeft   = 0x60
	bpfRight  = 0x70
	bpfNegate = 0x80
	bpfMod    = 0x90
	bpfXor    = 0xa0
)

// compute changes A; false: a division by zero, for which the program returns 0.
func (b *bpf) compute(operation uint16, by number) truth {
	a, decided := b.a, b.a.known&by.known == math.MaxUint32
	bits := by.value & 31 // as the kernel's interpreter shifts
	switch {
	case operation == bpfAnd:
		b.a = a.and(by)
	case operation == bpfOr:
		b.a = number{a.value | by.value, a.known&by.known | a.known&a.value | by.known&by.value}
	case operation == bpfLeft && by.known == math.MaxUint32:
		b.a = number{a.value << bits, a.known<<bits | (1<<bits - 1)}
	case operation == bpfRight && by.known == math.MaxUint32:
		b.a = number{a.value >> bits, ^(^a.known >> bits)}
	case operation == bpfDiv || operation == bpfMod:
		switch {
		case !decided:
			return undecided
		case by.value == 0:
			return no
		case operation == bpfDiv:
			b.a = known(a.value / by.value)
		default:
			b.a = known(a.value % by.value)
		}
	case !decided:
		b.a = number{}
	case operation == bpfAdd:
		b.a = known(a.value + by.value)
	case operation == bpfSub:
		b.a = known(a.value - by.value)
	case operation == bpfMul:
		b.a = known(a.value * by.value)
	case operation == bpfXor:
		b.a = known(a.value ^ by.value)
	case operation == bpfNegate:
		b.a = known(-a.value)
	default:
		return undecided
	}
	return yes
}

// jump returns how many instructions are skipped.
func (b *bpf) jump(i *iptables.Instruction, with number) (skip uint32, ok bool) {
	const always, equal, greater, notLess, anyBit = 0x00, 0x10, 0x20, 0x30, 0x40
	t := undecided
	decided := b.a.known&with.known == math.MaxUint32
	switch i.Code & bpfOperation {
	case always:
		return i.K, true
	case equal:
		t = number{b.a.value ^ with.value, b.a.known & with.known}.isNot(0).negatedIf(true)
	case anyBit:
		t = b.a.and(with).isNot(0)
	case greater:
		if decided {
			t = truthOf(b.a.value > with.value)
		}
	case notLess:
		if decided {
			t = truthOf(b.a.value >= with.value)
		}
	}
	if t == yes {
		return uint32(i.JumpTrue), true
	}
	return uint32(i.JumpFalse), t == no
}

// known is a number with all bits known.
func known(n uint32) number { return number{n, math.MaxUint32} }

// and is the bits that both have: a bit that is 0 in either is known.
func (n number) and(m number) number {
	return number{n.value & m.value, n.known&m.known | n.known&^n.value | m.known&^m.value}
}

// isNot compares the known bits.
func (n number) isNot(m uint32) truth {
	switch {
	case (n.value^m)&n.known != 0:
		return yes
	case n.known == math.MaxUint32:
		return no
	}
	return undecided
}

// processor returns the processor that handles the packet.
func (w *walk) processor() uint32 {
	w.grant("that processor %d handles the packet", w.packet.CPU)
	return w.packet.CPU
}
