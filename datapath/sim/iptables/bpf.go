package iptables

import (
	"fmt"
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

var bpfModule = &module{
	name: "bpf", shapes: map[string]shape{"--bytecode": one, pinnedOption: one},
	kernel: []revision[Match]{
		{0, 516, func(r raw) (Match, bool) { return decodeProgram(r, int(r.u16(0)), 4) }},
		{1, 520, decodeBPF1},
	},
	build: func(s *section) Match {
		o := s.oneOf("--bytecode", pinnedOption)
		switch {
		case len(o.values) == 0:
			return BPF{}
		case o.name.Text == pinnedOption:
			return BPF{Pinned: value(s, o.values[0], shortText(511))} // XT_BPF_PATH_MAX, with its NUL
		}
		return BPF{Program: value(s, o.values[0], aProgram)}
	},
}

// decodeBPF1 reads struct xt_bpf_info_v1.
func decodeBPF1(r raw) (Match, bool) {
	const bytecode, pinned = 0, 1 // enum xt_bpf_modes
	switch r.u16(0) {
	case bytecode:
		return decodeProgram(r, int(r.u16(2)), 8)
	case pinned:
		path := r.text(8, 512)
		return BPF{Pinned: path}, path != ""
	}
	return nil, false
}

// decodeProgram reads so many of struct sock_filter.
func decodeProgram(r raw, count, at int) (Match, bool) {
	const size = 8
	if count == 0 || count > longestProgram {
		return nil, false
	}
	var m BPF
	for i := range count {
		o := at + size*i
		m.Program = append(m.Program, Instruction{Code: r.u16(o), JumpTrue: r.u8(o + 2), JumpFalse: r.u8(o + 3), K: r.u32(o + 4)})
	}
	return m, true
}

// Module is "bpf".
func (BPF) Module() string { return "bpf" }
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
