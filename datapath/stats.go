package datapath

import "sync/atomic"

// Stats count what happened to packets since the start.
type Stats struct {
	Packets     uint64 // received from the queues
	Undecodable uint64 // passed untouched because they could not be read
	NoService   uint64 // passed untouched because they are for no service
	Translated  uint64 // for a service, with an entry in the connection table
	Rejected    uint64 // refused
	Dropped     uint64 // discarded

	Created  uint64 // connection entries made
	Kept     uint64 // packets whose tuple had a live connection
	Replaced uint64 // entries made in the place of a finished connection's
	Failed   uint64 // entries that could not be made

	RefusedVerdicts uint64 // verdicts for packets the kernel had flushed
	QueueFull       uint64 // packets that passed undecided, or were lost, because a queue or its socket was full
	LostRecords     uint64 // flow records that a slow reader missed
}

// counters are the Stats of one worker.
type counters struct {
	packets, undecodable, noService, translated, rejected, dropped atomic.Uint64
	created, kept, replaced, failed                                atomic.Uint64
}

func (c *counters) addTo(s *Stats) {
	s.Packets += c.packets.Load()
	s.Undecodable += c.undecodable.Load()
	s.NoService += c.noService.Load()
	s.Translated += c.translated.Load()
	s.Rejected += c.rejected.Load()
	s.Dropped += c.dropped.Load()
	s.Created += c.created.Load()
	s.Kept += c.kept.Load()
	s.Replaced += c.replaced.Load()
	s.Failed += c.failed.Load()
}
