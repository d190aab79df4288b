package iptables

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// BPF is "-m bpf": a program of the classic Berkeley packet filter that reads the packet
// from its IP header on, and matches where it returns anything but 0 (xt_bpf.c).
type BPF struct {
	Program []Instruction // 1 to 64
	// Pinned is the path of a program in the kernel, which rules do not show; empty: the
	// program is Program.
	Pinned string
}

// Instruction is struct sock_filter (linux/filter.h).
type Instruction struct {
	Code                uint16
	JumpTrue, JumpFalse uint8 // how many instructions a jump skips
	K                   uint32
}

// longestProgram is XT_BPF_MAX_NUM_INSTR.
const longestProgram = 64

// aProgram reads "2,48 0 0 9,6 0 0 1": the number of instructions, then each of them.
var aProgram = kind[[]Instruction]{"a program", `the number of instructions, then each as four numbers: "1,6 0 0 1"`, func(s string) (program []Instruction, ok bool) {
	count, rest, _ := strings.Cut(strings.TrimSpace(s), ",")
	n, ok := number[uint8](strings.TrimSpace(count))
	if !ok || n == 0 || n > longestProgram {
		return nil, false
	}
	for text := range strings.SplitSeq(strings.TrimRight(rest, ", "), ",") {
		i, ok := parseInstruction(strings.Fields(text))
		if !ok {
			return nil, false
		}
		program = append(program, i)
	}
	return program, len(program) == int(n)
}}

func parseInstruction(words []string) (i Instruction, ok bool) {
	if len(words) != 4 {
		return i, false
	}
	var numbers [4]uint64
	for n, size := range []int{16, 8, 8, 32} {
		var err error
		if numbers[n], err = strconv.ParseUint(words[n], 10, size); err != nil {
			return i, false
		}
	}
	return Instruction{uint16(numbers[0]), uint8(numbers[1]), uint8(numbers[2]), uint32(numbers[3])}, true
}

const pinnedOption = "--object-pinned"

var _ = addMatch(&module{
	name: "bpf", shapes: map[string]shape{"--bytecode": one, pinnedOption: one},
	phrases: map[string]phrase{"match": bpfPhrase},
	build: func(s *section) Match {
		o := s.oneOf("--bytecode", pinnedOption)
		if o.name.Text == pinnedOption {
			return BPF{Pinned: first(s, o, keptText(511))} // XT_BPF_PATH_MAX, with its NUL
		}
		return BPF{Program: first(s, o, aProgram)}
	},
})

func (BPF) module() string { return "bpf" }
func (m BPF) write(w *words) {
	if m.Pinned != "" {
		w.bare(pinnedOption, m.Pinned)
		return
	}
	parts := []string{strconv.Itoa(len(m.Program))}
	for _, i := range m.Program {
		parts = append(parts, fmt.Sprintf("%d %d %d %d", i.Code, i.JumpTrue, i.JumpFalse, i.K))
	}
	w.bare("--bytecode")
	w.tokens = append(w.tokens, Token{Text: strings.Join(parts, ","), Quoted: true})
}

func (BPF) reads() Facts { return FactBytes | FactKernel }

func (m BPF) test(c *Context) Truth {
	b := bpf{context: c, image: c.Packet.image()}
	return b.run(m.Program)
}

func (BPF) whyNot(*Context) string { return "the program returns 0" }

func (m BPF) unknown(*Context) string {
	if m.Pinned != "" {
		return Describe(m) + " is a program in the kernel, which rules do not show"
	}
	return Describe(m) + " depends on data that is not known: bytes of the packet, or the kernel's data about it"
}

// bpfPhrase reads "match bpf 48 0 0 9,6 0 0 1" and "match bpf pinned /path".
func bpfPhrase(w *wording, negated bool) bool {
	w.load("bpf")
	if negated || !w.word("bpf") {
		return false
	}
	if w.word("pinned") {
		return w.value(pinnedOption)
	}
	var program []string
	first, ok := w.next()
	column := first.Column
	for ok {
		second, _ := w.next()
		third, _ := w.next()
		last, there := w.next()
		k, code, more := strings.Cut(last.Text, ",")
		program = append(program, joined([]Token{first, second, third, {Text: k}}))
		if !more {
			w.emit(false, "--bytecode")
			w.args = append(w.args, Token{Text: strconv.Itoa(len(program)) + "," + strings.Join(program, ","), Quoted: true, Column: column})
			return there
		}
		first, ok = Token{Text: code}, there
	}
	return false
}

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
	context *Context
	image   image
	a, x    partial
	memory  [16]partial
}

// run is ___bpf_prog_run, for what bpf_convert_filter makes of the instruction set
// (net/core/filter.c).
func (b *bpf) run(program []Instruction) Truth {
	for at := 0; at >= 0 && at < len(program); at++ {
		i := &program[at]
		operand := known(i.K)
		if i.Code&bpfX != 0 {
			operand = b.x
		}
		done := Unknown
		ok := true
		switch i.Code & bpfClass {
		case bpfLD:
			b.a, done = b.load(i)
			ok = done == True
		case bpfLDX:
			b.x, done = b.load(i)
			ok = done == True
		case bpfST, bpfSTX:
			if ok = i.K < uint32(len(b.memory)); ok {
				b.memory[i.K] = [...]partial{b.a, b.x}[i.Code&bpfClass-bpfST]
			}
		case bpfALU:
			done = b.compute(i.Code&bpfOperation, operand)
			ok = done == True
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
	return Unknown
}

// load reads a number; false: the packet does not have the bytes, and the program returns 0.
func (b *bpf) load(i *Instruction) (n partial, t Truth) {
	at, size := uint64(i.K), 4>>(i.Code&bpfSize>>3) // BPF_W, BPF_H, BPF_B
	switch i.Code & bpfMode {
	case bpfIMM:
		return known(i.K), True
	case bpfLEN:
		b.context.suppose(FactLength)
		return known(uint32(len(b.image.bytes))), True
	case bpfMEM:
		if i.K >= uint32(len(b.memory)) {
			return n, Unknown
		}
		return b.memory[i.K], True
	case bpfMSH:
		n, t = b.bytes(at, 1)
		return partial{n.value & 0xf * 4, (n.known&0xf)*4 | ^uint32(0x3c)}, t
	case bpfABS:
		switch {
		case i.K == bpfMark:
			return known(b.context.Packet.Mark), True
		case i.K == bpfCPU:
			return known(b.context.processor()), True
		case i.K >= bpfNetwork && i.K < bpfAncillary:
			at -= bpfNetwork
		case i.K >= bpfAnyHeader:
			return n, Unknown
		}
		return b.bytes(at, size)
	case bpfIND:
		offset := b.x.value + i.K
		if b.x.known != math.MaxUint32 || offset >= bpfAnyHeader {
			return n, Unknown
		}
		return b.bytes(uint64(offset), size)
	}
	return n, Unknown
}

// bytes reads a number of the packet.
func (b *bpf) bytes(at uint64, size int) (partial, Truth) {
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
func (b *bpf) compute(operation uint16, by partial) Truth {
	a, decided := b.a, b.a.known&by.known == math.MaxUint32
	bits := by.value & 31 // as the kernel's interpreter shifts
	switch {
	case operation == bpfAnd:
		b.a = a.and(by)
	case operation == bpfOr:
		b.a = partial{a.value | by.value, a.known&by.known | a.known&a.value | by.known&by.value}
	case operation == bpfLeft && by.known == math.MaxUint32:
		b.a = partial{a.value << bits, a.known<<bits | (1<<bits - 1)}
	case operation == bpfRight && by.known == math.MaxUint32:
		b.a = partial{a.value >> bits, ^(^a.known >> bits)}
	case operation == bpfDiv || operation == bpfMod:
		switch {
		case !decided:
			return Unknown
		case by.value == 0:
			return False
		case operation == bpfDiv:
			b.a = known(a.value / by.value)
		default:
			b.a = known(a.value % by.value)
		}
	case !decided:
		b.a = partial{}
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
		return Unknown
	}
	return True
}

// jump returns how many instructions are skipped.
func (b *bpf) jump(i *Instruction, with partial) (skip uint32, ok bool) {
	const always, equal, greater, notLess, anyBit = 0x00, 0x10, 0x20, 0x30, 0x40
	t := Unknown
	decided := b.a.known&with.known == math.MaxUint32
	switch i.Code & bpfOperation {
	case always:
		return i.K, true
	case equal:
		t = partial{b.a.value ^ with.value, b.a.known & with.known}.isNot(0).NegatedIf(true)
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
	if t == True {
		return uint32(i.JumpTrue), true
	}
	return uint32(i.JumpFalse), t == False
}

// known is a number with all bits known.
func known(n uint32) partial { return partial{n, math.MaxUint32} }

// and is the bits that both have: a bit that is 0 in either is known.
func (n partial) and(m partial) partial {
	return partial{n.value & m.value, n.known&m.known | n.known&^n.value | m.known&^m.value}
}

// isNot compares the known bits.
func (n partial) isNot(m uint32) Truth {
	switch {
	case (n.value^m)&n.known != 0:
		return True
	case n.known == math.MaxUint32:
		return False
	}
	return Unknown
}
