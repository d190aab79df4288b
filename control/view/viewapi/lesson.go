package viewapi

import (
	"context"
	"net/http"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
)

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
