package e2etest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// HTTPClient returns a client in a network namespace, with [Timeout].
func HTTPClient(ns *netns.Namespace) *http.Client {
	return &http.Client{Timeout: Timeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return ns.Dial(ctx, network, AnyPort, netip.MustParseAddrPort(address))
		},
	}}
}

// Ports of the daemon on each node.
const (
	HealthPort  = 10256
	MetricsPort = 10249
)

// TryGet gets a page of the daemon of a node, from the node itself.
func (c *Cluster) TryGet(node string, port int, path string) (code int, body string, err error) {
	code, _, body, err = c.Fetch(node, fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
	return code, body, err
}

// Get is TryGet for pages that must be there.
func (c *Cluster) Get(node string, port int, path string) (code int, body string) {
	c.T.Helper()
	code, body, err := c.TryGet(node, port, path)
	c.Must(err)
	return code, body
}

// Fetch gets a page from a host of the lab.
func (c *Cluster) Fetch(host, url string) (code int, header http.Header, body string, err error) {
	c.T.Helper()
	response, err := HTTPClient(c.Host(host)).Get(url)
	if err != nil {
		return 0, nil, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, response.Header, string(text), err
}

// Metric returns one sample of a daemon's metrics.
func (c *Cluster) Metric(node, name string) float64 {
	c.T.Helper()
	code, body := c.Get(node, MetricsPort, "/metrics")
	for s := bufio.NewScanner(strings.NewReader(body)); s.Scan(); {
		if text, ok := strings.CutPrefix(s.Text(), name+" "); ok {
			v, err := strconv.ParseFloat(text, 64)
			c.Must(err)
			return v
		}
	}
	c.T.Fatalf("%s: status %d, no metric %s", node, code, name)
	return 0
}
