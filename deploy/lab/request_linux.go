package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// patience is how long a request may take.
type patience struct {
	connect          time.Duration // until a connection is made
	answer, datagram time.Duration // until the answer, on a connection and after a datagram
}

// defaultPatience: a connection may take longer than a flow may be held, and the answer to a datagram longer than the
// minute that is the page's default for a hold.
var defaultPatience = patience{connect: 11 * time.Minute, answer: 10 * time.Second, datagram: 65 * time.Second}

// Request sends a request from a host of the lab, as [observe.Requester].
func (l *Lab) Request(ctx context.Context, q observe.Request) (*observe.Response, error) {
	invalid := func(field, format string, args ...any) (*observe.Response, error) {
		return nil, &observe.Error{Status: http.StatusBadRequest, Field: field, Message: fmt.Sprintf(format, args...)}
	}
	ns, err := l.Namespace(q.From)
	if err != nil {
		return invalid("from", "%v", err)
	}
	to, err := netip.ParseAddrPort(q.To)
	if err != nil || to.Port() == 0 {
		return invalid("to", "%q: want ADDRESS:PORT, as in 10.96.0.10:80 or [fd00::10]:80", q.To)
	}
	network := "tcp"
	if q.Protocol != "" {
		p, err := decision.ParseProtocol(q.Protocol)
		if err != nil || p == decision.SCTP {
			return invalid("protocol", "%q: want tcp or udp", q.Protocol)
		}
		network = p.Lower()
	}
	ctx, cancel := context.WithTimeout(ctx, l.patience.connect)
	defer cancel()
	began := time.Now()
	r := new(observe.Response)
	late := "no connection" // the reason, if the time is over
	conn, err := ns.Dial(ctx, network, netip.AddrPort{}, to)
	if err == nil {
		late = "no answer"
		r.Source = conn.LocalAddr().String()
		timeout := l.patience.answer
		if network == "udp" {
			timeout = l.patience.datagram
		}
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		err = readResponse(ctx, conn, r)
	}
	if err != nil {
		r.Error = reasonOf(err, late)
	}
	r.Seconds = time.Since(began).Seconds()
	return r, nil
}

// readResponse sends a line, and reads the answer. Servers that are not the lab's may give anything.
func readResponse(ctx context.Context, conn net.Conn, r *observe.Response) error {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if _, err := conn.Write([]byte("GET /\r\n")); err != nil {
		return err
	}
	line, err := bufio.NewReaderSize(conn, 4096).ReadString('\n')
	if line == "" {
		return err
	}
	var a Answer
	if json.Unmarshal([]byte(line), &a) == nil {
		r.By, r.Client = a.Who(), a.Client
	}
	return nil
}

// reasonOf is an error in the words of the system, without addresses; late is the one of a timeout.
func reasonOf(err error, late string) string {
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return late
	case errors.Is(err, io.EOF):
		return "connection closed without an answer"
	}
	return strings.TrimSpace(err.Error())
}
