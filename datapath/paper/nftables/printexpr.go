package nftables

import (
	"strconv"
	"strings"
)

func (m Match) print(p *printer) {
	if and, ok := m.Left.(Binary); ok && m.Slash && !p.Canonical && and.Op == "&" {
		p.put(and.Left, " ")
		if m.Op != "==" {
			p.put(m.Op, " ")
		}
		p.flags(m.Right)
		p.put(" / ")
		p.flags(and.Right)
		return
	}
	p.put(m.Left, " ")
	_, binary := m.Left.(Binary)
	switch {
	case m.Op == "in":
		p.flags(m.Right)
		return
	case m.Op == "==" && !binary && !(isFlag(m.Left) && isValue(m.Right)):
	default:
		p.put(m.Op, " ")
	}
	if m.Op == "!" {
		p.flags(m.Right)
		return
	}
	m.Right.print(p)
}

func (v Verdict) print(p *printer) {
	p.put(string(v.Kind))
	switch {
	case v.Chain != "":
		p.put(" ", v.Chain)
	case v.Kind == Jump || v.Kind == Goto:
		p.put(" {\n")
		p.tabs++
		for _, r := range v.Rules {
			p.indent()
			p.rule(r)
			p.put("\n")
		}
		p.tabs--
		p.indent()
		p.put("}")
	}
}

func (v VerdictMap) print(p *printer) { p.put(v.Key, " vmap ", v.Data) }

func (m Mangle) print(p *printer) {
	p.put(m.Key, " set ")
	p.flags(m.Value)
}

func (s SetStatement) print(p *printer) {
	p.put(s.Op, " @", s.Set, " { ")
	p.dynamic(s.Element)
	p.put(" }")
}

func (m Meter) print(p *printer) {
	p.put("meter ", m.Name)
	p.nonzero(" size ", m.Size)
	p.put(" { ")
	p.dynamic(m.Element)
	p.put(" }")
}

// dynamic prints an element of a rule, which has its options in front of its statements.
func (p *printer) dynamic(e Element) {
	e.Key.print(p)
	stmts := e.Statements
	e.Statements = nil
	p.elementOptions(&e)
	p.statements(" ", stmts)
	p.given(" : ", e.Value)
}

func (l Literal) print(p *printer) {
	if l.Kind == Quoted {
		p.put(`"`, l.Text, `"`)
		return
	}
	p.put(l.Text)
}

func (l List) print(p *printer) { p.list(l, " | ") }

// flags prints a value whose flags are separated by commas.
func (p *printer) flags(e Expr) {
	if l, ok := e.(List); ok {
		p.list(l, ",")
		return
	}
	e.print(p)
}

func (p *printer) list(l []Expr, between string) {
	for i, e := range l {
		if i > 0 {
			p.put(between)
		}
		e.print(p)
	}
}

func (c Concat) print(p *printer) { p.list(c, " . ") }

func (s AnonymousSet) print(p *printer) {
	p.put("{")
	p.elements(s.Elements, 0)
	p.put(" }")
}

func (s SetRef) print(p *printer) { p.put("@", string(s)) }

func (Wildcard) print(p *printer) { p.put("*") }

func (x Prefix) print(p *printer) { p.put(x.Address, "/", strconv.Itoa(x.Length)) }

func (r Range) print(p *printer) { p.put(r.Low, "-", r.High) }

// binding says how strongly an operation binds.
func binding(op string) int {
	for n, level := range levels {
		for _, o := range level {
			if o.op == op {
				return n
			}
		}
	}
	return len(levels)
}

func (b Binary) print(p *printer) {
	p.operand(b.Op, b.Left)
	p.put(" ", b.Op, " ")
	p.operand(b.Op, b.Right)
}

func (p *printer) operand(op string, e Expr) {
	inner := ""
	switch e := e.(type) {
	case Binary:
		inner = e.Op
	case List:
		inner = "|"
	default:
		e.print(p)
		return
	}
	if binding(inner) < binding(op) {
		p.put("(", e, ")")
	} else {
		e.print(p)
	}
}

func (m Map) print(p *printer) { p.put(m.Key, " map ", m.Data) }

func (x Payload) print(p *printer) {
	if x.Tunnel != "" {
		p.put(x.Tunnel, " ")
	}
	p.put(x.Protocol, " ", x.Field)
}

func (x RawPayload) print(p *printer) { p.put("@", x.Base, ",", x.Offset, ",", x.Length) }

func (x Exthdr) print(p *printer) {
	if x.Field == "" {
		p.put("exthdr ", x.Name)
		return
	}
	p.put(x.Name, " ", x.Field)
	if x.Name == "rt0" || x.Name == "srh" && x.Field == "sid" {
		p.put("[", x.Index, "]")
	}
}

func (x TCPOption) print(p *printer) { p.part("tcp option ", x.Name, x.Field) }

func (x RawTCPOption) print(p *printer) {
	p.put("tcp option @", x.Kind, ",", x.Offset, ",", x.Length)
}

func (x IPOption) print(p *printer) { p.part("ip option ", x.Name, x.Field) }

func (x SCTPChunk) print(p *printer) { p.part("sctp chunk ", x.Name, x.Field) }

func (p *printer) part(of, name, field string) {
	p.put(of, name)
	if field != "" {
		p.put(" ", field)
	}
}

func (x Meta) print(p *printer) {
	if !bareMeta[x.Key] {
		p.put("meta ")
	}
	p.put(x.Key)
}

func (x CT) print(p *printer) {
	p.put("ct ")
	if x.Direction != "" {
		p.put(x.Direction, " ")
	}
	if x.Family != "" {
		p.put(string(x.Family), " ")
	}
	p.put(x.Key)
}

func (x RT) print(p *printer) {
	p.put("rt ")
	if x.Family != "" {
		p.put(string(x.Family), " ")
	}
	p.put(x.Key)
}

func (x Fib) print(p *printer) {
	p.put("fib ", strings.Join(x.Flags, " . "))
	if x.Check && !p.Canonical {
		p.put(" check")
	} else {
		p.put(" ", x.Result)
	}
}

func (x Socket) print(p *printer) {
	p.put("socket ", x.Key)
	if x.Key == "cgroupv2" {
		p.put(" level ", x.Level)
	}
}

func (x OSF) print(p *printer) {
	p.put("osf ")
	if x.TTL != "" {
		p.put("ttl ", x.TTL, " ")
	}
	p.put(x.Key)
}

func (x Numgen) print(p *printer) {
	p.put("numgen ", x.Mode, " mod ", x.Mod)
	p.nonzero(" offset ", x.Offset)
}

func (x JHash) print(p *printer) {
	p.put("jhash ", x.Of, " mod ", x.Mod)
	if x.Seeded {
		p.put(" seed 0x", strconv.FormatUint(x.Seed, 16))
	}
	p.nonzero(" offset ", x.Offset)
}

func (x SymHash) print(p *printer) {
	p.put("symhash mod ", x.Mod)
	p.nonzero(" offset ", x.Offset)
}

func (x IPsec) print(p *printer) {
	p.put("ipsec ", x.Direction)
	p.nonzero(" spnum ", x.Number)
	if x.Family != "" {
		p.put(" ", string(x.Family))
	}
	p.put(" ", x.Key)
}

func (x Unread) print(p *printer) { p.put(x.Text) }

// typeOf is the type that nft prints elements of this expression as.
func typeOf(e Expr) string {
	switch e := e.(type) {
	case Payload:
		switch {
		case e.Field == "sport" || e.Field == "dport":
			return "inet_service"
		case e.Protocol == "ip" && (e.Field == "saddr" || e.Field == "daddr"):
			return "ipv4_addr"
		case e.Field == "protocol" || e.Field == "nexthdr":
			return "inet_proto"
		case e.Protocol == "tcp" && e.Field == "flags":
			return "tcp_flag"
		case e.Protocol == "dccp" && e.Field == "type":
			return "dccp_pkttype"
		case e.Field == "saddr ip" || e.Field == "daddr ip" || e.Protocol == "icmp" && e.Field == "gateway":
			return "ipv4_addr"
		case e.Protocol == "ip6" && (e.Field == "saddr" || e.Field == "daddr"):
			return "ipv6_addr"
		case e.Protocol == "ether" && e.Field != "type":
			return "ether_addr"
		case e.Protocol == "ether", e.Field == "type", e.Field == "code", e.Field == "dscp", e.Field == "ecn",
			e.Field == "taddr", e.Field == "saddr ether" || e.Field == "daddr ether":
			return ""
		}
		return "integer"
	case RawPayload, Numgen, JHash, SymHash, SCTPChunk, IPOption, TCPOption, RawTCPOption:
		return "integer"
	case Socket:
		if e.Key == "mark" {
			return "mark"
		}
	case RT:
		if e.Key == "mtu" {
			return "integer"
		}
	case Exthdr:
		if e.Field == "addr" || e.Field == "sid" {
			return ""
		}
		return "integer"
	case CT:
		if e.Family == FamilyIP {
			return "ipv4_addr"
		}
		return ctTypes[e.Key]
	case Meta:
		return metaTypes[e.Key]
	}
	return ""
}

// ctTypes and metaTypes are the types of keys of ct and meta.
var (
	ctTypes = map[string]string{
		"state": "ct_state", "status": "ct_status", "mark": "mark", "direction": "ct_dir", "proto-src": "inet_service", "proto-dst": "inet_service",
		"protocol": "inet_proto", "l3proto": "nf_proto", "bytes": "integer", "packets": "integer", "avgpkt": "integer", "zone": "integer", "id": "integer",
	}
	metaTypes = map[string]string{
		"mark": "mark", "l4proto": "inet_proto", "nfproto": "nf_proto", "iif": "iface_index", "oif": "iface_index", "iifname": "ifname", "oifname": "ifname",
		"skuid": "uid", "skgid": "gid", "priority": "classid", "pkttype": "pkt_type", "length": "integer", "cpu": "integer", "cgroup": "integer", "random": "integer",
	}
)
