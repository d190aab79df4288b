package dns

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"

	"github.com/miekg/dns"
)

// Identify sends a query for a name's TXT record on a connection, and returns the identity of the server that answers,
// as given to [NewServer].
func Identify(ctx context.Context, conn net.Conn, name string) ([]byte, error) {
	q := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeTXT).SetEdns0(maxDatagram, false)
	q.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_NSID{Code: dns.EDNS0NSID}}
	// The connection's own deadline, or the context's end, closes it.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	c := &dns.Conn{Conn: conn, UDPSize: maxDatagram}
	if err := c.WriteMsg(q); err != nil {
		return nil, err
	}
	r, err := c.ReadMsg()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	if o := r.IsEdns0(); o != nil {
		for _, option := range o.Option {
			if id, ok := option.(*dns.EDNS0_NSID); ok {
				return hex.DecodeString(id.Nsid)
			}
		}
	}
	return nil, fmt.Errorf("the DNS server answers %s without an identifier", dns.RcodeToString[r.Rcode])
}
