package ruleset

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

// Connection is the netlink connection through which a process changes its tables. It is safe for concurrent use.
//
// It can own the tables (nf_tables.h, NFT_TABLE_F_OWNER): then no other process can change or remove
// them, and "nft flush ruleset", which systemd's nftables.service runs when it restarts, leaves them. When
// the connection is closed, they stay (NFT_TABLE_F_PERSIST, since Linux 6.9), and anyone can change them.
type Connection struct {
	// flags are those of the tables that it owns; 0: it owns none.
	flags uint32
	// most is the size in bytes at which a transaction is carried out though more is to come.
	most int
	// port is the netlink port of the connection.
	port atomic.Uint32
	// removal is the message that removes an element: msgDestroySetElem or, on kernels without it, NFT_MSG_DELSETELEM.
	removal atomic.Int32

	mu sync.Mutex
	// conn is nil after an error, because replies may still arrive.
	conn   *netlink.Conn
	closed bool
	// released: another process changes the tables.
	released bool
}

// OpenConnection opens a connection in the calling thread's network namespace. With own it owns the tables, if the
// kernel supports that. Close it after everything that uses it.
func OpenConnection(own bool) (*Connection, error) {
	c := new(Connection)
	c.removal.Store(msgDestroySetElem)
	if err := c.open(); err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	if own && probeOwner() == nil {
		c.flags = tableOwner | tablePersist
	}
	return c, nil
}

// open opens the connection, again after an error.
func (c *Connection) open() (err error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			c.conn = conn
		} else {
			err = errors.Join(err, conn.Close())
		}
	}()
	// Errors without a copy of the message that failed; older kernels include it.
	_ = conn.SetOption(netlink.CapAcknowledge, true)
	if err := conn.SetWriteBuffer(transactionSize); err != nil {
		return err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var address unix.Sockaddr
	size := 0
	if e := raw.Control(func(fd uintptr) {
		if size, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF); err == nil {
			address, err = unix.Getsockname(int(fd))
		}
	}); e != nil || err != nil {
		return errors.Join(e, err)
	}
	if a, ok := address.(*unix.SockaddrNetlink); ok {
		c.port.Store(a.Pid)
	}
	// A message of elements may come on top. With a very small buffer it is enlarged as needed, or fails.
	if c.most == 0 { // else others may read it
		c.most = max(min(size, transactionSize)-1<<17, 1<<15)
	}
	return nil
}

// fail closes the connection after an error. The next run opens it again.
func (c *Connection) fail() {
	if c.conn != nil {
		_ = c.conn.Close() // its requests are done, or have failed
		c.conn = nil
	}
}

// reopen opens the connection again, and makes it the owner of the tables as before.
func (c *Connection) reopen() error {
	err := c.open()
	if err == nil && c.flags != 0 && c.claim() != nil {
		c.fail()
		err = c.open()
	}
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	return nil
}

// claim makes the connection the owner of the tables that have none.
func (c *Connection) claim() error {
	k := kernel{conn: c, table: TableName}
	for _, f := range []family{ipv4, ipv6} {
		a, err := nft.Get(f.nfproto, unix.NFT_MSG_GETTABLE, nft.NamedTable(TableName))
		if err != nil {
			return err
		}
		if a.Uint32(unix.NFTA_TABLE_FLAGS)&tablePersist != 0 {
			k.addTable(&table{family: f}, c.flags)
		}
	}
	return k.open.RunOn(c.conn)
}

// use calls f with the connection, and closes it if f fails. It works on the calling thread's network namespace.
func (c *Connection) use(f func(*netlink.Conn) error) error {
	switch {
	case c.closed:
		return errors.New("the connection to nftables is closed")
	case c.conn == nil:
		if err := c.reopen(); err != nil {
			return err
		}
	}
	err := f(c.conn)
	if err != nil {
		c.fail()
	}
	return err
}

// run carries a transaction out. It works on the calling thread's network namespace.
func (c *Connection) run(t *nft.Transaction) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.use(t.RunOn)
}

// try is run, with the result of [nft.Transaction.Try]. It does nothing while the tables are another process's.
func (c *Connection) try(t *nft.Transaction) (refused map[int]error, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.released {
		return nil, nil
	}
	err = c.use(func(conn *netlink.Conn) (err error) {
		refused, err = t.Try(conn)
		return err
	})
	return refused, err
}

// release lets another process change the tables.
func (c *Connection) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.released = true
	c.fail()
}

// resume ends a release. It works on the calling thread's network namespace.
func (c *Connection) resume() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.released = false
	if c.conn != nil {
		return nil
	}
	return c.reopen()
}

// Close leaves the tables in the kernel.
func (c *Connection) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.conn == nil {
		return nil
	}
	err := c.conn.Close()
	c.conn = nil
	return err
}

// Flags of tables that the unix package does not have (nf_tables.h).
const (
	tableOwner   = 1 << 1 // NFT_TABLE_F_OWNER
	tablePersist = 1 << 2 // NFT_TABLE_F_PERSIST
)

// probeOwner checks whether the kernel supports tables that have an owner, and stay without one.
func probeOwner() error { return try(tableOwner|tablePersist, chain{}, nil) }
