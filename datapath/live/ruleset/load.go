package ruleset

import (
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

// fillEmpty adds the elements of a service table to empty sets, in the open transaction and further ones. It
// needs little memory besides these.
func (r *Ruleset) fillEmpty(t *decision.Table) error {
	l := &loader{Ruleset: r, lists: make(map[*set]*nft.Transaction)}
	hairpins := r.empty().changes(t, additions(l.add))
	for s := range l.lists {
		l.flush(s, 0)
	}
	if l.err == nil {
		l.err = r.run()
	}
	r.followed, r.hairpins = t, hairpins
	return l.err
}

// loader adds elements to empty sets.
type loader struct {
	*Ruleset
	// lists have the elements that are not in the open transaction yet: one list for each set, so that
	// there are few messages.
	lists map[*set]*nft.Transaction
	err   error
}

func (l *loader) add(s *set, key, data string) {
	if s.isVerdicts() {
		l.addBalance(s.table, data)
	}
	list := l.lists[s]
	if list == nil {
		list = new(nft.Transaction)
		l.lists[s] = list
	}
	list.AddElement(s.table.nfproto, unix.NFT_MSG_NEWSETELEM, TableName, s.name, nft.Element{Key: key, Data: data, Verdict: s.isVerdicts()})
	l.flush(s, l.conn.most/4)
}

// flush adds a list larger than size to the open transaction.
func (l *loader) flush(s *set, size int) {
	list := l.lists[s]
	if list.Size() <= size || l.err != nil {
		return
	}
	l.open.Append(list)
	list.Reset()
	l.err = l.changed(s)
}
