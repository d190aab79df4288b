package nftrules

import (
	"fmt"
	"math"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// stateful is a condition that remembers packets; it is an [iptables.Native]. Its memory is that of the statement, of the
// object, or of an element of a set.
type stateful struct {
	condition
	words  string
	facts  iptables.Facts
	memory any
	test   func(c *iptables.Context, memory any) bool
	why    string
}

func (s *stateful) Text() string                        { return s.words }
func (s *stateful) Reads() iptables.Facts               { return s.facts | iptables.FactMemory }
func (s *stateful) WhyNot(*iptables.Context) string     { return s.why }
func (s *stateful) WhyUnknown(*iptables.Context) string { return s.why }

func (s *stateful) Evaluate(c *iptables.Context) rules.Truth {
	if s.test(c, s.memory) {
		return rules.True
	}
	return rules.False
}

// newStateful is the condition that a statement or an object is; nil: it is none.
func newStateful(of any, words string, memory any) *stateful {
	s := &stateful{words: words, memory: memory}
	switch of := of.(type) {
	case nftables.Limit:
		s.test, s.why = limitOf(of), "the limit is reached"
		if of.Over {
			s.why = "the limit is not reached"
		}
		if of.Unit != "packets" {
			s.facts = iptables.FactLength
		}
	case nftables.Quota:
		s.test, s.why, s.facts = quotaOf(of), "the quota is used up", iptables.FactLength
		if of.Over {
			s.why = "the quota is not used up"
		}
	case nftables.ConnLimit:
		s.test, s.why = connLimitOf(of), fmt.Sprintf("there are more than %d connections", of.Count)
		if of.Over {
			s.why = fmt.Sprintf("there are no more than %d connections", of.Count)
		}
	default:
		return nil
	}
	return s
}

var (
	periods   = map[string]float64{"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
	byteUnits = map[string]uint64{"": 1, "bytes": 1, "kbytes": 1 << 10, "mbytes": 1 << 20}
)

// bucket is a token bucket; its credit is in seconds.
type bucket struct{ credit, last float64 }

// limitOf is nft_limit_eval (nft_limit.c). The bucket is full at first.
func limitOf(l nftables.Limit) func(*iptables.Context, any) bool {
	period := periods[l.Per]
	rate := float64(l.Rate) * float64(byteUnits[unitOf(l.Unit)])
	burst := float64(l.Burst) * float64(byteUnits[unitOf(l.BurstUnit)])
	packets := l.Unit == "packets"
	full := period / rate * burst
	switch {
	case packets && l.Implied:
		full = period / rate * 5
	case !packets:
		full = period * (rate + burst) / rate
	}
	return func(c *iptables.Context, memory any) bool {
		cost := period / rate
		if !packets {
			cost *= float64(c.Packet.Length)
		}
		now := c.Host.Uptime()
		b, known := c.Recall(memory).(bucket)
		if !known {
			b = bucket{full, now}
		}
		// The kernel counts in nanoseconds.
		credit := math.Min(full, b.credit+now-b.last)
		enough := credit-cost > -1e-9
		if enough {
			credit -= cost
		}
		c.Keep(memory, bucket{credit, now})
		return enough != l.Over
	}
}

func unitOf(unit string) string {
	if unit == "packets" {
		return ""
	}
	return unit
}

// quotaOf is nft_quota_do_eval (nft_quota.c).
func quotaOf(q nftables.Quota) func(*iptables.Context, any) bool {
	size, used := q.Size*byteUnits[q.Unit], q.Used*byteUnits[q.UsedUnit]
	return func(c *iptables.Context, memory any) bool {
		consumed, known := c.Recall(memory).(uint64)
		if !known {
			consumed = used
		}
		consumed += uint64(c.Packet.Length)
		c.Keep(memory, consumed)
		return (consumed > size) == q.Over
	}
}

// connLimitOf is nft_connlimit_do_eval (nft_connlimit.c): of the connections that reached the statement.
func connLimitOf(l nftables.ConnLimit) func(*iptables.Context, any) bool {
	return func(c *iptables.Context, memory any) bool {
		return (uint64(c.CountConnections(memory, "")) > l.Count) == l.Over
	}
}

// FullSet begins the text of a step at which a packet cannot be added to a set, because it has no room.
const FullSet = "set "

// addedTo is where the number of elements is kept that packets have added to a set. Those that were deleted count until the
// kernel collects them.
type addedTo struct{ set *nftables.Set }

// setStatement adds, updates or deletes an element (nft_dynset.c).
func (c *compiler) setStatement(b *builder, s nftables.Statement, op, set string, e nftables.Element) error {
	words := nftables.Text(s)
	t, err := c.lookup(b, nftables.Map{Key: e.Key, Data: nftables.SetRef(set)})
	if err != nil {
		return err
	}
	inner := e.Statements
	if inner == nil {
		inner = t.declared.Statements
	}
	says := func(ctx *iptables.Context) string {
		verb := map[string]string{"add": "adds %s to %s", "update": "keeps %s in %s", "delete": "deletes %s from %s"}[op]
		return fmt.Sprintf(verb, t.described(ctx), t.name())
	}
	why := func(ctx *iptables.Context) string {
		if _, truth := t.bytes(ctx); truth != rules.True {
			return t.unread(ctx)
		}
		if t.declared.Size > 0 && len(t.elements) >= int(t.declared.Size) {
			return fmt.Sprintf("%s%s has %d of %d elements", FullSet, t.declared.Name, len(t.elements), t.declared.Size)
		}
		return fmt.Sprintf("the statement of the element of %s does not match", t.name())
	}
	b.add(&effect{words: words, says: says, facts: iptables.FactShared | factsOf(t.fields), why: why, do: func(ctx *iptables.Context) rules.Truth {
		key, truth := t.bytes(ctx)
		if truth != rules.True {
			return truth
		}
		place := changed{t.declared, key}
		if op == "delete" {
			ctx.Keep(place, change{deleted: true})
			return rules.True
		}
		if _, there := t.find(ctx); there == rules.False {
			added, _ := ctx.Recall(addedTo{t.declared}).(int)
			if t.declared.Size > 0 && len(t.elements)+added >= int(t.declared.Size) {
				return rules.False
			}
			ctx.Keep(addedTo{t.declared}, added+1)
			own := nftables.Element{Key: e.Key, Value: e.Value, Statements: inner}
			ctx.Keep(place, change{element: []nftables.Element{own}})
		}
		found, truth := t.find(ctx)
		if truth != rules.True {
			return truth
		}
		return t.runs(ctx, found)
	}})
	return nil
}
