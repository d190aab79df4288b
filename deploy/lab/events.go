package lab

import "sync"

// Event is an event of a node, or of the lab. Exactly one of Log, Died, Files and Changes is set. Flows are no events: they are
// those of [Lab.Observer].
type Event struct {
	Node  string       // empty: Files or Changes is set
	Log   string       // a line that the daemon has written: of its log, or to standard output
	Died  error        // the daemon exited unexpectedly: a *DaemonError
	Files *FilesStatus // the state of the files changed
	// Changes are what changed in the lab, in a line for each.
	Changes []string
}

// Subscription receives events. A slow one loses events; it never blocks a daemon.
type Subscription struct {
	C <-chan Event // closed with the subscription

	events chan Event
	hub    *hub
	lost   uint64 // guarded by hub.mu
}

// Lost is the number of events lost so far.
func (s *Subscription) Lost() uint64 {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	return s.lost
}

// Close ends the subscription. It is safe to call Close more than once.
func (s *Subscription) Close() { s.hub.remove(s) }

// hub passes events to all subscriptions.
type hub struct {
	mu            sync.Mutex
	closed        bool
	subscriptions map[*Subscription]struct{}
}

func (h *hub) subscribe(buffer int) *Subscription {
	c := make(chan Event, buffer)
	s := &Subscription{C: c, events: c, hub: h}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		close(c)
		return s
	}
	if h.subscriptions == nil {
		h.subscriptions = make(map[*Subscription]struct{})
	}
	h.subscriptions[s] = struct{}{}
	return s
}

func (h *hub) remove(s *Subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.subscriptions[s]; ok {
		delete(h.subscriptions, s)
		close(s.events)
	}
}

func (h *hub) publish(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subscriptions {
		select {
		case s.events <- e:
		default:
			s.lost++
		}
	}
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for s := range h.subscriptions {
		close(s.events)
	}
	h.subscriptions = nil
}
