package load

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"
)

func TestLoad(t *testing.T) {
	s, err := Listen("0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve() }()
	_, port, err := net.SplitHostPort(s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	l := Load{Target: net.JoinHostPort("127.0.0.1", port), Period: time.Millisecond, Held: 2}
	// On a busy machine it takes longer until each kind of packet is sent.
	run := func() (c Counts) {
		for long := 50 * time.Millisecond; (c.TCP == 0 || c.UDP == 0) && long < time.Minute; long *= 2 {
			ctx, cancel := context.WithTimeout(t.Context(), long)
			c = l.Run(ctx)
			cancel()
		}
		return c
	}
	if c := run(); c.TCP == 0 || c.UDP == 0 || c.Failed != 0 || c.Lost != 0 || c.Held != 2 || c.Broken != 0 || !c.First.IsZero() {
		t.Errorf("with a server: %+v", c)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve ended with %v", err)
	}
	c := run()
	if c.TCP == 0 || c.Failed != c.TCP || c.Refused != c.TCP || c.Lost != c.UDP || c.Held != 0 || c.Broken != 2 || len(c.Errors) != maxErrors || !c.First.Before(c.Last) {
		t.Errorf("without a server: %+v", c)
	}
	sum := c
	sum.Add(c)
	if sum.TCP != 2*c.TCP || sum.Failed != 2*c.Failed || sum.Refused != 2*c.Refused || sum.Lost != 2*c.Lost || sum.Broken != 4 || len(sum.Errors) != maxErrors || sum.First != c.First || sum.Last != c.Last {
		t.Errorf("twice %+v: %+v", c, sum)
	}
}
