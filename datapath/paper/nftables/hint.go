package nftables

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// hint is how nft prints the constants of a type: what JSON does not tell, and what makes a match without operator one of flags.
type hint uint8

const (
	plain   hint = iota
	flagged      // a bitmask with names
	inQuotes
	nameOrNumber // a number, or a name in quotation marks
	asMark       // 0x%08x
	asTime       // seconds
	asHex
)

// hintOf is that of the constants that go with an expression.
func hintOf(e Expr) hint {
	switch e := e.(type) {
	case Payload:
		if e.Protocol == "tcp" && e.Field == "flags" {
			return flagged
		}
	case Meta:
		return metaHints[e.Key]
	case CT:
		return ctHints[e.Key]
	case Fib:
		if e.Result != "type" {
			return inQuotes
		}
	case Socket:
		return map[string]hint{"mark": asMark, "cgroupv2": inQuotes}[e.Key]
	case RT:
		if e.Key == "classid" {
			return nameOrNumber
		}
	case OSF:
		return inQuotes
	case RawPayload:
		return asHex
	case Binary:
		return hintOf(e.Left)
	case Map:
		return hintOf(e.Key)
	}
	return plain
}

var (
	metaHints = hintTable(map[hint]string{
		asMark:       "mark",
		inQuotes:     "iif iifname oif oifname ibrname obrname sdif sdifname iifkind oifkind time hour secmark",
		nameOrNumber: "iifgroup oifgroup day skuid skgid rtclassid",
	})
	ctHints = hintTable(map[hint]string{
		flagged: "state status event", asMark: "mark", inQuotes: "label helper timeout expectation secmark", asTime: "expiration",
	})
	typeHints = hintTable(map[hint]string{
		asMark: "mark", flagged: "ct_state ct_status ct_event tcp_flag", nameOrNumber: "devgroup day uid gid realm",
		inQuotes: "ifname iface_index time hour cgroupsv2 ct_label counter quota limit helper timeout expectation synproxy secmark",
	})
)

// hintTable has the hint of each word.
func hintTable(words map[hint]string) map[string]hint {
	table := make(map[string]hint)
	for h, list := range words {
		for w := range strings.FieldsSeq(list) {
			table[w] = h
		}
	}
	return table
}

// hintsOf are those of a key, one for each part of a concatenation.
func hintsOf(e Expr) []hint {
	if c, ok := e.(Concat); ok {
		var all []hint
		for _, part := range c {
			all = append(all, hintOf(part))
		}
		return all
	}
	return []hint{hintOf(e)}
}

// hints are those of the type of a set.
func (t Type) hints() []hint {
	if t.Of != nil {
		return hintsOf(t.Of)
	}
	var all []hint
	for _, name := range t.Names {
		all = append(all, typeHints[strings.TrimPrefix(name, "ct ")])
	}
	return all
}

// isFlag reports whether a match without operator tests flags.
func isFlag(left Expr) bool {
	if ct, ok := left.(CT); ok && ct.Key == "label" {
		return true
	}
	_, binary := left.(Binary)
	return !binary && hintOf(left) == flagged
}

// number is a constant that JSON has as a number, written as in a listing.
func (h hint) number(n uint64) Literal {
	switch h {
	case asMark:
		return Literal{Text: fmt.Sprintf("0x%08x", n), Kind: Number}
	case asHex:
		return Literal{Text: fmt.Sprintf("0x%x", n), Kind: Number}
	case asTime:
		return Literal{Text: formatDuration(time.Duration(min(n, 1<<33)) * time.Second)}
	}
	return Literal{Text: strconv.FormatUint(n, 10), Kind: Number}
}
