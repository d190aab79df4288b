package viewapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"

	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
)

// Upstream is the flow API of a daemon at a Unix socket, for a server that stands in front of it. What the daemon answers
// passes through as it is; what it does not have is answered by [Routes]. It is safe for concurrent use.
type Upstream struct {
	client *http.Client
	log    *slog.Logger
}

// NewUpstream returns the Upstream at the path of a socket. It does not connect yet.
func NewUpstream(path string, log *slog.Logger) *Upstream {
	var dialer net.Dialer
	return &Upstream{log: log, client: &http.Client{Transport: &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dialer.DialContext(ctx, "unix", path) },
		DisableCompression: true, // as it is
	}}}
}

// address is any that the daemon takes for its own.
var address = &url.URL{Scheme: "http", Host: "localhost"}

// Routes returns the routes of a daemon, for [flowapi.Config.Routes]: each passes its request on, with the client's token,
// which the daemon checks, too.
func (u *Upstream) Routes() []flowapi.Route {
	routes := flowapi.Routes()
	for i := range routes {
		routes[i].Handle = u.forward
	}
	return routes
}

func (u *Upstream) forward(a *flowapi.API, w http.ResponseWriter, r *http.Request) error {
	proxy := &httputil.ReverseProxy{
		Transport:     u.client.Transport,
		FlushInterval: -1, // at once: streams
		ErrorLog:      slog.NewLogLogger(u.log.Handler(), slog.LevelDebug),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(address)
			p.Out.Host = address.Host
			p.Out.Header.Del("Authorization")
			p.Out.Header.Del("Origin") // checked
			p.Out.Header.Set(flowapi.TokenHeader, flowapi.TokenOf(r))
		},
		ModifyResponse: func(response *http.Response) error {
			for name := range w.Header() { // those of every response of the API
				response.Header.Del(name)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			a.Fail(w, r, &observe.Error{Status: http.StatusServiceUnavailable, Message: "the daemon does not answer: " + err.Error()})
		},
	}
	proxy.ServeHTTP(w, r)
	return nil
}

// Review has the daemon check a token: one that a request has must be valid, even where reading needs none. It makes an
// Upstream a [flowapi.Reviewer].
func (u *Upstream) Review(ctx context.Context, token string) (wrong string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.JoinPath("/v1/stats").String(), nil)
	if err != nil {
		return "", err
	}
	request.Header.Set(flowapi.TokenHeader, token)
	response, err := u.client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK {
		return "", nil
	}
	var fault observe.Error
	text, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err == nil {
		err = json.Unmarshal(text, &fault)
	}
	switch {
	case err != nil:
		return "", err
	case response.StatusCode == http.StatusUnauthorized || response.StatusCode == http.StatusForbidden:
		return fault.Message, nil
	}
	return "", errors.New(fault.Message)
}
