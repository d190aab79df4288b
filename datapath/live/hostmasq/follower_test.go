package hostmasq

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/hostnat"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// fakeSource is a host whose rules and addresses the test changes.
type fakeSource struct {
	t                 *testing.T
	rules             []rules.Step // of one rule; nil: there is no table
	tablesErr         error
	address           string
	hostErr           error
	reading           func() // called by Rules; may be nil
	watches           []error
	watched, repeated int
}

func (s *fakeSource) Rules() (*hostnat.Ruleset, error) {
	if s.reading != nil {
		s.reading()
	}
	switch {
	case s.rules == nil && s.tablesErr != nil:
		return nil, s.tablesErr
	case s.rules == nil:
		return new(hostnat.Ruleset), nil
	}
	base := &rules.Chain{Name: "POSTROUTING", Rules: []*rules.Rule{{Chain: "POSTROUTING", Steps: s.rules}}}
	return &hostnat.Ruleset{Tables: map[decision.Family][]*hostnat.Table{decision.IPv4: {{Name: "table nat", Base: base}}}}, s.tablesErr
}

func (s *fakeSource) Out(netip.Addr) (string, error) { return "eth0", nil }

func (s *fakeSource) Host() (*hostnat.Host, error) {
	if s.hostErr != nil {
		return nil, s.hostErr
	}
	h := new(hostnat.Host)
	h.AddAddress("eth0", netip.MustParsePrefix(s.address))
	return h, nil
}

// Watch fails with one error after the other, and then waits.
func (s *fakeSource) Watch(ctx context.Context, changed func() error) error {
	s.watched++
	if changed() != nil {
		s.repeated++
	}
	if len(s.watches) > 0 {
		err := s.watches[0]
		s.watches = s.watches[1:]
		return err
	}
	<-ctx.Done()
	return nil
}

func newFollower(s *fakeSource) (*Follower, *bytes.Buffer) {
	log := new(bytes.Buffer)
	return Follow(s, slog.New(slog.NewTextHandler(log, nil))), log
}

// answer is the translation of the source of a pod's flow to an endpoint on another node.
func answer(f *Follower) hostnat.Result {
	p := &decision.Packet{Protocol: decision.TCP, Source: netip.MustParseAddrPort("10.244.1.9:1000"), Destination: netip.MustParseAddrPort("10.96.0.1:80")}
	return f.Translate(p, netip.MustParseAddrPort("172.20.0.9:80"))
}

var (
	// masquerades is for packets to other hosts.
	masquerades = []rules.Step{rules.AddrTypes{Types: 1 << 2, Negated: true}, rules.NAT{Kind: rules.Masquerade}}
	nothing     = []rules.Step{rules.Verdict{Kind: rules.Return}}
	sometimes   = []rules.Step{rules.Fixed{Result: rules.Unknown, Words: "-m time …"}, rules.NAT{Kind: rules.Masquerade}}
)

// TestFollowerKeepsWhatItHas: rules and addresses that cannot be read stay as they were,
// and that is logged once.
func TestFollowerKeepsWhatItHas(t *testing.T) {
	s := &fakeSource{t: t, rules: masquerades, address: "172.20.0.2/16"}
	f, log := newFollower(s)
	check := func(when string, want bool) {
		t.Helper()
		if got := answer(f).Masquerade; got != want {
			t.Errorf("%s: masqueraded %v, want %v", when, got, want)
		}
	}
	check("at first", true)
	s.rules, s.tablesErr = nil, errors.New("no buffer space")
	for range 2 {
		if f.readAll() == nil {
			t.Error("rules that cannot be read are no error")
		}
	}
	check("rules that cannot be read", true)
	s.rules = nothing // some can be read
	if err := f.readAll(); err != nil {
		t.Error(err)
	}
	check("not all rules can be read", false)
	s.rules, s.tablesErr, s.hostErr = masquerades, nil, errors.New("no addresses")
	if f.readAll() == nil {
		t.Error("addresses that cannot be read are no error")
	}
	check("addresses that cannot be read", true)
	s.rules, s.hostErr = nil, nil
	if err := f.readAll(); err != nil {
		t.Error(err)
	}
	check("without rules", false)
	if got := strings.Count(log.String(), "\n"); got != 3 || strings.Count(log.String(), "no buffer space") != 2 || !strings.Contains(log.String(), "no addresses") {
		t.Errorf("%d lines, want one for each thing that was wrong:\n%s", got, log)
	}
}

// TestFollowerWithoutAddresses: until the addresses are known, no rule is evaluated.
func TestFollowerWithoutAddresses(t *testing.T) {
	s := &fakeSource{t: t, rules: masquerades, address: "172.20.0.2/16", hostErr: errors.New("no addresses")}
	f, _ := newFollower(s)
	if f.Rules().Any(decision.IPv4) {
		t.Error("rules are evaluated for a host whose addresses are not known")
	}
	s.hostErr = nil
	f.HostChanged()
	if !answer(f).Masquerade {
		t.Error("rules are not evaluated though the addresses are known")
	}
}

// TestFollowerHostChanged: a new address counts, and the rules are not read for it.
func TestFollowerHostChanged(t *testing.T) {
	s := &fakeSource{t: t, rules: masquerades, address: "172.20.0.2/16"}
	f, _ := newFollower(s)
	s.reading = func() { t.Error("the rules are read again") }
	s.address = "172.20.0.9/16"
	f.HostChanged()
	if answer(f).Rule != nil {
		t.Error("a new address of the host is not known to be one")
	}
	var none *Follower
	none.HostChanged()
}

// TestFollowerWatchesAgain: that changes cannot be heard of is no reason to end. What
// changed meanwhile is read when they can.
func TestFollowerWatchesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeSource{t: t, rules: nothing, address: "172.20.0.2/16", watches: []error{errors.New("socket broke"), errors.New("socket broke"), nil}}
		f, log := newFollower(s)
		s.reading = func() {
			if s.watched == 4 { // changed while the watch was down
				s.rules = masquerades
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			f.Run(ctx)
		}()
		time.Sleep(3 * retryAfter)
		synctest.Wait()
		if s.watched != 4 || !answer(f).Masquerade {
			t.Errorf("watched %d times, want 4; %+v", s.watched, answer(f))
		}
		if strings.Count(log.String(), "socket broke") != 1 || strings.Count(log.String(), "\n") != 2 {
			t.Errorf("log:\n%s", log)
		}
		cancel()
		<-ended
	})
}

// TestUnknownDoesNotWait: the decision does not wait for rules that are being read.
func TestUnknownDoesNotWait(t *testing.T) {
	s := &fakeSource{t: t, rules: sometimes, address: "172.20.0.2/16"}
	f, log := newFollower(s)
	s.reading = func() {
		for range 2 {
			f.logUnknown(answer(f))
		}
	}
	if err := f.readAll(); err != nil {
		t.Error(err)
	}
	if strings.Count(log.String(), "-m time") != 1 {
		t.Errorf("the rule is not named once:\n%s", log)
	}
}

// TestUnknown: rules that cannot be evaluated are listed once a flow has reached them, as long as they
// exist, and errors as long as they last.
func TestUnknown(t *testing.T) {
	s := &fakeSource{t: t, rules: sometimes, address: "172.20.0.2/16"}
	f, _ := newFollower(s)
	check := func(when string, want ...string) {
		t.Helper()
		got := f.Unknown()
		if len(got) != len(want) {
			t.Errorf("%s: %q, want %q", when, got, want)
			return
		}
		for i := range want {
			if !strings.Contains(got[i], want[i]) {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}
	}
	check("no flow has reached it")
	for range 2 {
		f.logUnknown(answer(f))
	}
	check("two flows have", "table nat: -A POSTROUTING -m time … -j MASQUERADE: it depends on data that is not known here")
	s.hostErr, s.tablesErr = errors.New("no addresses"), errors.New("no buffer space")
	if f.readAll() == nil {
		t.Error("addresses that cannot be read are no error")
	}
	check("errors", "cannot read the host's addresses; evaluating its nat rules with the addresses read last: no addresses", "the host's nat rules are only partly known: no buffer space")
	s.hostErr, s.tablesErr, s.rules = nil, nil, masquerades
	if err := f.readAll(); err != nil {
		t.Error(err)
	}
	check("other rules")
	var none *Follower
	if none.Unknown() != nil {
		t.Error("no follower has unknown rules")
	}
}
