package bundle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/view/noderules"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Collect collects on the node that this process runs on, in its network namespace: packets, which takes
// [Source.Capture], connection entries and rules. What cannot be had is a note. It needs CAP_NET_ADMIN and
// CAP_NET_RAW.
func Collect(ctx context.Context, s Source) *Bundle {
	b := &Bundle{}
	// Before the capture, as they time out, and after it, as there may be new ones.
	found := make(map[entryKey]Entry)
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
		b.Add(PacketsFile, about, packets)
	}
	if err := errors.Join(before, findEntries(s.Pairs, found)); err != nil {
		b.Note("connection entries: %v", err)
	}
	list := make([]Entry, 0, len(found))
	for _, key := range slices.SortedFunc(maps.Keys(found), entryKey.compare) {
		list = append(list, found[key])
	}
	if err := b.AddJSON(EntriesFile, fmt.Sprintf("%d connection entries", len(list)), list); err != nil {
		b.Note("connection entries: %v", err)
	}
	for _, r := range []struct {
		file    string
		command []string
	}{
		{RulesFile, []string{"iptables-save"}}, {Rules6File, []string{"ip6tables-save"}}, {NFTablesFile, []string{"nft", "list", "ruleset"}},
	} {
		rules(ctx, b, r.file, r.command)
	}
	return b
}

func rules(ctx context.Context, b *Bundle, file string, command []string) {
	out, err := noderules.List(ctx, command...)
	if err != nil {
		b.Note("%s: %v", file, err)
		return
	}
	b.Add(file, "output of "+strings.Join(command, " "), out)
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
func findEntries(pairs []Pair, found map[entryKey]Entry) error {
	t, err := conntrack.Open(new(conntrack.Locks))
	if err != nil {
		return err
	}
	defer t.Close()
	for _, ipv6 := range []bool{false, true} {
		if !slices.ContainsFunc(pairs, func(p Pair) bool { return (decision.FamilyOf(p.A) == decision.IPv6) == ipv6 }) {
			continue
		}
		err := t.Dump(conntrack.Filter{IPv6: ipv6}, func(c *conntrack.State) {
			if slices.ContainsFunc(pairs, func(p Pair) bool {
				return p.Has(c.Original.Source.Addr(), c.Original.Destination.Addr()) || p.Has(c.Reply.Source.Addr(), c.Reply.Destination.Addr())
			}) {
				found[entryKey{c.Original, c.Zone}] = entryOf(c)
			}
		})
		if err != nil && !errors.Is(err, conntrack.ErrInterrupted) {
			return err
		}
	}
	return nil
}

func entryOf(c *conntrack.State) Entry {
	e := Entry{
		Protocol: c.Original.Protocol, Original: Tuple{c.Original.Source, c.Original.Destination}, Reply: Tuple{c.Reply.Source, c.Reply.Destination},
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
