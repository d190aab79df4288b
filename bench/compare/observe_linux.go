package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/nfqproxy/nfqproxy/bench/machine"
)

// flowAPIAnswer gets what the contestant's flow API answers to a path.
func flowAPIAnswer(ctx context.Context, path string, answer any) error {
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", flowAPI)
	}}}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, http.NoBody)
	if err != nil {
		return err
	}
	r, err := client.Do(request)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.200s", path, r.Status, b)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(b, answer)
}

// awaitTable waits until the observer has the table of all services.
func (v *visit) awaitTable(ctx context.Context) error {
	for deadline := time.Now().Add(v.startTimeout); ; {
		var list struct {
			Tables []struct {
				Services int `json:"services"`
			} `json:"tables"`
		}
		err := flowAPIAnswer(ctx, "/v1/table", &list)
		if err == nil && len(list.Tables) == 1 && list.Tables[0].Services >= v.objects.count {
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
	var stats json.RawMessage
	if err := flowAPIAnswer(ctx, "/v1/stats", &stats); err != nil {
		return err
	}
	v.note("the observer's counters: %s", stats)
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
