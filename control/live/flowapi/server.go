// Package flowapi serves an [observe.Observer] over HTTP: the flow API, which openapi.yaml
// describes. Its client is [observe.Client].
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
	// Doctor finds problems; nil: not supported.
	Doctor observe.Doctor
	// Requester sends requests; nil: not supported.
	Requester observe.Requester
	// Lab is the lab that is observed; nil: it is none.
	Lab observe.Lab
	// Balancing switches balancing algorithms; nil: not supported.
	Balancing observe.Balancing
	// Teacher teaches a course; nil: there is none.
	Teacher observe.Teacher
	// Page is the web page and its assets; nil: none. It is served without a token: it has no data,
	// and browsers cannot send a token to open it.
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
	Log    *slog.Logger // nil: none
}

// New returns the API as a handler, which is safe for concurrent use.
func New(c Config) http.Handler {
	return newServer(c, timing{
		writeTimeout: 30 * time.Second, answerTimeout: 2 * time.Minute, readTimeout: 30 * time.Second,
		firstSign: 100 * time.Millisecond, keepAlive: observe.KeepAliveSeconds * time.Second, poll: observe.PollSeconds * time.Second,
	})
}

// timing are the timeouts.
type timing struct {
	writeTimeout time.Duration // of one write: a client that does not read for this time is disconnected
	// answerTimeout is of a whole response that is not a stream.
	answerTimeout time.Duration
	readTimeout   time.Duration // of a body
	// firstSign is when a stream without records begins. Errors of invalid requests
	// are found earlier.
	firstSign time.Duration
	// keepAlive is the interval of keepalives in a stream, poll the maximum wait for a hold's
	// next generation.
	keepAlive, poll time.Duration
}

type server struct {
	Config
	timing
	mux      *http.ServeMux
	streams  *limit.Quota
	requests *limit.Quota
	shells   *limit.Quota
	topology *shared
	reviews  *reviews // nil: no Reviewer
}

// route is the handler of one method of a path.
type route struct {
	method, path string
	handle       handler
	guarded      bool // it changes something
	waits        bool // it counts as a stream, or takes almost no resources while it waits
}

// routes are all routes except the page's.
var routes = []route{
	{http.MethodGet, "/v1/flows", (*server).flows, false, true},
	{http.MethodGet, "/v1/flows/{id}", answering((*server).flow), false, false},
	{http.MethodGet, "/v1/services", (*server).services, false, false},
	{http.MethodGet, "/v1/services/{namespace}/{name}/manifest", answering((*server).manifest), false, false},
	{http.MethodGet, "/v1/table", answering((*server).tables), false, false},
	{http.MethodGet, "/v1/table/objects", (*server).tableObjects, false, false},
	{http.MethodGet, "/v1/stats", answering((*server).stats), false, false},
	{http.MethodGet, "/v1/status", answering((*server).status), false, false},
	{http.MethodGet, "/v1/topology", (*server).getTopology, false, false},
	{http.MethodPost, "/v1/explain", (*server).explain, false, false},
	{http.MethodGet, "/v1/findings", answering((*server).findings), false, false},
	{http.MethodPost, "/v1/why", (*server).why, false, false},
	{http.MethodPost, "/v1/requests", (*server).request, true, true},
	{http.MethodGet, "/v1/balance", answering((*server).algorithms), false, false},
	{http.MethodPost, "/v1/balance", (*server).balance, true, false},
	{http.MethodGet, "/v1/shadows", (*server).shadows, false, false},
	{http.MethodGet, "/v1/lab", answering((*server).labStatus), false, false},
	{http.MethodPost, "/v1/lab/changes", (*server).changeLab, true, false},
	{http.MethodGet, "/v1/lab/faults", answering((*server).faults), false, false},
	{http.MethodPost, "/v1/lab/faults", (*server).addFault, true, false},
	{http.MethodDelete, "/v1/lab/faults", answering((*server).removeFault), true, false},
	{http.MethodDelete, "/v1/lab/faults/{id}", answering((*server).removeFault), true, false},
	{http.MethodGet, "/v1/lesson", (*server).getLesson, false, true},
	{http.MethodPost, "/v1/lesson", (*server).doLesson, true, true},
	{http.MethodGet, "/v1/lesson/shell", (*server).lessonShell, true, true},
	{http.MethodGet, "/v1/holds", answering((*server).holds), false, false},
	{http.MethodPost, "/v1/holds", (*server).hold, true, false},
	{http.MethodGet, "/v1/holds/{id}", (*server).getHold, false, true},
	{http.MethodDelete, "/v1/holds/{id}", (*server).cancelHold, true, false},
	{http.MethodPost, "/v1/holds/{id}/act", (*server).act, true, false},
	{http.MethodGet, "/openapi.yaml", (*server).description, false, false},
}

func newServer(c Config, t timing) *server {
	if c.MaxStreams == 0 {
		c.MaxStreams = DefaultMaxStreams
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	quarter := c.MaxStreams / 4
	s := &server{
		Config: c, timing: t, mux: http.NewServeMux(), topology: newShared(),
		streams:  c.Limits.New(serverName, "streams of flows", limit.Numbers{Total: c.MaxStreams, Each: max(2, quarter), Reserved: quarter}),
		requests: c.Limits.New(serverName, "requests", requests),
		shells:   new(limit.Set).New(serverName, "shells", shells), // of labs, which have no metrics
	}
	if c.Reviewer != nil {
		s.reviews = newReviews(c.Reviewer, c.Limits)
	}
	byPath := make(map[string][]route)
	for _, r := range routes {
		byPath[r.path] = append(byPath[r.path], r)
	}
	for path, methods := range byPath {
		s.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, methods) })
	}
	s.mux.HandleFunc("/", s.servePage)
	return s
}

// ServeHTTP checks the client before the path.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	if err := s.admit(r); err != nil {
		s.fail(w, r, err)
		return
	}
	if clean := path.Clean(r.URL.Path); clean != r.URL.Path { // the mux would redirect
		s.fail(w, r, notFound("%s not found: use %s", r.URL.Path, clean))
		return
	}
	s.mux.ServeHTTP(w, r)
}

// serve serves a path of the API.
func (s *server) serve(w http.ResponseWriter, r *http.Request, methods []route) {
	var allowed []string
	for _, route := range methods {
		if r.Method == route.method || r.Method == http.MethodHead && route.method == http.MethodGet {
			if err := s.serveRoute(w, r, &route); err != nil {
				s.fail(w, r, err)
			}
			return
		}
		allowed = append(allowed, route.method)
		if route.method == http.MethodGet {
			allowed = append(allowed, http.MethodHead)
		}
	}
	s.refuseMethod(w, r, allowed)
}

func (s *server) serveRoute(w http.ResponseWriter, r *http.Request, route *route) error {
	if err := s.authorize(r, route.guarded); err != nil {
		return err
	}
	if !route.waits {
		release, err := take(s.requests, r)
		if err != nil {
			return err
		}
		defer release()
	}
	return route.handle(s, w, r)
}

// take takes a share of a quota for the client of a request.
func take(q *limit.Quota, r *http.Request) (release func(), err error) {
	release, err = q.Take(limit.Of(r))
	if err != nil {
		err = &observe.Error{Status: limit.Status(err), Message: err.Error()}
	}
	return release, err
}

// servePage serves every other path.
func (s *server) servePage(w http.ResponseWriter, r *http.Request) {
	switch {
	case s.Page == nil || r.URL.Path == "/v1" || strings.HasPrefix(r.URL.Path, "/v1/"):
		s.fail(w, r, notFound("%s not found: see GET /openapi.yaml", r.URL.Path))
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		s.refuseMethod(w, r, []string{http.MethodGet, http.MethodHead})
	default:
		w.Header().Set("Content-Security-Policy", pagePolicy)
		s.Page.ServeHTTP(w, r)
	}
}

// refuseMethod responds to OPTIONS, and rejects other methods.
func (s *server) refuseMethod(w http.ResponseWriter, r *http.Request, allowed []string) {
	slices.Sort(allowed)
	list := strings.Join(append(allowed, http.MethodOptions), ", ")
	w.Header().Set("Allow", list)
	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	s.fail(w, r, &observe.Error{Status: http.StatusMethodNotAllowed, Message: r.Method + " " + r.URL.Path + ": want one of " + list})
}
