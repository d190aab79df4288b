// Package remote observes nodes by their flow APIs: one by a [Client], all of a cluster by a [Relay].
package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Client is a client of a flow API. It is an [Observer], a [Holder] and, of the flow API of one, a [Lab].
type Client struct {
	server string // as it was given
	base   *url.URL
	token  string
	absent string // see [ClientOptions.Absent]
	http   *http.Client
	// silence is the timeout of a stream without records or keepalives.
	silence time.Duration
}

var _ interface {
	observe.Observer
	observe.Holder
	labapi.Lab
} = (*Client)(nil)

// ClientOptions are credentials and settings that a server may require.
type ClientOptions struct {
	// Token is sent with each request; empty: none. It is never sent unencrypted to another
	// machine.
	Token string
	// CAFile has the certificates, in PEM, of the authorities that may sign the server's
	// certificate; empty: the system's.
	CAFile string
	// Absent is the advice if nothing listens at the server's address; empty: to start something.
	Absent string
}

// connectTimeout is the time limit for establishing a connection.
const connectTimeout = 10 * time.Second

// streamTimeout is the timeout of a server without records or keepalives: longer than [PollSeconds].
const streamTimeout = 3 * observe.KeepAliveSeconds * time.Second

// maxResponseSize is the maximum size of a response that is not a stream, in bytes.
const maxResponseSize = 256 << 20

// NewClient returns a client of the server at HOST:PORT, http://HOST:PORT, https://HOST:PORT or
// a Unix socket (see [SocketPath]). It does not connect yet.
func NewClient(server string, o ClientOptions) (*Client, error) {
	dialer := &net.Dialer{Timeout: connectTimeout}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, DisableCompression: true,
		TLSHandshakeTimeout: connectTimeout, IdleConnTimeout: time.Minute, ResponseHeaderTimeout: streamTimeout,
	}
	c := &Client{server: server, token: o.Token, absent: o.Absent, silence: streamTimeout}
	c.http = &http.Client{Transport: transport, CheckRedirect: noRedirect}
	wrong := fmt.Errorf("server %q: want HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:/PATH", server)
	if path, ok := observe.SocketPath(server); ok {
		if !filepath.IsAbs(path) {
			return nil, wrong
		}
		c.base = &url.URL{Scheme: "http", Host: "localhost", Path: "/"}
		transport.Proxy = nil
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", path)
		}
		return c, nil
	}
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	u, err := url.Parse(server)
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, wrong
	case u.Fragment != "": // as the address of the web page has it
		u.Fragment, u.RawFragment = "", ""
		return nil, fmt.Errorf("server %q: want the address only; give the token separately", u.Redacted())
	case u.User != nil || u.RawQuery != "":
		return nil, fmt.Errorf("server %q: want the address only", u.Redacted())
	case u.Scheme == "http" && o.Token != "" && !observe.IsLoopback(u.Hostname()):
		return nil, fmt.Errorf("server %q: a token is not sent unencrypted to another machine: use https://, or forward a local port to it (kubectl port-forward)", c.server)
	}
	c.base = u.JoinPath("/")
	if o.CAFile != "" {
		if transport.TLSClientConfig, err = trustedCAs(o.CAFile); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// NewClientOver returns a client that sends its requests by a transport, which finds the server and
// authorizes them. Errors name the server by the name.
func NewClientOver(name string, transport http.RoundTripper) *Client {
	return &Client{
		server: name, base: &url.URL{Scheme: "http", Host: "localhost", Path: "/"}, silence: streamTimeout,
		http: &http.Client{Transport: transport, CheckRedirect: noRedirect},
	}
}

// noRedirect follows no redirects: a flow API has none.
func noRedirect(r *http.Request, _ []*http.Request) error {
	return fmt.Errorf("unexpected redirect to %s: not a flow API", r.URL.Redacted())
}

// trustedCAs returns a TLS configuration that trusts the certificates in the file.
func trustedCAs(file string) (*tls.Config, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the CA certificates: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate in PEM form (-----BEGIN CERTIFICATE-----)", file)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// request sends a request; the caller closes the response's body. Each element of the path is
// escaped.
func (c *Client) request(ctx context.Context, method string, path []string, query url.Values, body any) (*http.Response, error) {
	escaped := []string{"v1"}
	for _, element := range path {
		if element == "" || element == "." || element == ".." { // no names of anything
			return nil, &observe.Error{Status: http.StatusNotFound, Message: fmt.Sprintf("%q not found", element)}
		}
		escaped = append(escaped, url.PathEscape(element))
	}
	u := c.base.JoinPath(escaped...)
	u.RawQuery = query.Encode()
	var reader io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("cannot encode the request as JSON: %w", err)
		}
		reader = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(ctx, method, u.String(), reader)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.server, err)
	}
	r.Header.Set("Accept", "application/x-ndjson, application/json")
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, c.explain(ctx, err)
	}
	if answer.StatusCode/100 != 2 {
		defer answer.Body.Close()
		return nil, c.refusal(answer)
	}
	return answer, nil
}

// explain adds advice to a connection error.
func (c *Client) explain(ctx context.Context, err error) error {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errSilent):
		return fmt.Errorf("%s: %w", c.server, cause)
	case cause != nil:
		return cause
	}
	if inRequest, ok := errors.AsType[*url.Error](err); ok { // its text repeats the address
		err = inRequest.Err
	}
	switch {
	case c.absent != "" && (errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)):
		return fmt.Errorf("%s (%w)", c.absent, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s: connection refused, no flow API: start a lab (nfqproxy lab up kind), or a daemon with --flow-api; for another machine, check kubectl port-forward (%w)", c.server, err)
	case errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("%s: socket not found: start nfqproxy with --flow-api %s (%w)", c.server, c.server, err)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%s: permission denied: run as the socket's owner or a member of its group (%w)", c.server, err)
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return fmt.Errorf("%s: certificate signed by an unknown authority: give the file of its CA certificate (%w)", c.server, err)
	case errors.Is(err, http.ErrSchemeMismatch):
		return fmt.Errorf("%s: the server does not use TLS: try http:// (%w)", c.server, err)
	}
	return fmt.Errorf("%s: %w", c.server, err)
}

// refusal converts an error response.
func (c *Client) refusal(answer *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	var e observe.Error
	if kind, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type")); kind != "application/json" || json.Unmarshal(b, &e) != nil || e.Message == "" {
		text, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
		if strings.Contains(text, "HTTP request to an HTTPS server") { // net/http's own answer
			return fmt.Errorf("%s: the server uses TLS: try https://", c.server)
		}
		return fmt.Errorf("%s: not a flow API: the response is %s", c.server, answer.Status)
	}
	if e.Status = answer.StatusCode; e.Status >= 500 {
		return fmt.Errorf("%s: %s", c.server, e.Message)
	}
	return &e
}

// exchange sends a request and reads its JSON response.
func (c *Client) exchange(ctx context.Context, method string, path []string, query url.Values, body, answer any) error {
	r, err := c.request(ctx, method, path, query, body)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if answer == nil {
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(r.Body, maxResponseSize))
	if err != nil {
		return c.explain(ctx, fmt.Errorf("incomplete response: %w", err))
	}
	if err := json.Unmarshal(b, answer); err != nil {
		return fmt.Errorf("%s: not a flow API: %w", c.server, err)
	}
	if r, ok := answer.(*flow.Record); ok {
		return c.checkVersion(r.Version)
	}
	return nil
}

// checkVersion rejects records of another schema version.
func (c *Client) checkVersion(version int) error {
	if version == flow.Version {
		return nil
	}
	return fmt.Errorf("%s: records of version %d, this program reads version %d: use an nfqproxy of the server's version", c.server, version, flow.Version)
}
