package observe

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// QueryOf reads parameters of the flow API into a query, whose fields are of two types: bool and string. Each
// parameter must be known and given once; one for a bool without a value means true. The query's own Parse validates the
// values. The error is an [*Error].
func QueryOf[Q any](v url.Values) (Q, error) {
	var q, none Q
	r := reflect.ValueOf(&q).Elem()
	var known []string
	for i := range r.NumField() {
		known = append(known, strings.ToLower(r.Type().Field(i).Name))
	}
	for _, name := range slices.Sorted(maps.Keys(v)) {
		i := slices.Index(known, name)
		switch {
		case i < 0 && len(known) == 0:
			return none, badParameter(name, "parameter %q: this path has no parameters", name)
		case i < 0:
			return none, badParameter(name, "parameter %q: want %s", name, strings.Join(known, ", "))
		case len(v[name]) > 1:
			return none, badParameter(name, "%s is given %d times: give it once, a list with commas", name, len(v[name]))
		}
		text := v.Get(name)
		if f := r.Field(i); f.Kind() == reflect.String {
			f.SetString(text)
			continue
		}
		switch text {
		case "", "true":
			r.Field(i).SetBool(true)
		case "false":
		default:
			return none, badParameter(name, "%s %q: want true or false", name, text)
		}
	}
	return q, nil
}

// AfterOf reads the parameter after of the flow API, a hold's generation, as [QueryOf] does; 0: not given.
func AfterOf(v url.Values) (uint64, error) {
	q, err := QueryOf[struct{ After string }](v)
	if err != nil || q.After == "" {
		return 0, err
	}
	n, err := strconv.ParseUint(q.After, 10, 64)
	if err != nil {
		return 0, badParameter("after", "after %q: want a generation of the hold, a number", q.After)
	}
	return n, nil
}

// ServiceOf reads the parameter service of the flow API, NAMESPACE/NAME; empty: not given.
func ServiceOf(v url.Values) (string, error) {
	q, err := QueryOf[struct{ Service string }](v)
	if err != nil || q.Service == "" {
		return "", err
	}
	_, err = parseServiceName(q.Service)
	return q.Service, err
}

func badParameter(name, format string, a ...any) error {
	return &Error{http.StatusBadRequest, name, fmt.Sprintf(format, a...)}
}
