package nftables

func log(p *parser) Statement {
	p.advance()
	l := Log{}
	for p.err == nil {
		switch {
		case p.takeWord("prefix"):
			l.Prefix = Literal{Text: p.name("a prefix"), Kind: Quoted}
		case p.takeWord("group"):
			l.Group = new(p.number())
		case p.takeWord("snaplen"):
			l.Snaplen = p.number()
		case p.takeWord("queue-threshold"):
			l.QueueThreshold = p.number()
		case p.takeWord("level"):
			l.Level = p.name("a level")
		case p.takeWord("flags"):
			l.Flags = append(l.Flags, p.logFlags()...)
		default:
			return l
		}
	}
	return l
}

func (p *parser) logFlags() (all []string) {
	switch of := p.oneOf("tcp ip skuid ether all"); of {
	case "tcp":
		for {
			flag := p.oneOf("seq sequence options")
			if flag == "seq" {
				flag = "sequence"
			}
			all = append(all, "tcp "+flag)
			if !p.take(',') {
				return all
			}
		}
	case "ip":
		p.expectWord("options")
		return []string{"ip options"}
	default:
		return []string{of}
	}
}

func reject(p *parser) Statement {
	p.advance()
	r := Reject{}
	if !p.takeWord("with") {
		return r
	}
	r.With = p.oneOf("icmp icmpv6 icmpx tcp")
	if r.With == "tcp" {
		p.expectWord("reset")
		r.With = "tcp reset"
		return r
	}
	r.Typed = p.takeWord("type")
	r.Code = p.primary(values)
	return r
}

func queue(p *parser) Statement {
	p.advance()
	q := Queue{}
	for p.err == nil {
		switch {
		case p.takeWord("flags"), p.isWord("bypass"), p.isWord("fanout"):
			q.Flags = append(q.Flags, p.wordList()...)
		case p.takeWord("num"):
			q.Number = p.keyed(any)
		case p.takeWord("to"):
			q.To = true
			q.Number = p.keyed(any)
		default:
			return q
		}
	}
	return q
}

func dup(p *parser) Statement {
	p.advance()
	p.expectWord("to")
	d := Dup{Address: p.keyed(any)}
	if p.takeWord("device") {
		d.Device = p.keyed(any)
	}
	return d
}

func fwd(p *parser) Statement {
	p.advance()
	f := Fwd{}
	if p.isWord("ip") || p.isWord("ip6") {
		f.Family = Family(p.name(""))
	}
	p.expectWord("to")
	f.Device = p.keyed(any)
	if p.takeWord("device") {
		f.Address, f.Device = f.Device, p.keyed(any)
	}
	return f
}

func synproxy(p *parser) Statement {
	p.advance()
	if p.takeWord("name") {
		return ObjectRef{Kind: "synproxy", Name: p.keyed(any)}
	}
	s := Synproxy{}
	p.synproxyOptions(&s)
	return s
}

func (p *parser) synproxyOptions(s *Synproxy) {
	for {
		switch {
		case p.takeWord("mss"):
			s.MSS = new(p.number())
		case p.takeWord("wscale"):
			s.WScale = new(p.number())
		case p.takeWord("timestamp"):
			s.Timestamp = true
		case p.takeWord("sack-perm"), p.takeWord("sack-permitted"):
			s.SACKPerm = true
		default:
			return
		}
	}
}

func xt(p *parser) Statement {
	p.advance()
	x := XT{Type: p.oneOf("match target watcher"), Bare: p.is(word)}
	x.Name = p.name("the name of an extension")
	return x
}

func (l Log) print(p *printer) {
	p.put("log")
	p.given(" prefix ", l.Prefix)
	if l.Group != nil {
		p.put(" group ", *l.Group)
	}
	p.nonzero(" snaplen ", l.Snaplen)
	p.nonzero(" queue-threshold ", l.QueueThreshold)
	if l.Level != "" {
		p.put(" level ", l.Level)
	}
	for i, f := range l.Flags {
		if i > 0 && f == "tcp options" && l.Flags[i-1] == "tcp sequence" {
			p.put(",options")
			continue
		}
		p.put(" flags ", f)
	}
}

func (r Reject) print(p *printer) {
	p.put("reject")
	if r.With != "" {
		p.put(" with ", r.With)
	}
	if r.Typed && !p.Canonical {
		p.put(" type")
	}
	p.given(" ", r.Code)
}

func (Notrack) print(p *printer) { p.put("notrack") }

func (q Queue) print(p *printer) {
	p.put("queue")
	if q.Flags != nil {
		p.put(" flags ")
		p.words(q.Flags)
	}
	switch q.Number.(type) {
	case nil:
		return
	case Numgen, JHash, SymHash, Map:
		p.put(" to ")
	default:
		if q.To && !p.Canonical {
			p.put(" to ")
		} else {
			p.put(" num ")
		}
	}
	q.Number.print(p)
}

func (d Dup) print(p *printer) {
	p.put("dup to ")
	p.given("", d.Address)
	p.given(" device ", d.Device)
}

func (f Fwd) print(p *printer) {
	p.put("fwd ")
	if f.Family != "" {
		p.put(string(f.Family), " ")
	}
	p.put("to ")
	if f.Address != nil {
		p.put(f.Address, " device ")
	}
	p.given("", f.Device)
}

func (s Synproxy) print(p *printer) {
	p.put("synproxy")
	if s.MSS != nil {
		p.put(" mss ", *s.MSS)
	}
	if s.WScale != nil {
		p.put(" wscale ", *s.WScale)
	}
	if s.Timestamp {
		p.put(" timestamp")
	}
	if s.SACKPerm {
		p.put(" sack-perm")
	}
}

func (x XT) print(p *printer) {
	switch {
	case x.Commented:
		p.put("# xt_", x.Name)
	case x.Comment != "":
		p.put("comment ", quote(x.Comment))
	case x.Bare:
		p.put("xt ", x.Type, " ", x.Name)
	default:
		p.put("xt ", x.Type, " ", quote(x.Name))
	}
}

func (f FlowAdd) print(p *printer) { p.put("flow add @", f.Flowtable) }

func (u Unknown) print(p *printer) { p.put(u.Text) }

func (r Reset) print(p *printer) { p.put("reset ", r.Option) }
