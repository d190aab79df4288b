package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/nfqproxy/nfqproxy/bench/machine"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
)

// client is a client of the contestant's flow API.
func client() (*remote.Client, error) {
	return remote.NewClient("unix:"+flowAPI, remote.ClientOptions{})
}

// awaitTable waits until the observer has the table of all services.
func (v *visit) awaitTable(ctx context.Context) error {
	c, err := client()
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(v.startTimeout); ; {
		tables, err := c.Tables(ctx)
		if err == nil && len(tables) == 1 && tables[0].Services >= v.objects.count {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("the observer has no table of %d services: %w", v.objects.count, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// observed notes what the observer has counted, and records its memory.
func (v *visit) observed(ctx context.Context) error {
	c, err := client()
	if err != nil {
		return err
	}
	stats, err := c.Stats(ctx)
	if err != nil {
		return err
	}
	text, err := json.Marshal(stats)
	if err != nil {
		return err
	}
	v.note("the observer's counters: %s", text)
	mib, _, err := machine.Memory(v.process.PID())
	if err != nil {
		return err
	}
	v.record("memory", "resident", "MiB", mib)
	return nil
}

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
