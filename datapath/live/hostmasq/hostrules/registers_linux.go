package hostrules

import (
	"github.com/nfqproxy/nfqproxy/datapath/rules"
	"golang.org/x/sys/unix"
)

// registers are the sixteen of 32 bits; a value is stored in its first one. Verdicts have a
// register of their own.
type registers [16]rules.Value

const verdictRegister = unix.NFT_REG_VERDICT

// index is the first 32 bits of a register: the four of 128 bits (NFT_REG_1 to 4) are the
// same memory.
func index(register uint32) (int, bool) {
	switch {
	case unix.NFT_REG_1 <= register && register <= unix.NFT_REG_4:
		return int(register-unix.NFT_REG_1) * 4, true
	case unix.NFT_REG32_00 <= register && register <= unix.NFT_REG32_15:
		return int(register - unix.NFT_REG32_00), true
	}
	return 0, false
}

// words is how many registers this many bytes take.
func words(size int) int { return (size + 3) / 4 }

// put stores a value and removes those that it overwrites.
func (r *registers) put(register uint32, v rules.Value) {
	at, ok := index(register)
	if !ok {
		return
	}
	for i := range r {
		if r[i] != nil && i+words(r[i].Size()) > at && i < at+words(max(v.Size(), 1)) {
			r[i] = nil
		}
	}
	r[at] = v
}

// get returns the value that begins at a register, or an unknown one of that size.
func (r *registers) get(register uint32, size int) rules.Value {
	if at, ok := index(register); ok && r[at] != nil {
		return r[at]
	}
	return rules.Opaque{ByteSize: size, Words: "?"}
}

// key returns the adjacent values that make up this many bytes from a register on.
func (r *registers) key(register uint32, size int) rules.Key {
	at, ok := index(register)
	var parts rules.Key
	for end := at + words(size); ok && at < end; {
		if at >= len(r) || r[at] == nil || at+words(r[at].Size()) > end {
			ok = false
			break
		}
		parts = append(parts, r[at])
		at += words(max(r[at].Size(), 1))
	}
	if !ok || len(parts) == 0 {
		return rules.Key{rules.Opaque{ByteSize: size, Words: "?"}}
	}
	return parts
}

// changed forgets what was loaded: it may have been changed since.
func (r *registers) changed() {
	for i, v := range r {
		if _, fixed := v.(rules.Const); !fixed {
			r[i] = nil
		}
	}
}
