package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
)

// flowAPI is where nfqproxy serves flows.
var flowAPI = netip.MustParseAddrPort("127.0.0.1:10253")

// following are the readers of a contestant's flow API.
type following struct {
	connections []net.Conn
	reading     sync.WaitGroup
}

// followFlows starts the contestant's readers, in the node's namespace. They read as fast
// as they can and discard the data.
func (v *visit) followFlows(ctx context.Context) (*following, error) {
	f := &following{}
	for i := range v.contestant.readers + v.contestant.stalled {
		c, err := v.node.Dial(ctx, "tcp", netip.AddrPort{}, flowAPI)
		if err == nil {
			f.connections = append(f.connections, c)
			_, err = fmt.Fprintf(c, "GET /v1/flows?follow HTTP/1.1\r\nHost: %s\r\n\r\n", flowAPI)
		}
		if err != nil {
			f.close()
			return nil, fmt.Errorf("follow the flows: %w", err)
		}
		if i < v.contestant.readers {
			f.reading.Go(func() { _, _ = io.Copy(io.Discard, c) })
		}
	}
	return f, nil
}

func (f *following) close() {
	for _, c := range f.connections {
		_ = c.Close()
	}
	f.reading.Wait()
}
