package history

import (
	"strconv"
	"strings"
)

// idSet is a set of IDs of flows. An ID is the name of a daemon's run and a number that counts its flows, so that most take one
// bit.
type idSet struct {
	pages map[idPage]*[idsOfPage / 64]uint64
	order []idPage // of pages, the oldest first
	other map[string]bool
	// most bounds the number of pages, of which the oldest are forgotten; 0: any number.
	most int
}

const idsOfPage = 4096

type idPage struct {
	run    string
	number uint64
}

// parseID returns the page and the bit of an ID; ok is false if it has another form.
func parseID(id string) (page idPage, bit uint64, ok bool) {
	run, digits, found := strings.Cut(id, "-")
	n, err := strconv.ParseUint(digits, 10, 64)
	if !found || err != nil || digits[0] == '0' && digits != "0" {
		return idPage{}, 0, false
	}
	return idPage{run, n / idsOfPage}, n % idsOfPage, true
}

func (s *idSet) has(id string) bool {
	page, bit, ok := parseID(id)
	if !ok {
		return s.other[id]
	}
	p := s.pages[page]
	return p != nil && p[bit/64]&(1<<(bit%64)) != 0
}

// add adds an ID, and reports whether it is new.
func (s *idSet) add(id string) bool {
	if s.pages == nil {
		s.pages, s.other = make(map[idPage]*[idsOfPage / 64]uint64), make(map[string]bool)
	}
	page, bit, ok := parseID(id)
	if !ok {
		if s.other[id] {
			return false
		}
		if s.most > 0 && len(s.other) >= s.most { // of no daemon of ours
			clear(s.other)
		}
		s.other[strings.Clone(id)] = true
		return true
	}
	p := s.pages[page]
	if p == nil {
		if s.most > 0 && len(s.order) >= s.most {
			delete(s.pages, s.order[0])
			s.order = s.order[1:]
		}
		p = new([idsOfPage / 64]uint64)
		page.run = strings.Clone(page.run)
		s.pages[page], s.order = p, append(s.order, page)
	}
	word, mask := &p[bit/64], uint64(1)<<(bit%64)
	if *word&mask != 0 {
		return false
	}
	*word |= mask
	return true
}

// bits is a set of small numbers.
type bits []uint64

func newBits(n int64) bits      { return make(bits, (n+63)/64) }
func (b bits) set(i int64)      { b[i/64] |= 1 << (i % 64) }
func (b bits) has(i int64) bool { return b[i/64]&(1<<(i%64)) != 0 }
