package flowapi

import (
	"context"
	"net/http"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// teacher returns the Teacher, if there is one.
func (s *server) teacher() (observe.Teacher, error) {
	if s.Teacher == nil {
		return nil, notFound("there is no course here: \"nfqproxy learn\" starts one")
	}
	return s.Teacher, nil
}

func (s *server) getLesson(w http.ResponseWriter, r *http.Request) error {
	v, err := parameters(r)
	if err != nil {
		return err
	}
	after, err := observe.AfterOf(v)
	if err != nil {
		return err
	}
	t, err := s.teacher()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.poll)
	defer cancel()
	lesson, err := t.Lesson(ctx, after)
	if err != nil {
		return err
	}
	return s.answer(w, http.StatusOK, lesson)
}

// doLesson carries a command out. One that begins a unit ends this server, with the lab that it is of: the response is then
// early, and the server of the next lab shows the result.
func (s *server) doLesson(w http.ResponseWriter, r *http.Request) error {
	var c observe.LessonCommand
	if err := s.readQuestion(w, r, &c); err != nil {
		return err
	}
	t, err := s.teacher()
	if err != nil {
		return err
	}
	var reply observe.LessonReply
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
		return s.answer(w, http.StatusOK, reply)
	case <-r.Context().Done():
		return s.answer(w, http.StatusOK, observe.LessonReply{})
	}
}
