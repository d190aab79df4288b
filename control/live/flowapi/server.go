// Package flowapi serves an [observe.Observer] over HTTP: the flow API, which openapi.yaml
// describes. Its client is in package remote (control/view/remote).
package flowapi

import (
	_ "embed"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/control/observe"
)

// DefaultMaxStreams is the limit of concurrent lists and streams of flows. Each client may use a
// quarter of them, and a quarter is reserved for root and the user that the server runs as (see
// [limit.Client]).
const DefaultMaxStreams = 32

// The limits of connections, and of requests in progress, without streams and requests that wait
// for a hold.
var (
	connections = limit.Numbers{Total: 256, Each: 64, Reserved: 64}
	requests    = limit.Numbers{Total: 32, Each: 8, Reserved: 8}
)

// serverName is the server's name in metrics.
const serverName = "flow API"

// Description is openapi.yaml, which the server serves.
//
//go:embed openapi.yaml
var Description []byte

// Config is the configuration of the API.
type Config struct {
	Observer observe.Observer
	// Balancing switches balancing algorithms; nil: not supported.
	Balancing observe.Balancing
	// Routes are served besides those of every daemon, or in their place: what views answer, for example.
	Routes []Route
	// Page is the web page and its assets; nil: none. It is served without a token: it has no data,
	// and browsers cannot send a token to open it. It sets its own Content-Security-Policy.
	Page http.Handler
	// Token is required by requests that change something and, except over a Unix socket, whose mode
	// selects its readers, by all others but those for the page. Empty: such requests are rejected.
	Token string
	// Reviewer checks tokens that are not Token, for the same requests; nil: there are no others.
	Reviewer Reviewer
	// OpenLoopback: over a loopback address, requests that change nothing need no token. It is for
	// labs: any process of the machine may read there, and a cluster's flows are confidential.
	OpenLoopback bool
	// Hosts are the accepted Host headers, without a port, besides loopback ones and the listen
	// address. Others are rejected: a page of a name that resolves to this server could read
	// everything (DNS rebinding).
	Hosts []string
	// MaxStreams is the limit of concurrent lists and streams of flows; 0: DefaultMaxStreams.
	MaxStreams int
	// Limits is the set of the server's quotas; nil: none.
	Limits *limit.Set
	// Timing are the timeouts; nil: the usual ones.
	Timing *Timing
	Log    *slog.Logger // nil: none
}

// Timing are the timeouts of the API.
type Timing struct {
	Write time.Duration // of one write: a client that does not read for this time is disconnected
	// Answer is of a whole response that is not a stream.
	Answer time.Duration
	Read   time.Duration // of a body
	// FirstSign is when a stream without records begins. Errors of invalid requests
	// are found earlier.
	FirstSign time.Duration
	// KeepAlive is the interval of keepalives in a stream, Poll the maximum wait for a hold's
	// next generation.
	KeepAlive, Poll time.Duration
}

var usual = Timing{
	Write: 30 * time.Second, Answer: 2 * time.Minute, Read: 30 * time.Second,
	FirstSign: 100 * time.Millisecond, KeepAlive: observe.KeepAliveSeconds * time.Second, Poll: observe.PollSeconds * time.Second,
}

// API has the helpers for handlers of routes.
type API struct {
	Config
	mux      *http.ServeMux
	topology *shared
	reviews  *reviews // nil: no Reviewer

	connections, streams, requests *limit.Quota
}

// Route is the handler of one method of a path.
type Route struct {
	Method, Path string // the path as in [http.ServeMux]
	Handle       Handler
	Guarded      bool // it changes something: the token is required
	Waits        bool // it counts as a stream, or takes almost no resources while it waits
	// Token returns the token of a request whose client cannot set headers; empty: it has none. nil: clients can.
	Token func(*http.Request) string
}

// routes are those of every daemon.
var routes = []Route{
	{Method: http.MethodGet, Path: "/v1/flows", Handle: (*API).flows, Waits: true},
	{Method: http.MethodGet, Path: "/v1/flows/{id}", Handle: Answering((*API).flow)},
	{Method: http.MethodGet, Path: "/v1/services", Handle: (*API).services},
	{Method: http.MethodGet, Path: "/v1/table", Handle: Answering((*API).tables)},
	{Method: http.MethodGet, Path: "/v1/table/objects", Handle: AnsweringQuery(observe.QueryOf[observe.ObjectsQuery], (*API).tableObjects)},
	{Method: http.MethodGet, Path: "/v1/stats", Handle: Answering((*API).stats)},
	{Method: http.MethodGet, Path: "/v1/status", Handle: Answering((*API).status)},
	{Method: http.MethodGet, Path: "/v1/topology", Handle: (*API).getTopology},
	{Method: http.MethodPost, Path: "/v1/explain", Handle: AnsweringBody((*API).explain)},
	{Method: http.MethodGet, Path: "/v1/balance", Handle: Answering((*API).algorithms)},
	{Method: http.MethodPost, Path: "/v1/balance", Handle: (*API).balance, Guarded: true},
	{Method: http.MethodGet, Path: "/v1/shadows", Handle: AnsweringQuery(observe.ServiceOf, (*API).shadows)},
	{Method: http.MethodGet, Path: "/v1/holds", Handle: Answering((*API).holds)},
	{Method: http.MethodPost, Path: "/v1/holds", Handle: (*API).hold, Guarded: true},
	{Method: http.MethodGet, Path: "/v1/holds/{id}", Handle: AnsweringQuery(observe.AfterOf, (*API).getHold), Waits: true},
	{Method: http.MethodDelete, Path: "/v1/holds/{id}", Handle: (*API).cancelHold, Guarded: true},
	{Method: http.MethodPost, Path: "/v1/holds/{id}/act", Handle: AnsweringBody((*API).act), Guarded: true},
	{Method: http.MethodGet, Path: "/openapi.yaml", Handle: (*API).description},
}

// Routes returns the routes that every daemon serves.
func Routes() []Route { return slices.Clone(routes) }

// New returns the API as a handler, which is safe for concurrent use.
func New(c Config) *API {
	if c.MaxStreams == 0 {
		c.MaxStreams = DefaultMaxStreams
	}
	if c.Balancing == nil {
		c.Balancing = noBalancing{}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Timing == nil {
		c.Timing = &usual
	}
	quarter := c.MaxStreams / 4
	s := &API{
		Config: c, mux: http.NewServeMux(), topology: newShared(),
		connections: c.Limits.Connections(serverName, connections),
		streams:     c.Limits.New(serverName, "streams of flows", limit.Numbers{Total: c.MaxStreams, Each: max(2, quarter), Reserved: quarter}),
		requests:    c.Limits.New(serverName, "requests", requests),
	}
	if c.Reviewer != nil {
		s.reviews = newReviews(c.Reviewer, c.Limits)
	}
	byPath := make(map[string][]Route)
	for _, r := range slices.Concat(c.Routes, routes) {
		byPath[r.Path] = append(byPath[r.Path], r)
	}
	for path, methods := range byPath {
		s.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { s.servePath(w, r, methods) })
	}
	s.mux.HandleFunc("/", s.servePage)
	return s
}

// ServeHTTP checks the client before the path.
func (s *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	if err := s.admit(r); err != nil {
		s.Fail(w, r, err)
		return
	}
	if clean := path.Clean(r.URL.Path); clean != r.URL.Path { // the mux would redirect
		s.Fail(w, r, NotFound("%s not found: use %s", r.URL.Path, clean))
		return
	}
	s.mux.ServeHTTP(w, r)
}

// servePath serves a path of the API.
func (s *API) servePath(w http.ResponseWriter, r *http.Request, methods []Route) {
	var allowed []string
	for _, route := range methods {
		if r.Method == route.Method || r.Method == http.MethodHead && route.Method == http.MethodGet {
			if err := s.serveRoute(w, r, &route); err != nil {
				s.Fail(w, r, err)
			}
			return
		}
		allowed = append(allowed, route.Method)
		if route.Method == http.MethodGet {
			allowed = append(allowed, http.MethodHead)
		}
	}
	s.refuseMethod(w, r, allowed)
}

func (s *API) serveRoute(w http.ResponseWriter, r *http.Request, route *Route) error {
	if err := s.authorize(r, route); err != nil {
		return err
	}
	if !route.Waits {
		release, err := Take(s.requests, r)
		if err != nil {
			return err
		}
		defer release()
	}
	return route.Handle(s, w, r)
}

// TakeStream takes a share of the quota of streams for the client of a request that may wait long.
func (s *API) TakeStream(r *http.Request) (release func(), err error) { return Take(s.streams, r) }

// Take takes a share of a quota for the client of a request.
func Take(q *limit.Quota, r *http.Request) (release func(), err error) {
	release, err = q.Take(limit.Of(r))
	if err != nil {
		err = &observe.Error{Status: limit.Status(err), Message: err.Error()}
	}
	return release, err
}

// servePage serves every other path.
func (s *API) servePage(w http.ResponseWriter, r *http.Request) {
	switch {
	case s.Page == nil || r.URL.Path == "/v1" || strings.HasPrefix(r.URL.Path, "/v1/"):
		s.Fail(w, r, NotFound("%s not found: see GET /openapi.yaml", r.URL.Path))
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		s.refuseMethod(w, r, []string{http.MethodGet, http.MethodHead})
	default:
		s.Page.ServeHTTP(w, r)
	}
}

// refuseMethod responds to OPTIONS, and rejects other methods.
func (s *API) refuseMethod(w http.ResponseWriter, r *http.Request, allowed []string) {
	slices.Sort(allowed)
	list := strings.Join(append(slices.Compact(allowed), http.MethodOptions), ", ")
	w.Header().Set("Allow", list)
	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	s.Fail(w, r, &observe.Error{Status: http.StatusMethodNotAllowed, Message: r.Method + " " + r.URL.Path + ": want one of " + list})
}
