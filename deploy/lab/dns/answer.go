package dns

import (
	"math/rand/v2"

	"github.com/miekg/dns"
)

const (
	// maxDatagram is the size of the largest answer in a datagram that no network fragments (the DNS flag day of 2020).
	maxDatagram = 1232
	// maxAliases bounds a chain of ExternalName Services.
	maxAliases = 8
	// outside is why a name is refused, for clients that show it (RFC 8914).
	outside = "a lab's DNS only knows the names of its cluster, and has no upstream"
)

// Answer is the answer to a query, without EDNS and of any size. It never fails, whatever the query is.
func (z *Zone) Answer(q *dns.Msg) *dns.Msg {
	r := new(dns.Msg).SetReply(q)
	r.Compress = true
	switch {
	case q.Opcode != dns.OpcodeQuery:
		return r.SetRcode(q, dns.RcodeNotImplemented)
	case len(q.Question) != 1:
		return r.SetRcode(q, dns.RcodeFormatError)
	}
	kind, name := q.Question[0].Qtype, dns.CanonicalName(q.Question[0].Name)
	if q.Question[0].Qclass != dns.ClassINET || apexOf(name) == "" || kind == dns.TypeAXFR || kind == dns.TypeIXFR {
		return r.SetRcode(q, dns.RcodeRefused)
	}
	r.Authoritative = true
	for range maxAliases {
		records, exists := z.names[name]
		if !exists {
			r.Rcode = dns.RcodeNameError
		}
		var found []dns.RR
		for _, rr := range records {
			if t := rr.Header().Rrtype; t == kind || kind == dns.TypeANY {
				found = append(found, dns.Copy(rr)) // writing a message changes its records
			}
		}
		r.Answer = append(r.Answer, found...)
		if len(found) > 0 {
			break
		}
		if len(records) == 1 {
			if alias, ok := records[0].(*dns.CNAME); ok {
				r.Answer = append(r.Answer, dns.Copy(alias))
				if name = dns.CanonicalName(alias.Target); apexOf(name) == "" {
					return r // the client looks further, where it can
				}
				continue
			}
		}
		denial := dns.Copy(z.names[apexOf(name)][0])
		denial.Header().Ttl = negativeTTL
		r.Ns = append(r.Ns, denial)
		return r
	}
	r.Extra = z.additional(r.Answer)
	return r
}

// additional are the addresses of the targets of SRV records.
func (z *Zone) additional(answer []dns.RR) (extra []dns.RR) {
	seen := make(map[string]bool)
	for _, rr := range answer {
		srv, ok := rr.(*dns.SRV)
		if !ok || seen[srv.Target] {
			continue
		}
		seen[srv.Target] = true
		for _, address := range z.names[dns.CanonicalName(srv.Target)] {
			extra = append(extra, dns.Copy(address))
		}
	}
	return extra
}

// reply is the answer to a query as it is sent: with EDNS if the query has it, its addresses in random order, within
// the size of a datagram. identity is the server's identifier for clients that request it (RFC 5001), in hexadecimal.
func (z *Zone) reply(q *dns.Msg, datagram bool, identity func() string) *dns.Msg {
	r := z.Answer(q)
	size := dns.MaxMsgSize
	if datagram {
		size = dns.MinMsgSize
	}
	if client := q.IsEdns0(); client != nil {
		if datagram {
			size = min(max(int(client.UDPSize()), dns.MinMsgSize), maxDatagram)
		}
		own := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
		own.SetUDPSize(maxDatagram)
		if client.Version() != 0 {
			r = new(dns.Msg).SetRcode(q, dns.RcodeBadVers)
		}
		for _, o := range client.Option {
			if o.Option() == dns.EDNS0NSID {
				own.Option = append(own.Option, &dns.EDNS0_NSID{Code: dns.EDNS0NSID, Nsid: identity()})
				break
			}
		}
		if r.Rcode == dns.RcodeRefused {
			own.Option = append(own.Option, &dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeNotAuthoritative, ExtraText: outside})
		}
		r.Extra = append(r.Extra, own)
	}
	rand.Shuffle(len(r.Answer), func(i, j int) {
		// Not the records of an alias, whose order has a meaning.
		if address(r.Answer[i]) && address(r.Answer[j]) {
			r.Answer[i], r.Answer[j] = r.Answer[j], r.Answer[i]
		}
	})
	r.Truncate(size)
	return r
}

func address(rr dns.RR) bool {
	t := rr.Header().Rrtype
	return t == dns.TypeA || t == dns.TypeAAAA
}
