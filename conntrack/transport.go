package conntrack

// Transport carries requests to a connection tracking table: the kernel's, or that of
// package conntracktest.
type Transport interface {
	// Exchange sends the netlink messages in req and calls answer for each message that
	// came back, with its sequence number and type; the body, which begins with struct
	// nfgenmsg or the errno, is only valid during the call. Netlink is synchronous: when
	// Exchange returns, all requests have been processed in order. [ErrInterrupted]: the
	// answers are a dump with gaps.
	Exchange(req []byte, answer func(seq uint32, typ uint16, body []byte)) error
	Close() error
}

// NewTable returns a Table that uses the transport. All Tables of a namespace share the locks. For the kernel's table
// see [Open].
func NewTable(transport Transport, locks *Locks) *Table {
	t := &Table{transport: transport, locks: locks}
	t.answer = t.receive
	return t
}

// exchange sends the messages in t.buf and hands the answers over.
func (t *Table) exchange(to receiver) error {
	t.to = to
	err := t.transport.Exchange(t.buf, t.answer)
	t.to = nil
	return err
}

func (t *Table) receive(seq uint32, typ uint16, body []byte) { t.to.receive(seq, typ, body) }

// receiver takes messages from the kernel. It is an interface, and receivers on the hot path
// are faces of the Table, because a closure would be allocated for each batch.
type receiver interface {
	// receive takes one message; the body is only valid during the call.
	receive(seq uint32, typ uint16, body []byte)
}

// receiverFunc makes a receiver of a function.
type receiverFunc func(seq uint32, typ uint16, body []byte)

func (f receiverFunc) receive(seq uint32, typ uint16, body []byte) { f(seq, typ, body) }

// EventSource is where a Watcher's events come from: the kernel, or package conntracktest.
type EventSource interface {
	// Receive returns the number of available netlink datagrams, at most 256; if it is less, there are no more. With
	// wait it waits for some, but may return 0. ENOBUFS: some were lost.
	Receive(wait bool) (n int, err error)
	// Datagram returns one of them; it is valid until the next Receive.
	Datagram(i int) []byte
	// Listen switches events on and off.
	Listen(on bool) error
	// Close ends a waiting Receive, and all later ones, with [os.ErrClosed].
	Close() error
}

// NewWatcher returns a Watcher that reads from the source. For the kernel's events see [Watch].
func NewWatcher(source EventSource) *Watcher { return &Watcher{source: source} }
