package iptables

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
)

// onlyAssumes is a Host that knows nothing.
type onlyAssumes struct{ Host }

func (onlyAssumes) Assume(string) {}

func packet(protocol uint8) Packet {
	return Packet{
		Protocol: protocol, InInterface: "veth1", TTL: 64, Length: 60,
		Source: netip.MustParseAddrPort("10.244.1.2:40000"), Destination: netip.MustParseAddrPort("172.20.0.2:53"),
	}
}

// TestBPF: programs that read unknown bytes have a result if it does not depend on them.
func TestBPF(t *testing.T) {
	for code, want := range map[string]Truth{
		"4,48 0 0 9,21 0 1 17,6 0 0 1,6 0 0 0":            True, // the protocol
		"4,40 0 0 22,21 0 1 53,6 0 0 1,6 0 0 0":           True, // the port
		"4,48 0 0 30,21 0 1 1,6 0 0 1,6 0 0 0":            Unknown,
		"2,48 0 0 30,22 0 0 0":                            Unknown,
		"3,48 0 0 30,68 0 0 1,22 0 0 0":                   True, // a byte of the payload, and one bit that is set
		"3,48 0 0 30,84 0 0 0,22 0 0 0":                   False,
		"3,48 0 0 30,37 0 0 0,6 0 0 1":                    Unknown, // to the same place, which is not looked into
		"5,48 0 0 30,84 0 0 15,69 0 1 16,6 0 0 1,6 0 0 0": False,
		"1,0 0 0 1":                                               Unknown, // without an end
		"2,5 0 0 4294967295,6 0 0 1":                              Unknown, // a jump out of it
		"2,32 0 0 4294963200,6 0 0 1":                             Unknown, // SKF_AD_PROTOCOL
		"2,32 0 0 4292870144,6 0 0 1":                             Unknown, // SKF_LL_OFF
		"3,0 0 0 7,2 0 0 99,6 0 0 1":                              Unknown, // no such memory
		"3,0 0 0 7,52 0 0 0,6 0 0 1":                              False,   // a division by zero
		"4,0 0 0 7,148 0 0 4,21 0 1 3,6 0 0 1":                    True,
		"6,1 0 0 3,0 0 0 33,108 0 0 0,21 0 1 264,6 0 0 1,6 0 0 0": True, // 33 << 3
	} {
		d, err := Parse(strings.NewReader("*filter\n-A INPUT -m bpf --bytecode \""+code+"\"\nCOMMIT\n"), Options{})
		if err != nil {
			t.Fatal(err)
		}
		p := packet(protoUDP)
		m := d.Tables[0].Rules[0].Matches[0].(BPF)
		b := bpf{context: &Context{Packet: p, Host: onlyAssumes{}}, image: p.image()}
		if got := b.run(m.Program); got != want {
			t.Errorf("%s: %d, want %d", code, got, want)
		}
	}
}

// TestAnyBPF: no program is too odd.
func TestAnyBPF(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	p := packet(protoTCP)
	for range 200000 {
		program := make([]Instruction, 1+r.IntN(12))
		for i := range program {
			program[i] = Instruction{Code: uint16(r.IntN(1 << 9)), JumpTrue: uint8(r.IntN(8)), JumpFalse: uint8(r.Uint32()), K: r.Uint32() >> r.IntN(32)}
			if r.IntN(8) == 0 {
				program[i].K = -uint32(r.IntN(1 << 22))
			}
		}
		b := bpf{context: &Context{Packet: p, Host: onlyAssumes{}}, image: p.image()}
		b.run(program)
	}
}
