package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
)

// flowAPI is the socket where nfqproxy serves flows.
const flowAPI = "/run/nfqproxy/flows.sock"

// following are the readers of a contestant's flow API.
type following struct {
	connections []net.Conn
	reading     sync.WaitGroup
}

// followFlows starts the contestant's readers. They read as fast as they can and discard the data.
func (v *visit) followFlows(ctx context.Context) (*following, error) {
	f, dialer := &following{}, new(net.Dialer)
	for i := range v.contestant.readers + v.contestant.stalled {
		c, err := dialer.DialContext(ctx, "unix", flowAPI)
		if err == nil {
			f.connections = append(f.connections, c)
			_, err = io.WriteString(c, "GET /v1/flows?follow HTTP/1.1\r\nHost: localhost\r\n\r\n")
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
