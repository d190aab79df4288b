package remote

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// maxConcurrent is the maximum number of nodes that a request is sent to at once, and therefore of answers that
// wait to be merged.
const maxConcurrent = 64

// named returns the members of these names, or all without names.
func named(members []Member, nodes []string) ([]Member, error) {
	if len(nodes) == 0 {
		return members, nil
	}
	var list []Member
	for _, node := range nodes {
		i := slices.IndexFunc(members, func(m Member) bool { return m.Name == node })
		if i < 0 {
			return nil, &observe.Error{Status: http.StatusBadRequest, Field: "node", Message: fmt.Sprintf("node %q not found: want %s", node, names(members))}
		}
		if !slices.ContainsFunc(list, func(m Member) bool { return m.Name == node }) {
			list = append(list, members[i])
		}
	}
	return list, nil
}

// names lists the members for a message.
func names(members []Member) string {
	const most = 20
	var list []string
	for _, m := range members[:min(len(members), most)] {
		list = append(list, m.Name)
	}
	if more := len(members) - most; more > 0 {
		list = append(list, fmt.Sprintf("or one of %d others", more))
	}
	return strings.Join(list, ", ")
}

// reply is the result of one member.
type reply[T any] struct {
	Member
	answer T
	err    error
}

// queryEach sends a request to all members, at most maxConcurrent at a time, and gives use their replies in their
// order.
func queryEach[T any](members []Member, query func(Member) (T, error), use func(reply[T])) {
	pending := make(chan chan reply[T], maxConcurrent-1)
	go func() {
		defer close(pending)
		for _, m := range members {
			result := make(chan reply[T], 1)
			pending <- result
			go func() {
				answer, err := query(m)
				result <- reply[T]{m, answer, err}
			}()
		}
	}()
	for result := range pending {
		use(<-result)
	}
}

// queryAll is queryEach for replies that are needed together.
func queryAll[T any](members []Member, query func(Member) (T, error)) []reply[T] {
	var replies []reply[T]
	queryEach(members, query, func(r reply[T]) { replies = append(replies, r) })
	return replies
}

// verdict judges the replies of members: an invalid request is an error, and so is a failure of all members.
type verdict struct {
	invalid *observe.Error
	good    int
	errs    []error
}

// add takes a reply, and reports whether it is an answer.
func (v *verdict) add(node string, err error) bool {
	switch {
	case err == nil:
		v.good++
		return true
	case v.invalid == nil && errors.As(err, &v.invalid):
	default:
		v.errs = append(v.errs, fmt.Errorf("node %s: %w", node, err))
	}
	return false
}

func (v *verdict) err() error {
	switch {
	case v.invalid != nil:
		return v.invalid
	case v.good > 0:
		return nil
	case len(v.errs) == 0:
		return errNoNodes
	}
	return errors.Join(v.errs...)
}

// answered leaves out failed replies. An invalid request is an error, and so is a failure of all
// members.
func answered[T any](f *Relay, replies []reply[T]) ([]reply[T], error) {
	var v verdict
	var good []reply[T]
	for _, r := range replies {
		if v.add(r.Name, r.err) {
			good = append(good, r)
		}
	}
	if v.invalid == nil {
		for _, r := range replies {
			f.note(r.Name, r.err)
		}
	}
	return good, v.err()
}

// gatherEach sends a request to all members, and gives use the answers of those that are reachable, in their
// order.
func gatherEach[T any](f *Relay, query func(observe.Observer) (T, error), use func(T)) error {
	var v verdict
	members, _ := f.all()
	queryEach(members, func(m Member) (T, error) { return query(m.Observer) }, func(r reply[T]) {
		if v.add(r.Name, r.err) {
			use(r.answer)
		}
		if v.invalid == nil {
			f.note(r.Name, r.err)
		}
	})
	return v.err()
}

// gather is gatherEach for answers that are needed together.
func gather[T any](f *Relay, query func(observe.Observer) (T, error)) (list []T, err error) {
	err = gatherEach(f, query, func(answer T) { list = append(list, answer) })
	if err != nil {
		return nil, err
	}
	return list, nil
}
