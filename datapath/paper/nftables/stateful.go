package nftables

import (
	"strings"
	"time"
)

// stateful reads the statements that elements of sets may have too; nil: here is none.
func (p *parser) stateful() Statement {
	if !p.is(word) {
		return nil
	}
	switch p.tok.text {
	case "counter", "quota", "limit":
		kind := p.name("")
		switch {
		case p.takeWord("name"):
			return ObjectRef{Kind: kind, Name: p.keyed(any)}
		case kind == "counter":
			return p.counterNumbers(Counter{})
		case kind == "quota":
			return p.quota()
		}
		p.expectWord("rate")
		return p.limit()
	case "ct":
		if next := p.peek(); next.kind != word || next.text != "count" {
			return nil
		}
		p.advance()
		p.advance()
		return ConnLimit{Over: p.over(), Count: p.number()}
	case "last":
		p.advance()
		l := Last{}
		if l.Given = p.takeWord("used"); l.Given {
			if l.Never = p.takeWord("never"); !l.Never {
				l.Used = p.duration()
			}
		}
		return l
	}
	return nil
}

func (p *parser) counterNumbers(c Counter) Counter {
	for {
		switch {
		case p.takeWord("packets"):
			c.Packets = p.number()
		case p.takeWord("bytes"):
			c.Bytes = p.number()
		default:
			return c
		}
		c.Given = true
	}
}

func (p *parser) over() bool {
	if p.takeWord("over") {
		return true
	}
	p.takeWord("until")
	return false
}

func (p *parser) quota() Quota {
	q := Quota{Over: p.over(), Size: p.number(), Unit: p.name("bytes, kbytes or mbytes")}
	if p.takeWord("used") {
		q.Used, q.UsedUnit = p.number(), p.name("bytes, kbytes or mbytes")
	}
	return q
}

// limit reads a limit from behind "rate".
func (p *parser) limit() Limit {
	l := Limit{Over: p.over(), Rate: p.number(), Unit: "packets"}
	if p.is(word) {
		l.Unit, l.Per, _ = strings.Cut(p.name(""), "/") // "mbytes/second" is one word
	}
	if l.Per == "" {
		p.expect('/')
		l.Per = p.oneOf("second minute hour day week")
	}
	if p.takeWord("burst") {
		l.Burst = p.number()
		l.BurstUnit = p.name("packets or bytes")
	} else if l.Unit == "packets" {
		l.Burst, l.BurstUnit, l.Implied = defaultBurst, "packets", true
	}
	return l
}

// defaultBurst is the burst of a limit of packets that gives none (nftables, src/parser_bison.y, limit_burst_pkts).
const defaultBurst = 5

func (c Counter) print(p *printer) {
	p.put("counter")
	if c.Given && !p.Stateless {
		p.put(" packets ", c.Packets, " bytes ", c.Bytes)
	}
}

func (o ObjectRef) print(p *printer) {
	switch o.Kind {
	case "ct helper", "ct timeout", "ct expectation":
		p.put(o.Kind, " set ")
	case "secmark":
		p.put("meta secmark set ")
	default:
		p.put(o.Kind, " name ")
	}
	if l, ok := o.Name.(Literal); ok {
		p.put(quote(l.Text))
		return
	}
	o.Name.print(p)
}

func (q Quota) print(p *printer) {
	p.put("quota ")
	q.printQuota(p)
}

func (q Quota) printQuota(p *printer) {
	if q.Over {
		p.put("over ")
	}
	p.put(q.Size, " ", q.Unit)
	if q.UsedUnit != "" && !p.Stateless {
		p.put(" used ", q.Used, " ", q.UsedUnit)
	}
}

func (l Limit) print(p *printer) {
	p.put("limit rate ")
	l.printLimit(p)
}

func (l Limit) printLimit(p *printer) {
	if l.Over {
		p.put("over ")
	}
	p.put(l.Rate)
	if l.Unit != "packets" {
		p.put(" ", l.Unit)
	}
	p.put("/", l.Per)
	if l.BurstUnit != "" && !l.Implied && !(p.Canonical && l.Burst == defaultBurst && l.BurstUnit == "packets") {
		p.put(" burst ", l.Burst, " ", l.BurstUnit)
	}
}

func (c ConnLimit) print(p *printer) {
	p.put("ct count ")
	if c.Over {
		p.put("over ")
	}
	p.put(c.Count)
}

func (l Last) print(p *printer) {
	p.put("last")
	switch {
	case !l.Given || p.Stateless:
	case l.Never:
		p.put(" used never")
	default:
		p.put(" used ", p.duration(max(l.Used, time.Millisecond)))
	}
}
