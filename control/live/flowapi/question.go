package flowapi

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

func (s *API) flow(r *http.Request) (*flow.Record, error) {
	return s.Observer.Flow(r.Context(), r.PathValue("id"))
}

func (s *API) tables(r *http.Request) (observe.TableList, error) {
	tables, err := s.Observer.Tables(r.Context())
	return observe.TableList{Tables: NotNull(tables)}, err
}

func (s *API) tableObjects(r *http.Request, q observe.ObjectsQuery) (*observe.TableObjects, error) {
	if _, _, err := q.Parse(); err != nil {
		return nil, err
	}
	return s.Observer.Objects(r.Context(), q)
}

func (s *API) stats(r *http.Request) (observe.StatsList, error) {
	nodes, err := s.Observer.Stats(r.Context())
	return observe.StatsList{Nodes: NotNull(nodes)}, err
}

func (s *API) status(r *http.Request) (observe.StatusList, error) {
	nodes, err := s.Observer.Status(r.Context())
	return observe.StatusList{Nodes: NotNull(nodes)}, err
}

// services writes an [observe.Services], one service after the other.
func (s *API) services(w http.ResponseWriter, r *http.Request) error {
	q, err := parameters(r, observe.QueryOf[observe.ServiceQuery])
	if err == nil {
		_, err = q.Parse()
	}
	if err != nil {
		return err
	}
	const list = `"services":[`
	out := pieces{response: response{API: s, w: w, contentType: "application/json", status: http.StatusOK, until: time.Now().Add(s.Timing.Answer)}}
	var answer observe.Services // without the services
	// around is what is before and behind the services.
	around := func() (before, behind string, err error) {
		b, err := encode(&answer)
		// In a text of JSON the quotes are escaped: this can only be the field.
		before, behind, _ = strings.Cut(string(b), list)
		return before, behind, err
	}
	separator := ""
	next, err := observe.EachService(r.Context(), s.Observer, q, func(head *observe.Services) error {
		answer = *head
		answer.Services = []observe.Service{}
		before, _, err := around()
		out.text(before, list)
		return err
	}, func(service *observe.Service) error {
		out.text(separator)
		separator = ","
		return out.value(service)
	})
	if err == nil {
		answer.Next = next
		_, behind, _ := around()
		out.text(behind)
		err = out.flush()
	}
	return out.end(r, err, "response aborted", "path", r.URL.Path)
}

func (s *API) getTopology(w http.ResponseWriter, r *http.Request) error {
	if err := NoParameters(r); err != nil {
		return err
	}
	content, done, err := s.topology.get(r.Context(), func() ([]byte, error) {
		topology, err := s.Observer.Topology(r.Context())
		if err != nil {
			return nil, err
		}
		return encode(topology)
	})
	if err != nil {
		return err
	}
	defer done()
	s.write(w, "application/json", http.StatusOK, content)
	return nil
}

func (s *API) explain(r *http.Request, q observe.Question) (*flow.Record, error) {
	return s.Observer.Explain(r.Context(), q)
}

func (s *API) description(w http.ResponseWriter, r *http.Request) error {
	if err := NoParameters(r); err != nil {
		return err
	}
	s.write(w, "application/yaml", http.StatusOK, Description)
	return nil
}

// NotNull makes JSON's empty list of nil.
func NotNull[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

// noBalancing is the Balancing of a server without one.
type noBalancing struct{}

var errNoBalancing = NotFound("balancing algorithms cannot be switched on this server; where nfqproxy only observes, another service proxy selects the endpoints")

func (noBalancing) Algorithms(context.Context) (*observe.Algorithms, error) {
	return nil, errNoBalancing
}
func (noBalancing) Balance(context.Context, observe.BalanceChange) error { return errNoBalancing }
func (noBalancing) Shadows(context.Context, string) (*observe.Shadows, error) {
	return nil, errNoBalancing
}

func (s *API) algorithms(r *http.Request) (*observe.Algorithms, error) {
	return s.Balancing.Algorithms(r.Context())
}

func (s *API) shadows(r *http.Request, service string) (*observe.Shadows, error) {
	return s.Balancing.Shadows(r.Context(), service)
}

func (s *API) balance(w http.ResponseWriter, r *http.Request) error {
	var c observe.BalanceChange
	if err := s.ReadQuestion(w, r, &c); err != nil {
		return err
	}
	if _, err := c.Name(); err != nil {
		return err
	}
	if err := s.Balancing.Balance(r.Context(), c); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// noHolder is the Holder of an Observer without one.
type noHolder struct{ err error }

func (n noHolder) Hold(context.Context, observe.HoldQuery) (*observe.Hold, error)  { return nil, n.err }
func (n noHolder) Holds(context.Context) ([]observe.Hold, error)                   { return nil, n.err }
func (n noHolder) Get(context.Context, string, uint64) (*observe.Hold, error)      { return nil, n.err }
func (n noHolder) Act(context.Context, string, observe.Act) (*observe.Hold, error) { return nil, n.err }
func (n noHolder) Cancel(context.Context, string) error                            { return n.err }

// holder returns the Observer's Holder, or a noHolder with the reason.
func (s *API) holder(ctx context.Context) observe.Holder {
	if h := s.Observer.Holder(); h != nil {
		return h
	}
	if nodes, err := s.Observer.Status(ctx); err == nil && len(nodes) == 1 && nodes[0].Daemon != nil && nodes[0].Daemon.Observed != "" {
		return noHolder{NotFound("holding flows is not possible: %s decides, and nfqproxy only observes", nodes[0].Daemon.Observed)}
	}
	return noHolder{NotFound("holding flows is not available on this server: the daemon requires --flow-api-holds")}
}

func (s *API) holds(r *http.Request) (observe.HoldList, error) {
	holds, err := s.holder(r.Context()).Holds(r.Context())
	return observe.HoldList{Holds: NotNull(holds)}, err
}

func (s *API) hold(w http.ResponseWriter, r *http.Request) error {
	var q observe.HoldQuery
	if err := s.ReadQuestion(w, r, &q); err != nil {
		return err
	}
	if _, _, err := q.Parse(); err != nil {
		return err
	}
	hold, err := s.holder(r.Context()).Hold(r.Context(), q)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/holds/"+url.PathEscape(hold.ID))
	return s.Answer(w, http.StatusCreated, hold)
}

// getHold waits for the hold's next generation, but for a limited time: proxies on the way and the
// client time out without a response.
func (s *API) getHold(r *http.Request, after uint64) (*observe.Hold, error) {
	ctx, cancel := context.WithTimeout(r.Context(), s.Timing.Poll)
	defer cancel()
	return s.holder(ctx).Get(ctx, r.PathValue("id"), after)
}

func (s *API) act(r *http.Request, a observe.Act) (*observe.Hold, error) {
	if err := a.Check(); err != nil {
		return nil, err
	}
	return s.holder(r.Context()).Act(r.Context(), r.PathValue("id"), a)
}

func (s *API) cancelHold(w http.ResponseWriter, r *http.Request) error {
	if err := NoParameters(r); err != nil {
		return err
	}
	if err := s.holder(r.Context()).Cancel(r.Context(), r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// sharedAge is how long a response made for one client is reused for others.
const sharedAge = time.Second

// maxVersions is the maximum number of versions of a shared response: the newest, and one that slow
// clients still read. While there are two, other clients get the newest of any age, which is
// bounded by the timeout of a response.
const maxVersions = 2

// shared is a response that is shared by requests at about the same time.
type shared struct {
	making *semaphore.Weighted // held while it is made

	mu     sync.Mutex
	newest *version
	live   int // versions that exist
}

// version is one of the responses. Its fields but content are guarded by shared.mu.
type version struct {
	content []byte
	made    time.Time
	readers int
}

func newShared() *shared { return &shared{making: semaphore.NewWeighted(1)} }

// get returns the response; make creates it if there is none that is recent enough. The caller must
// call done when it was written.
func (s *shared) get(ctx context.Context, make func() ([]byte, error)) (content []byte, done func(), err error) {
	if err := s.making.Acquire(ctx, 1); err != nil {
		return nil, nil, err
	}
	defer s.making.Release(1)
	v := s.reuse() // made by another request meanwhile
	if v == nil {
		if content, err = make(); err != nil {
			return nil, nil, err
		}
		v = s.add(content)
	}
	return v.content, sync.OnceFunc(func() { s.leave(v) }), nil
}

// reuse returns the newest version with one more reader; nil: make a new one.
func (s *shared) reuse() *version {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.newest
	if v == nil || time.Since(v.made) > sharedAge && s.live < maxVersions {
		return nil
	}
	v.readers++
	return v
}

// add makes the content the newest version, with one reader.
func (s *shared) add(content []byte) *version {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := &version{content: content, made: time.Now(), readers: 1}
	s.newest = v
	s.live++
	return v
}

// leave removes a reader. A version without readers is freed.
func (s *shared) leave(v *version) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.readers--; v.readers > 0 {
		return
	}
	s.live--
	if s.newest == v {
		s.newest = nil
	}
}
