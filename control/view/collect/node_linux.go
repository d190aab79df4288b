package collect

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/bundle"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Collect collects on the node that this process runs on, in its network namespace: what the script collects, and for a
// flow its packets, which takes [Source.Capture], and its connection entries. What cannot be had is a note. It needs
// CAP_NET_ADMIN, and for packets CAP_NET_RAW.
func Collect(ctx context.Context, s Source) *bundle.Bundle {
	b := &bundle.Bundle{}
	if len(s.Pairs) > 0 {
		ofFlow(ctx, s, b)
	}
	if node, err := runScript(ctx); err != nil {
		b.Note("the node's rules, addresses, routes and sysctls: %v", err)
	} else {
		b.Node = node.Node
		b.Take(node)
	}
	return b
}

// runScript runs the script, and returns what it collects.
func runScript(ctx context.Context) (*bundle.Bundle, error) {
	parent, err := os.MkdirTemp("", "nfqproxy-collect-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(parent)
	dir := filepath.Join(parent, "node")
	cmd := exec.CommandContext(ctx, "sh", "-c", Script, "collect.sh", dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("the script of nfqproxy collect: %w: %s", err, bytes.TrimSpace(out))
	}
	return bundle.Open(dir)
}

// ofFlow adds packets and connection entries.
func ofFlow(ctx context.Context, s Source, b *bundle.Bundle) {
	// Before the capture, as they time out, and after it, as there may be new ones.
	found := make(map[entryKey]bundle.Entry)
	before := findEntries(s.Pairs, found)
	packets, kept, lost, err := capture(ctx, s)
	switch {
	case err != nil:
		b.Note("packets: %v", err)
	case s.Capture > 0:
		about := fmt.Sprintf("%d packets in %s", kept, s.Capture)
		if lost > 0 {
			about += fmt.Sprintf(", and %d more that were not kept", lost)
		}
		b.Add(bundle.PacketsFile, about, packets)
	}
	if err := errors.Join(before, findEntries(s.Pairs, found)); err != nil {
		b.Note("connection entries: %v", err)
	}
	list := make([]bundle.Entry, 0, len(found))
	for _, key := range slices.SortedFunc(maps.Keys(found), entryKey.compare) {
		list = append(list, found[key])
	}
	if err := b.AddJSON(bundle.EntriesFile, fmt.Sprintf("%d connection entries", len(list)), list); err != nil {
		b.Note("connection entries: %v", err)
	}
}

// entryKey identifies a connection entry.
type entryKey struct {
	original conntrack.Tuple
	zone     uint16
}

func (k entryKey) compare(o entryKey) int {
	return cmp.Or(cmp.Compare(k.original.Protocol, o.original.Protocol), k.original.Source.Compare(o.original.Source),
		k.original.Destination.Compare(o.original.Destination), cmp.Compare(k.zone, o.zone))
}

// findEntries adds the connection entries of the pairs, by their original direction.
func findEntries(pairs []Pair, found map[entryKey]bundle.Entry) error {
	t, err := conntrack.Open(new(conntrack.Locks))
	if err != nil {
		return err
	}
	defer t.Close()
	err = t.Dump(conntrack.Filter{}, func(c *conntrack.State) {
		if slices.ContainsFunc(pairs, func(p Pair) bool {
			return p.Has(c.Original.Source.Addr(), c.Original.Destination.Addr()) || p.Has(c.Reply.Source.Addr(), c.Reply.Destination.Addr())
		}) {
			found[entryKey{c.Original, c.Zone}] = entryOf(c)
		}
	})
	if errors.Is(err, conntrack.ErrInterrupted) {
		return nil
	}
	return err
}

func entryOf(c *conntrack.State) bundle.Entry {
	e := bundle.Entry{
		Protocol: c.Original.Protocol, Original: bundle.Tuple{Source: c.Original.Source, Destination: c.Original.Destination}, Reply: bundle.Tuple{Source: c.Reply.Source, Destination: c.Reply.Destination},
		Answered: c.Status&conntrack.StatusSeenReply != 0, Assured: c.Status&conntrack.StatusAssured != 0, Mark: c.Mark, Zone: c.Zone, Timeout: c.Timeout,
	}
	switch decision.Protocol(c.Original.Protocol) {
	case decision.TCP:
		e.State = c.TCP.String()
	case decision.SCTP:
		e.State = c.SCTP.String()
	}
	if c.HasCounters {
		e.Sent, e.Received = &c.Sent.Packets, &c.Received.Packets
	}
	return e
}
