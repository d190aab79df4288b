package nftables

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// node is a value of a JSON text.
type node struct {
	kind    byte   // '{', '[', '"', '0' for numbers, and 't', 'f', 'n' as the words begin
	text    string // of a string, number or word
	items   []node // of an array, and the values of an object
	keys    []string
	at, end int // offsets
}

// get is a member of an object; of kind 0 if there is none.
func (n node) get(key string) node {
	for i, k := range n.keys {
		if k == key {
			return n.items[i]
		}
	}
	return node{}
}

func (n node) has(key string) bool { return n.get(key).kind != 0 }

// str is a string, or the text of a number.
func (n node) str(key string) string { return n.get(key).text }

func (n node) num(key string) uint64 {
	u, _ := strconv.ParseUint(n.get(key).text, 10, 64)
	return u
}

func (n node) isTrue(key string) bool { return n.get(key).kind == 't' }

// list are the items of an array; of anything else, itself.
func (n node) list() []node {
	switch n.kind {
	case 0, 'n':
		return nil
	case '[':
		return n.items
	}
	return []node{n}
}

// strs are the strings of an array, or a single one.
func (n node) strs(key string) (all []string) {
	for _, item := range n.get(key).list() {
		all = append(all, item.text)
	}
	return all
}

// single is the only member of an object: what JSON has for most statements and expressions.
func (n node) single() (key string, value node, ok bool) {
	if n.kind != '{' || len(n.items) != 1 {
		return "", node{}, false
	}
	return n.keys[0], n.items[0], true
}

// jsonReader reads JSON. After the first error, which it keeps, it is at the end.
type jsonReader struct {
	*builder
	file string
	src  string
	pos  int
	err  *Error
	// family is that of the table whose rule is read.
	family Family
	// place knows the line of an offset, so that the next one, which is mostly behind it, is found fast.
	place struct{ offset, line, start int }
	depth int
	// keys and nodes are those of the values that are being read, so that each gets slices of just its size.
	keys  []string
	nodes []node
}

// position is the place of an offset.
func (r *jsonReader) position(offset int) Position {
	if offset < r.place.offset {
		r.place.offset, r.place.line, r.place.start = 0, 0, 0
	}
	for {
		i := strings.IndexByte(r.src[r.place.offset:offset], '\n')
		if i < 0 {
			break
		}
		r.place.offset += i + 1
		r.place.start = r.place.offset
		r.place.line++
	}
	r.place.offset = offset
	return Position{File: r.file, Line: r.place.line + 1, Column: offset - r.place.start + 1}
}

func (r *jsonReader) fail(at int, want string) {
	if r.err == nil {
		found := "the end of the file"
		if at < len(r.src) {
			_, size := utf8.DecodeRuneInString(r.src[at:])
			found = "“" + r.src[at:at+size] + "”"
		}
		r.err = &Error{Position: r.position(min(at, len(r.src))), Found: found, Want: want}
	}
	r.pos = len(r.src)
}

// next skips spaces and is the byte there; 0 at the end.
func (r *jsonReader) next() byte {
	for r.pos < len(r.src) {
		switch c := r.src[r.pos]; c {
		case ' ', '\t', '\r', '\n':
			r.pos++
		default:
			return c
		}
	}
	return 0
}

func (r *jsonReader) take(c byte) bool {
	if r.next() == c {
		r.pos++
		return true
	}
	return false
}

func (r *jsonReader) expect(c byte) {
	if !r.take(c) {
		r.fail(r.pos, "“"+string(rune(c))+"”")
	}
}

// value reads a value.
func (r *jsonReader) value() (n node) {
	c := r.next()
	n.kind, n.at = c, r.pos
	if r.depth++; r.depth > 4*maxDepth {
		r.fail(r.pos, "fewer values in each other")
	}
	switch c {
	case '{':
		keys, begin := len(r.keys), len(r.nodes)
		r.members(func(key string) {
			r.keys = append(r.keys, key)
			v := r.value()
			r.nodes = append(r.nodes, v)
		})
		n.keys, r.keys = slices.Clone(r.keys[keys:]), r.keys[:keys]
		n.items, r.nodes = slices.Clone(r.nodes[begin:]), r.nodes[:begin]
	case '[':
		begin := len(r.nodes)
		r.items(func() {
			v := r.value()
			r.nodes = append(r.nodes, v)
		})
		n.items, r.nodes = slices.Clone(r.nodes[begin:]), r.nodes[:begin]
	case '"':
		n.text = r.str()
	case 't', 'f', 'n':
		for _, w := range []string{"true", "false", "null"} {
			if strings.HasPrefix(r.src[r.pos:], w) {
				n.text = w
			}
		}
		if r.pos += len(n.text); n.text == "" {
			r.fail(r.pos, "a value")
		}
	default:
		end := r.pos
		for end < len(r.src) && strings.IndexByte("0123456789+-.eE", r.src[end]) >= 0 {
			end++
		}
		if n.kind, n.text = '0', r.src[r.pos:end]; n.text == "" {
			r.fail(r.pos, "a value")
		} else {
			r.pos = end
		}
	}
	r.depth--
	n.end = r.pos
	return n
}

// members reads an object: one reads each value.
func (r *jsonReader) members(one func(key string)) {
	r.expect('{')
	for r.err == nil && !r.take('}') {
		if r.next() != '"' {
			r.fail(r.pos, "the name of a member")
			return
		}
		key := r.str()
		r.expect(':')
		if r.err == nil {
			one(key)
		}
		if !r.take(',') && r.next() != '}' {
			r.fail(r.pos, "“,” or “}”")
		}
	}
}

// items reads an array: one reads each item.
func (r *jsonReader) items(one func()) {
	r.expect('[')
	for r.err == nil && !r.take(']') {
		one()
		if !r.take(',') && r.next() != ']' {
			r.fail(r.pos, "“,” or “]”")
		}
	}
}

// str reads a string. Without escapes it is a part of the file.
func (r *jsonReader) str() string {
	from := r.pos + 1
	for i := from; i < len(r.src); i++ {
		switch r.src[i] {
		case '"':
			r.pos = i + 1
			return r.src[from:i]
		case '\\':
			return r.escaped(from)
		}
	}
	r.fail(len(r.src), "“\"”")
	return ""
}

func (r *jsonReader) escaped(from int) string {
	i := from
	for i < len(r.src) && r.src[i] != '"' {
		if r.src[i] == '\\' {
			i++
		}
		i++
	}
	if i >= len(r.src) {
		r.fail(len(r.src), "“\"”")
		return ""
	}
	r.pos = i + 1
	// Go's strings have the escapes of JSON, but for the slash; a pair of surrogates is none that nft prints.
	s, err := strconv.Unquote(`"` + strings.ReplaceAll(strings.ReplaceAll(r.src[from:i], `\/`, "/"), "\n", `\n`) + `"`)
	if err != nil {
		return r.src[from:i]
	}
	return s
}
