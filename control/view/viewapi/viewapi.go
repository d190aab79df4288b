// Package viewapi has the routes of the flow API that daemons do not serve: what views answer (problems and their causes,
// manifests), and what a lab and a course do. A lab and "nfqproxy web" serve them beside those of package flowapi.
package viewapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/control/observe"
)

// Config has the servers of the routes. The routes of a nil field answer that they are not supported.
type Config struct {
	Doctor    Doctor           // finds problems
	Requester labapi.Requester // sends requests
	Lab       labapi.Lab       // is observed
	Teacher   labapi.Teacher   // teaches a course
}

type views struct {
	Config
	shells *limit.Quota
}

// Routes returns the routes, for [flowapi.Config.Routes].
func Routes(c Config) []flowapi.Route {
	v := &views{Config: c, shells: new(limit.Set).New("flow API", "shells", shells)} // of labs, which have no metrics
	return []flowapi.Route{
		{Method: http.MethodGet, Path: "/v1/services/{namespace}/{name}/manifest", Handle: flowapi.Answering(v.manifest)},
		{Method: http.MethodGet, Path: "/v1/findings", Handle: flowapi.Answering(v.findings)},
		{Method: http.MethodPost, Path: "/v1/why", Handle: flowapi.AnsweringBody(v.why)},
		{Method: http.MethodPost, Path: "/v1/requests", Handle: v.request, Guarded: true, Waits: true},
		{Method: http.MethodGet, Path: "/v1/lab", Handle: flowapi.Answering(v.labStatus)},
		{Method: http.MethodPost, Path: "/v1/lab/changes", Handle: flowapi.AnsweringBody(v.changeLab), Guarded: true},
		{Method: http.MethodGet, Path: "/v1/lab/faults", Handle: flowapi.Answering(v.faults)},
		{Method: http.MethodPost, Path: "/v1/lab/faults", Handle: v.addFault, Guarded: true},
		{Method: http.MethodDelete, Path: "/v1/lab/faults", Handle: flowapi.Answering(v.removeFault), Guarded: true},
		{Method: http.MethodDelete, Path: "/v1/lab/faults/{id}", Handle: flowapi.Answering(v.removeFault), Guarded: true},
		{Method: http.MethodGet, Path: "/v1/lesson", Handle: flowapi.AnsweringQuery(observe.AfterOf, v.getLesson), Waits: true},
		{Method: http.MethodPost, Path: "/v1/lesson", Handle: v.doLesson, Guarded: true, Waits: true},
		{Method: http.MethodGet, Path: "/v1/lesson/shell", Handle: v.lessonShell, Guarded: true, Waits: true, Token: protocolToken},
	}
}

// teacher returns the Teacher, if there is one.
func (v *views) teacher() (labapi.Teacher, error) {
	if v.Teacher == nil {
		return nil, flowapi.NotFound("there is no course here: \"nfqproxy learn\" starts one")
	}
	return v.Teacher, nil
}

func (v *views) getLesson(a *flowapi.API, r *http.Request, after uint64) (*labapi.Lesson, error) {
	t, err := v.teacher()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), a.Timing.Poll)
	defer cancel()
	return t.Lesson(ctx, after)
}

// doLesson carries a command out. One that begins a unit ends this server, with the lab that it is of: the response is then
// early, and the server of the next lab shows the result.
func (v *views) doLesson(a *flowapi.API, w http.ResponseWriter, r *http.Request) error {
	var c labapi.LessonCommand
	if err := a.ReadQuestion(w, r, &c); err != nil {
		return err
	}
	t, err := v.teacher()
	if err != nil {
		return err
	}
	var reply labapi.LessonReply
	done := make(chan error, 1)
	go func() {
		var err error
		reply.Text, err = t.Do(context.WithoutCancel(r.Context()), c)
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return err
		}
		return a.Answer(w, http.StatusOK, reply)
	case <-r.Context().Done():
		return a.Answer(w, http.StatusOK, labapi.LessonReply{})
	}
}

// DefaultPage is the default address of the page of several nodes.
const DefaultPage = "127.0.0.1:10253"

// ListenPage listens at a loopback address and a port, for the page of several nodes; empty:
// [DefaultPage] or, if that is in use, any port. The server must have a token. Errors name the flag
// --page.
func ListenPage(address string) (net.Listener, error) {
	wanted := cmp.Or(address, DefaultPage)
	if a, err := netip.ParseAddrPort(strings.Replace(wanted, "localhost:", "127.0.0.1:", 1)); err != nil || !a.Addr().IsLoopback() {
		return nil, fmt.Errorf("--page %q: want a loopback address and a port, such as %s", address, DefaultPage)
	}
	l, err := net.Listen("tcp", wanted)
	if address == "" && errors.Is(err, syscall.EADDRINUSE) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			err = errno
		}
		return nil, fmt.Errorf("--page %s: %w", wanted, err)
	}
	return l, nil
}
